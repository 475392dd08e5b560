package inferencepool

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// reporters is how far the update of the injected reporters is.
//
// A changed image replaces the reporter's container in the running pod. The kubelet stops the old container before it
// pulls the new image, and the pod is not ready until the new container runs. Therefore one pod is changed at a time, and
// the next one only after the reporter of the one before has run for a while. A reporter that does not run stops the
// update, so an image that is missing or broken costs one pod. So does one that ends later than that and is started again.
//
// Reporters through which requests pass are not changed while they run: see the sidecar of docs/disaggregation.md.
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

// A reporter that has ended with its image has to run for steady, for each time that it has, until the update goes on, and
// for steadyAtMost times that at most. One that ends again and again stops the update for as long as it does; one that ended once, or with
// its node, does not.
const (
	steady       = 10 * time.Minute
	steadyAtMost = 6
)

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
	passing := ""                // another image with which a pod is ready whose requests pass through it
	for _, pod := range pods {
		image := reporterImage(pod)
		if image != r.ReporterImage {
			if s := reporterStatus(pod); config.ReporterServes(pod) && s != nil && s.State.Running != nil {
				if isTrue(pod, corev1.PodReady) {
					passing = image
				}
				continue // its end would break the requests that pass through it, so it stays until the pod is replaced
			}
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
	if len(out.outdated) > 0 && out.trouble.Reason == "" {
		r.findRestarted(pods, &out)
	}
	switch {
	case working != "" && (!proven || out.trouble.Reason != ""):
		out.forNewPods = working
	case passing != "" && out.trouble.Reason != "": // nothing but a new pod can prove the operator's
		out.forNewPods = passing
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

// findRestarted looks for a reporter that runs, but has ended with the operator's image. It matters to pods that do not have that image.
func (r *reporterUpdate) findRestarted(pods []*corev1.Pod, out *reporters) {
	for _, pod := range pods {
		status := reporterStatus(pod)
		if reporterImage(pod) != r.ReporterImage || status == nil {
			continue
		}
		if status.State.Terminated != nil && out.waiting == nil { // it is about to be started again
			out.waiting = pod
		}
		if status.State.Running == nil {
			continue
		}
		started := status.State.Running.StartedAt
		ended := reporterEnds(pod, status)
		due := started.Add(time.Duration(min(ended, steadyAtMost)) * steady)
		if ended == 0 || !r.now.Before(due) {
			continue
		}
		if !startedAlone(pod, status, r.pool.Spec.Engine.ContainerName) {
			continue
		}
		r.wakeAt(due)
		message := fmt.Sprintf("%s: ended and was started again, %d times with this image", status.Name, ended)
		if last := status.LastTerminationState.Terminated; last != nil {
			message += fmt.Sprintf(" (the last time: %s, exit code %d)", last.Reason, last.ExitCode)
		}
		message += "; the update goes on if it runs until " + due.UTC().Format(time.RFC3339)
		out.waiting, out.trouble = pod, lifecycle.Trouble{Reason: lifecycle.CrashLooping, Message: message}
		return
	}
}

// startedAlone reports whether a reporter that runs was started after its engine. An engine that started later was started together with
// it, by a node that came back for example.
func startedAlone(pod *corev1.Pod, reporter *corev1.ContainerStatus, container string) bool {
	engine := engineOf(pod, container)
	return reporter.State.Running != nil && engine != nil && engine.State.Running != nil &&
		engine.State.Running.StartedAt.Before(&reporter.State.Running.StartedAt)
}

// reporterEnds returns how often a reporter has ended with the image that it has, by the kubelet's count. The end of
// the container that was replaced does not count.
func reporterEnds(pod *corev1.Pod, status *corev1.ContainerStatus) int32 {
	before, changed := beforeOf(pod)
	if !changed {
		return status.RestartCount
	}
	if before.restarts < 0 {
		return 0
	}
	if before.id != "" {
		before.restarts++
	}
	return max(status.RestartCount-before.restarts, 0)
}

// reporterBefore is what a reporter that was changed in place had: the image, the ID of its container, empty for none, and
// how often the kubelet had restarted it; negative if the release that changed it did not record that.
type reporterBefore struct {
	image, id string
	restarts  int32
}

// beforeOf reads what a pod's reporter had before it was changed in place, and reports whether it was.
func beforeOf(pod *corev1.Pod) (reporterBefore, bool) {
	value, changed := pod.Annotations[v1alpha1.AnnotationReporterBefore]
	out := reporterBefore{restarts: -1}
	image, rest, _ := strings.Cut(value, " ")
	id, restarts, _ := strings.Cut(rest, " ")
	out.image, out.id = image, id
	if n, err := strconv.ParseInt(restarts, 10, 32); err == nil {
		out.restarts = int32(n)
	}
	return out, changed
}

// provenReporter reports whether a reporter that was changed in place runs, and has for a while. Reporters that
// were not changed, or whose pods have no node, hold nothing up.
func (r *reporterUpdate) provenReporter(pod *corev1.Pod, status *corev1.ContainerStatus) bool {
	before, changed := beforeOf(pod)
	if !changed || pod.Spec.NodeName == "" {
		return true
	}
	if c := reporterOf(pod); c != nil && c.Image == before.image {
		return true // admission has given it the image that it had, so no container is replaced
	}
	if status == nil || status.ContainerID == "" || status.ContainerID == before.id || status.State.Running == nil || !status.Ready {
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
	id, restarts := "", int32(0)
	if status := reporterStatus(pod); status != nil {
		id, restarts = status.ContainerID, status.RestartCount
	}
	before := fmt.Sprintf("%s %s %d", reporterOf(pod).Image, id, restarts)
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
