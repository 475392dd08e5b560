package inferencepool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// expectations are our own writes to pods that the cache has not shown yet, by name. A decision waits for them: it
// would be made from a state that we know to be past.
type expectations map[string]expectation

type expectation struct {
	version string // that the cache has to show, or a later one
	created bool   // the pod might not be there yet
	at      time.Time
}

// behind reports whether the cache has still to show a write. It forgets those that it shows.
func (e expectations) behind(pods []*corev1.Pod, now time.Time) bool {
	if len(e) == 0 {
		return false
	}
	versions := map[string]string{}
	for _, pod := range pods {
		versions[pod.Name] = pod.ResourceVersion
	}
	for name, want := range e {
		version, there := versions[name]
		shown := !there && !want.created // gone
		if there {
			order, err := resourceversion.CompareResourceVersion(version, want.version)
			shown = err != nil || order >= 0
		}
		if shown || now.Sub(want.at) > expectAtMost {
			delete(e, name)
		}
	}
	return len(e) > 0
}

// executor is the part that carries out what was decided about pods.
type executor struct {
	*podWriter
	*outcome
}

// execute does what was decided, in order, and stops at the first failure. That a pod is newer than it was seen, or
// there already, is no failure: the next decision will know. If the API server refuses an action, those after it are
// still executed, because none of them needs it: a quota that allows no new pod must not keep drained ones, which use it
// up. Only further creates are left out, and everything after a mark that could not be removed, because the pod was
// counted as one that serves.
func (r *executor) execute(ctx context.Context) error {
	var refusal error
	noCreates := false
	for i := range r.decision.Actions {
		a := &r.decision.Actions[i]
		if a.Kind == lifecycle.Create && noCreates {
			continue
		}
		err := r.do(ctx, a)
		switch {
		case err == nil:
			r.recordAction(a)
		case a.Kind == lifecycle.Create && apierrors.IsAlreadyExists(err):
			taken, err := r.nameTaken(ctx, a.Name)
			if err != nil {
				return err
			}
			r.retry = true // with another name, or when the cache shows the pod
			if !taken {
				return refusal
			}
		case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err):
			r.retry = true
			return refusal
		default:
			goesOn := objects.Refused(err) && a.Kind != lifecycle.Unmark
			noCreates = noCreates || a.Kind == lifecycle.Create
			err = fmt.Errorf("pod %s of pool %s: %w", a.Name, r.key, err)
			if !goesOn {
				return err
			}
			refusal = cmp.Or(refusal, err)
		}
	}
	return refusal
}

func (r *executor) do(ctx context.Context, a *lifecycle.Action) error {
	switch a.Kind {
	case lifecycle.Create:
		return r.createPod(ctx, a)
	case lifecycle.SetMark:
		return r.mark(ctx, a)
	case lifecycle.Unmark:
		return r.patch(ctx, a.UID, map[string]any{v1alpha1.LabelDrain: nil}, map[string]any{v1alpha1.AnnotationDrainDeadline: nil})
	case lifecycle.Delete:
		pod := r.podOf[a.UID]
		return r.Client.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}},
			client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	case lifecycle.WarmUp:
		if r.Warmups != nil {
			r.Warmups.Begin(r.pool, a.UID, r.now)
		}
		return nil
	case lifecycle.Show:
		return r.show(ctx, a)
	}
	return nil
}

// newPod makes the pod of an action.
func (r *executor) newPod(a *lifecycle.Action) (*corev1.Pod, error) {
	shape, err := r.shape(a.Revision)
	if err != nil {
		return nil, err
	}
	options := r.injection()
	options.Name, options.Revision, options.Slot = a.Name, a.Revision, a.Slot
	options.ReporterImage = r.reporters.forNewPods
	if len(shape.Roles) > 0 {
		options.Role = podtemplate.RoleName(a.Role)
	}
	if a.Island != "" {
		options.Island, options.Provisioning = r.islands.spec(a.Island), r.provisions()
	}
	pod, _, err := podtemplate.Pod(shape, &options)
	if err != nil {
		return nil, err
	}
	pod.OwnerReferences = []metav1.OwnerReference{resources.Owner(r.pool)}
	if a.Ends > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationEnds, strconv.Itoa(a.Ends))
	}
	if a.Moves > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationMoves, strconv.Itoa(a.Moves))
	}
	return pod, nil
}

func (r *executor) createPod(ctx context.Context, a *lifecycle.Action) error {
	pod, err := r.newPod(a)
	if err != nil {
		return err
	}
	if err := r.Client.Create(ctx, pod); err != nil {
		return err
	}
	r.memory.expected[pod.Name] = expectation{version: pod.ResourceVersion, created: true, at: r.now}
	return nil
}

// injection is what goes into pods of this pool.
func (r *scope) injection() podtemplate.Options {
	options := podtemplate.For(r.pool)
	options.ReporterImage, options.ReporterLogLevel, options.Version = r.ReporterImage, r.ReporterLogLevel, r.Version
	options.IPv6 = r.memory.family == corev1.IPv6Protocol
	return options
}

func (r *podWriter) mark(ctx context.Context, a *lifecycle.Action) error {
	err := r.patch(ctx, a.UID, map[string]any{v1alpha1.LabelDrain: a.Mark.Reason},
		map[string]any{v1alpha1.AnnotationDrainDeadline: a.Mark.Deadline.UTC().Format(time.RFC3339)})
	if err == nil {
		// Truncated to seconds, as it will be read back.
		mark := lifecycle.Mark{Reason: a.Mark.Reason, Deadline: a.Mark.Deadline.UTC().Truncate(time.Second)}
		r.memory.marks[a.UID] = seenMark{mark, r.now}
	}
	return err
}

// podWriter is the part that changes pods.
type podWriter struct {
	*scope
	*observed
}

func newPodWriter(s *scope, o *observed) *podWriter { return &podWriter{s, o} }

// patch changes labels and annotations of a pod, if the pod has not changed since it was read.
func (r *podWriter) patch(ctx context.Context, uid string, labels, annotations map[string]any) error {
	pod := r.podOf[uid]
	meta := map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": annotations}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	return r.send(ctx, r.Client, pod, types.MergePatchType, map[string]any{"metadata": meta})
}

// patcher is the client, or its subresource.
type patcher interface {
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error
}

// send patches a pod and expects the cache to show it.
func (r *podWriter) send(ctx context.Context, c patcher, pod *corev1.Pod, kind types.PatchType, change map[string]any) error {
	raw, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("writing a patch: %w", err)
	}
	got := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := c.Patch(ctx, got, client.RawPatch(kind, raw)); err != nil {
		return err
	}
	r.memory.expected[pod.Name] = expectation{version: got.ResourceVersion, at: r.now}
	// What is done next to the pod in this reconciliation builds on this.
	r.podOf[string(pod.UID)] = got
	return nil
}

// statusPatcher patches the status.
type statusPatcher struct{ client.SubResourceWriter }

// Patch implements patcher.
func (p statusPatcher) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return p.SubResourceWriter.Patch(ctx, obj, patch)
}

// show writes the operator's conditions of a pod.
func (r *podWriter) show(ctx context.Context, a *lifecycle.Action) error {
	pod := r.podOf[a.UID]
	var changed []map[string]any
	for kind, want := range map[corev1.PodConditionType]bool{
		status.PodSynced: a.Shown.Synced, podtemplate.ConditionWarm: a.Shown.Warm, status.PodIdle: a.Shown.Idle,
	} {
		if isTrue(pod, kind) == want {
			continue
		}
		is := corev1.ConditionFalse
		if want {
			is = corev1.ConditionTrue
		}
		changed = append(changed, map[string]any{
			"type": kind, "status": is, "lastTransitionTime": metav1.NewTime(r.now), "observedGeneration": pod.Generation,
		})
	}
	if len(changed) > 0 {
		change := map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"conditions": changed}}
		if err := r.send(ctx, statusPatcher{r.Client.Status()}, pod, types.StrategicMergePatchType, change); err != nil {
			return err
		}
	}
	if _, set := pod.Annotations[annotationSafeToEvict]; a.Shown.Idle && !set {
		return r.patch(ctx, a.UID, nil, map[string]any{annotationSafeToEvict: "true"})
	}
	return nil
}
