package inferencepool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// reporters is how far the update of the injected reporters is.
//
// A changed image replaces the reporter's container in the running pod. The kubelet stops the old container before it
// pulls the new image, and the pod is not ready until the new container runs. Therefore one pod is changed at a time, and
// the next one only after the reporter of the one before has run for a while. A reporter that does not run stops the
// update, so an image that is missing or broken costs one pod.
type reporters struct {
	// outdated pods have another image than the operator's, in the order in which they are changed. updated counts the
	// pods that have the operator's.
	outdated []*corev1.Pod
	updated  int
	// waiting is the pod whose new reporter has not proved itself yet; nil for none. trouble is why it does not run.
	waiting *corev1.Pod
	trouble lifecycle.Trouble
	// forNewPods is the image for pods that are made now. While another image works, a new one first has to prove itself in a pod
	// that is ready: the engine of a pod that is made with a reporter that does not run never starts.
	forNewPods string
}

// reporterUpdate is the part that changes the reporters of running pods.
type reporterUpdate struct {
	*scope
	*observed
	*outcome
}

// findReporters judges the reporters of the pool's pods.
func (r *reporterUpdate) findReporters() reporters {
	out := reporters{forNewPods: r.ReporterImage}
	pods := slices.DeleteFunc(slices.Clone(r.pods), func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded ||
			!pod.DeletionTimestamp.IsZero() || !injectedReporter(pod)
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	working, proven := "", false // another image with which a pod is ready, and whether one is with the operator's
	for _, pod := range pods {
		image := reporterImage(pod)
		if image != r.ReporterImage {
			if isTrue(pod, corev1.PodReady) {
				working = image
			}
			if markOf(pod).Reason == "" {
				out.outdated = append(out.outdated, pod)
			}
			continue
		}
		out.updated++
		status := reporterStatus(pod)
		switch {
		case status != nil && containerTrouble(status).Reason != "" && out.trouble.Reason == "":
			out.waiting, out.trouble = pod, containerTrouble(status)
		case !r.provenReporter(pod, status):
			if out.waiting == nil {
				out.waiting = pod
			}
		case isTrue(pod, corev1.PodReady):
			proven = true
		}
	}
	if working != "" && (!proven || out.trouble.Reason != "") {
		out.forNewPods = working
	}
	// Pods that do not serve are updated first: restarting their reporters costs no cache hits.
	slices.SortStableFunc(out.outdated, func(a, b *corev1.Pod) int {
		switch readyA, readyB := isTrue(a, corev1.PodReady), isTrue(b, corev1.PodReady); {
		case readyA == readyB:
			return 0
		case readyB:
			return -1
		}
		return 1
	})
	return out
}

// provenReporter reports whether a reporter that was changed in place runs, and has for a while. Reporters that
// were not changed, or whose pods have no node, hold nothing up.
func (r *reporterUpdate) provenReporter(pod *corev1.Pod, status *corev1.ContainerStatus) bool {
	before, changed := pod.Annotations[v1alpha1.AnnotationReporterBefore]
	if !changed || pod.Spec.NodeName == "" {
		return true
	}
	image, id, _ := strings.Cut(before, " ")
	if c := reporterOf(pod); c != nil && c.Image == image {
		return true // admission has given it the image that it had, so no container is replaced
	}
	if status == nil || status.ContainerID == "" || status.ContainerID == id || status.State.Running == nil || !status.Ready {
		return false
	}
	due := status.State.Running.StartedAt.Add(settle)
	if r.now.Before(due) {
		r.wakeAt(due)
		return false
	}
	return true
}

// patchReporters gives one pod at a time the reporter of this version. A pod that drains, or that this reconciliation changes
// anyhow, is left alone. So is the only pod that serves: it keeps the reporter that it has, which works with the pickers of
// the next version. A pod whose reporter is about to start comes later: its engine starts after the reporter, if that one runs.
func (r *reporterUpdate) patchReporters(ctx context.Context) error {
	if len(r.decision.Actions) > 0 || r.ReporterImage == "" || r.reporters.waiting != nil {
		return nil
	}
	serving := 0
	for _, pod := range r.pods {
		if isTrue(pod, corev1.PodReady) && markOf(pod).Reason == "" && pod.DeletionTimestamp.IsZero() {
			serving++
		}
	}
	for _, pod := range r.reporters.outdated {
		if isTrue(pod, corev1.PodReady) && serving > 1 || !isTrue(pod, corev1.PodReady) && !startsReporter(pod) {
			return r.patchReporter(ctx, pod)
		}
	}
	return nil
}

// startsReporter reports whether a pod's reporter has not run yet, and nothing is known to keep it from that.
func startsReporter(pod *corev1.Pod) bool {
	status := reporterStatus(pod)
	return status == nil ||
		containerTrouble(status).Reason == "" && status.State.Running == nil && status.LastTerminationState.Terminated == nil
}

// patchReporter gives a pod the reporter of this version, and records what it had.
func (r *reporterUpdate) patchReporter(ctx context.Context, pod *corev1.Pod) error {
	before := reporterOf(pod).Image + " "
	if status := reporterStatus(pod); status != nil {
		before += status.ContainerID
	}
	change := map[string]any{
		"metadata": map[string]any{
			"uid": pod.UID, "resourceVersion": pod.ResourceVersion,
			"annotations": map[string]any{
				v1alpha1.AnnotationReporterImage: r.ReporterImage, v1alpha1.AnnotationReporterBefore: before,
			},
		},
		"spec": map[string]any{"initContainers": []map[string]any{{"name": v1alpha1.ReporterContainer, "image": r.ReporterImage}}},
	}
	err := newPodWriter(r.scope, r.observed).send(ctx, r.Client, pod, types.StrategicMergePatchType, change)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		r.retry = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("giving pod %s of pool %s the reporter %s: %w", pod.Name, r.key, r.ReporterImage, err)
	}
	r.wakeAt(r.now.Add(settle))
	return nil
}

// injectedReporter reports whether the sidecar of a pod was injected by the operator, and not set by the user.
func injectedReporter(pod *corev1.Pod) bool {
	return slices.Contains(strings.Fields(pod.Annotations[v1alpha1.AnnotationInjected]), podtemplate.Reporter) && reporterOf(pod) != nil
}

// reporterImage returns the image that the operator set for a pod's reporter. Admission can have put another one into the
// pod, which must not be mistaken for an old one. Pods of releases that did not record it are judged by the image they
// have.
func reporterImage(pod *corev1.Pod) string {
	if image, ok := pod.Annotations[v1alpha1.AnnotationReporterImage]; ok {
		return image
	}
	return reporterOf(pod).Image
}

// reporterOf returns the container of the reporter; nil for none.
func reporterOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == v1alpha1.ReporterContainer {
			return c
		}
	}
	return nil
}

// reporterStatus returns the status of the reporter's container; nil before there is one.
func reporterStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[i]; s.Name == v1alpha1.ReporterContainer {
			return s
		}
	}
	return nil
}
