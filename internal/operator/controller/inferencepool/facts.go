package inferencepool

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// annotationSafeToEvict allows the cluster autoscaler to evict a pod.
const annotationSafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

// trustAfter is the time after which a picker has seen every change of a pod that is older. An acknowledgement that is
// older than a mark might be one of the mark before.
const trustAfter = 30 * time.Second

// seenMark is a mark, and since when this process knows it.
type seenMark struct {
	mark  lifecycle.Mark
	since time.Time
}

// cluster is the part that reads.
type cluster struct {
	*scope
	*observed
}

// read fills in what the cache has.
func (r *cluster) read(ctx context.Context) error {
	var list corev1.PodList
	selector := client.MatchingLabels(config.PodLabels(r.pool))
	// The listed pods are shared with the cache and must not be changed.
	if err := r.Client.List(ctx, &list, client.InNamespace(r.key.Namespace), selector, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing pods of pool %s: %w", r.key, err)
	}
	r.podOf = map[string]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		if r.pool.Spec.Template != nil && !metav1.IsControlledBy(pod, r.pool) {
			switch orphan := metav1.GetControllerOf(pod) == nil && pod.DeletionTimestamp.IsZero(); {
			case orphan && r.ownPod(pod):
				r.orphans = append(r.orphans, pod)
			default:
				r.strangers = append(r.strangers, pod)
			}
			continue
		}
		if config.Worker(pod) { // its leader answers for the group, and goes with it
			continue
		}
		r.pods = append(r.pods, pod)
		r.podOf[string(pod.UID)] = pod
	}
	picker := &appsv1.Deployment{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: resources.PickerName(r.key.Name)}, picker)
	switch {
	case err == nil && metav1.IsControlledBy(picker, r.pool):
		r.picker = picker
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("reading the pickers of pool %s: %w", r.key, err)
	}
	if err := r.findStuckPicker(ctx); err != nil {
		return err
	}
	return r.findFleets(ctx)
}

// facts returns the input of lifecycle.Make.
func (r *podKeeper) facts(ctx context.Context) (lifecycle.Input, error) {
	input := lifecycle.Input{Now: r.now}
	states := &nodes{r.scope}
	failing, err := states.failingNodes(ctx, r.pods)
	if err != nil {
		return input, err
	}
	facts := &podFacts{r.scope, r.observed, failing}
	for _, pod := range r.pods {
		node, err := states.node(ctx, pod)
		if err != nil {
			return input, err
		}
		input.Pods = append(input.Pods, facts.fact(pod, node))
	}
	facts.learn(input.Pods)
	r.size = chosenSize(r.scope, r.observed)
	r.keepSize(&r.size)
	surge, unavailable := limits(r.pool.Spec.Rollout, r.size.now)
	rollout := r.pool.Spec.Rollout
	input.Pool = lifecycle.Pool{
		Name: r.key.Name, Size: r.size.now, Revision: r.revisions.update, Current: r.revisions.current,
		OnDelete: rollout.Type == v1alpha1.OnDelete, Paused: r.pool.Spec.Paused != "", Surge: surge, Unavailable: unavailable,
		ProgressDeadline: time.Duration(rollout.ProgressDeadlineSeconds) * time.Second,
		DrainDeadline:    podtemplate.Deadline(r.pool), LongestWay: LongestWay,
	}
	input.Pool.Taken = r.takenSlots()
	if input.Pool.Roles, err = r.roles(input.Pods); err != nil {
		return input, err
	}
	if w := r.pool.Spec.WarmUp; w != nil {
		input.Pool.WarmUp = time.Duration(w.MaxSeconds) * time.Second
	}
	if err := (&placing{r.scope, r.observed, r.outcome}).placeOn(ctx, &input); err != nil {
		return input, err
	}
	return input, nil
}

// podFacts are what is known of pods, for package lifecycle.
type podFacts struct {
	*scope
	*observed
	// nodeFailing is what is wrong with the nodes of pods that are not ready, by the node's name.
	nodeFailing map[string]string
}

// learn adds what pickers and engines report about marked pods.
func (r *podFacts) learn(pods []lifecycle.Pod) {
	r.keepMarks(pods)
	r.watchDraining(pods)
	for i := range pods {
		p := &pods[i]
		p.Acknowledged = r.acknowledged(p)
		if p.Mark.Reason != "" && r.Engines != nil {
			p.Readings = r.readings(p.UID)
		}
	}
}

// readings returns those of an engine: the operator's own, or else what pickers have read. Under a mesh with strict mTLS, or
// a network policy of others, pickers can reach engines and the operator cannot.
func (r *podFacts) readings(uid string) []lifecycle.Reading {
	own := r.Engines.Readings(uid)
	if n := len(own); n > 0 && r.now.Sub(own[n-1].At) <= lifecycle.ReadingFresh {
		return own
	}
	var out []lifecycle.Reading
	for _, reading := range r.view.Readings(uid) {
		// It was requested at most a time-out before, and the report was under way for a moment.
		out = append(out, lifecycle.Reading{At: reading.At.Add(-pickersLate), Busy: reading.Busy})
	}
	return out
}

// pickersLate is how much older than it seems a picker's reading of an engine can be.
const pickersLate = 2 * time.Second

// fact is what is known of one pod.
func (r *podFacts) fact(pod *corev1.Pod, node lifecycle.Node) lifecycle.Pod {
	uid := string(pod.UID)
	p := lifecycle.Pod{
		UID: uid, Name: pod.Name, Revision: pod.Labels[v1alpha1.LabelRevision], Island: pod.Labels[r.islandLabel()],
		Created: pod.CreationTimestamp.Time, Assigned: pod.Spec.NodeName != "", Node: node,
		Deleting: !pod.DeletionTimestamp.IsZero(),
		Finished: pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded,
		Running:  engineRuns(pod, r.pool.Spec.Engine.ContainerName),
		Mark:     markOf(pod), Trouble: troubleOf(pod), Crashed: r.crashOf(pod),
		Shown: lifecycle.Shown{
			Synced: isTrue(pod, status.PodSynced), Warm: isTrue(pod, podtemplate.ConditionWarm), Idle: isTrue(pod, status.PodIdle),
		},
	}
	p.Role = roleOf(r.pool, pod)
	p.Slot = -1 // a pod without a slot takes none
	if n, err := strconv.Atoi(pod.Labels[v1alpha1.LabelSlot]); err == nil {
		p.Slot = n
	}
	p.Loaded, p.LoadedAt = since(pod, corev1.ContainersReady)
	p.Ready, p.ReadyAt = since(pod, corev1.PodReady)
	p.Serves = config.PodServes(pod)
	p.LoadedAt, p.ReadyAt = r.ofNode(pod, p.LoadedAt), r.ofNode(pod, p.ReadyAt)
	p.Failing = r.failingOf(pod)
	p.Ends, _ = strconv.Atoi(pod.Annotations[v1alpha1.AnnotationEnds])
	p.Moves, _ = strconv.Atoi(pod.Annotations[v1alpha1.AnnotationMoves])
	if p.Finished {
		p.EndedAt, p.Trouble = endOf(pod, r.pool.Spec.Engine.ContainerName)
		p.Lived = min(p.EndedAt.Sub(p.Created), r.now.Sub(p.Created)+clockSkew)
		p.EndedAt = r.ofNode(pod, p.EndedAt)
	}
	for _, gate := range pod.Spec.ReadinessGates {
		p.WarmGate = p.WarmGate || gate.ConditionType == podtemplate.ConditionWarm
	}
	p.WarmedUp = r.Warmups == nil || r.Warmups.Done(uid)
	p.Synced, p.Value, p.Load = r.view.Synced(uid), r.view.Value(uid), r.view.InFlight(uid)
	if state, ok := r.view.Pod(uid); ok {
		p.Degraded = state.Degraded
	} else {
		p.Synced = p.Shown.Synced && p.Running // no picker reports: unchanged
	}
	return p
}

// keepMarks remembers since when each mark is known.
func (r *podFacts) keepMarks(pods []lifecycle.Pod) {
	seen := map[string]bool{}
	for i := range pods {
		p := &pods[i]
		if p.Mark.Reason == "" {
			continue
		}
		seen[p.UID] = true
		if m, ok := r.memory.marks[p.UID]; !ok || m.mark != p.Mark {
			r.memory.marks[p.UID] = seenMark{p.Mark, r.now}
		}
	}
	for uid := range r.memory.marks {
		if !seen[uid] {
			delete(r.memory.marks, uid)
		}
	}
}

// acknowledged is when the last picker ceased to choose a marked pod; zero while one might still do.
func (r *podFacts) acknowledged(p *lifecycle.Pod) time.Time {
	mark, ok := r.memory.marks[p.UID]
	if !ok {
		return time.Time{}
	}
	since, ok := r.view.Acknowledged(p.UID)
	switch {
	case !ok:
		return time.Time{}
	case r.view.Live() == 0: // there are no picks, if the operator runs the pickers
		if r.pool.Spec.Picker.Mode == v1alpha1.PickerExternal || r.picker != nil && r.picker.Status.ReadyReplicas > 0 || r.fleets.ready > 0 {
			return time.Time{}
		}
		return mark.since
	case !since.Before(mark.since):
		return since
	}
	// It might be the acknowledgement of an earlier mark, or of this one before this process has seen it.
	if trusted := mark.since.Add(trustAfter); !r.now.Before(trusted) {
		return trusted
	}
	return time.Time{}
}

// watchDraining has the engines of marked pods asked.
func (r *podFacts) watchDraining(pods []lifecycle.Pod) {
	if r.Engines == nil {
		return
	}
	var marked []*corev1.Pod
	for i := range pods {
		if p := &pods[i]; p.Mark.Reason != "" && p.Running && !p.Deleting {
			marked = append(marked, r.podOf[p.UID])
		}
	}
	r.Engines.Watch(r.pool, marked)
}

// markOf reads the drain mark. A deadline that cannot be read is none.
func markOf(pod *corev1.Pod) lifecycle.Mark {
	reason, ok := pod.Labels[v1alpha1.LabelDrain]
	if !ok {
		return lifecycle.Mark{}
	}
	if reason == "" {
		reason = lifecycle.DrainManual // present is what counts
	}
	m := lifecycle.Mark{Reason: reason}
	if t, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.AnnotationDrainDeadline]); err == nil {
		m.Deadline = t
	}
	return m
}

func isTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	yes, _ := since(pod, kind)
	return yes
}

func since(pod *corev1.Pod, kind corev1.PodConditionType) (bool, time.Time) {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return false, time.Time{}
}

// engineOf is the status of the engine's container; nil before there is one.
func engineOf(pod *corev1.Pod, container string) *corev1.ContainerStatus {
	if container == "" && len(pod.Spec.Containers) > 0 {
		container = pod.Spec.Containers[0].Name
	}
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.Name == container {
			return c
		}
	}
	return nil
}

func engineRuns(pod *corev1.Pod, container string) bool {
	c := engineOf(pod, container)
	return c != nil && c.State.Running != nil
}

// troubleOf returns the reason why a pod does not start, as Kubernetes reports it.
func troubleOf(pod *corev1.Pod) lifecycle.Trouble {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return lifecycle.Trouble{Reason: lifecycle.Unschedulable, Message: c.Message}
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if trouble := containerTrouble(&statuses[i]); trouble.Reason != "" {
				return trouble
			}
		}
	}
	return lifecycle.Trouble{Message: pod.Status.Message}
}

// containerTrouble returns what keeps a container from running; the zero value for nothing.
func containerTrouble(status *corev1.ContainerStatus) lifecycle.Trouble {
	w := status.State.Waiting
	if w == nil {
		return lifecycle.Trouble{}
	}
	message := status.Name + ": " + w.Message
	if w.Reason == "CrashLoopBackOff" && status.LastTerminationState.Terminated != nil {
		message = crashMessage(status) // the same as while the container runs
	}
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "SignatureValidationFailed":
		return lifecycle.Trouble{Reason: lifecycle.ImagePullFailed, Message: message}
	case "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError":
		return lifecycle.Trouble{Reason: lifecycle.CrashLooping, Message: message}
	}
	return lifecycle.Trouble{}
}

// endOf returns when a pod ended, and why: the reason of the engine's container, else that of the pod.
func endOf(pod *corev1.Pod, container string) (time.Time, lifecycle.Trouble) {
	at := pod.CreationTimestamp.Time
	for i := range pod.Status.Conditions {
		if c := pod.Status.Conditions[i].LastTransitionTime.Time; c.After(at) {
			at = c
		}
	}
	why := lifecycle.Trouble{Reason: cmp.Or(pod.Status.Reason, string(pod.Status.Phase)), Message: pod.Status.Message}
	if c := engineOf(pod, container); c != nil && c.State.Terminated != nil {
		t := c.State.Terminated
		if t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
		if pod.Status.Reason == "" {
			why.Reason = cmp.Or(t.Reason, why.Reason)
			why.Message = strings.TrimSpace(fmt.Sprintf("exit code %d %s", t.ExitCode, t.Message))
		}
	}
	return at, why
}

// limits resolves the surge, rounded up, and what can be unavailable, rounded down, as Deployments do. They are not
// both 0.
func limits(rollout *v1alpha1.Rollout, size int) (surge, unavailable int) {
	surge = resolve(rollout.MaxSurge, size, 1, true)
	unavailable = resolve(rollout.MaxUnavailable, size, 0, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func resolve(v *intstr.IntOrString, size, otherwise int, up bool) int {
	if v == nil {
		return otherwise
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, size, up)
	if err != nil { // the schema admits none
		return otherwise
	}
	return max(n, 0)
}

func (r *scope) islandLabel() string {
	if p := r.pool.Spec.Placement; p != nil && p.IslandLabel != "" {
		return p.IslandLabel
	}
	return v1alpha1.LabelIsland
}
