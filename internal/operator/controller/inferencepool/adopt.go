package inferencepool

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// lowestCost makes a Deployment delete a pod first.
const lowestCost = "-2147483648"

// adoption is the part that looks after pods of another owner.
type adoption struct {
	*scope
	*observed
	*outcome
}

// keep handles pods that another workload owns. It makes and deletes none: it marks, waits, and sets the owner's size
// where the pool allows it.
func (r *adoption) keep(ctx context.Context) error {
	if err := r.yieldToOlder(ctx); err != nil {
		return err
	}
	in := &lifecycle.Adopted{Input: lifecycle.Input{Now: r.now}}
	states := &nodes{r.scope}
	failing, err := states.failingNodes(ctx, r.pods)
	if err != nil {
		return err
	}
	facts := &podFacts{r.scope, r.observed, failing}
	for _, pod := range r.pods {
		node, err := states.groupNode(ctx, pod)
		if err != nil {
			return err
		}
		p := facts.fact(pod, node)
		p.Slot = slotOf(pod)
		in.Pods = append(in.Pods, p)
	}
	facts.learn(in.Pods)
	in.Pool = lifecycle.Pool{Name: r.key.Name, DrainDeadline: podtemplate.Deadline(r.pool), LongestWay: LongestWay}
	owner, err := r.owner(ctx)
	if err != nil {
		r.problems.target = err.Error()
	}
	r.size = size{now: len(in.Pods), wanted: len(in.Pods)}
	if owner != nil {
		r.size = size{now: owner.size, wanted: owner.size}
		if r.pool.Spec.Autoscaling.MaxReplicas > 0 {
			r.size = chosenSize(r.scope, r.observed)
		}
		if r.pool.Spec.Paused == v1alpha1.PauseAll {
			r.size.now = owner.size - draining(in.Pods, owner.size) // drains that have begun end
		}
		in.Scalable, in.Owner, in.Ordered = r.pool.Spec.Autoscaling.Mode == v1alpha1.AutoscalingActive, owner.size, owner.ordered
	}
	in.Pool.Size = r.size.now
	decision, target := lifecycle.Adopt(in)
	r.decision = decision
	r.wakeAt(r.decision.Wake)
	writer := newPodWriter(r.scope, r.observed)
	if err := (&executor{writer, r.outcome}).execute(ctx); err != nil {
		return err
	}
	if err := writer.setCosts(ctx, owner); err != nil {
		return err
	}
	if owner != nil && in.Scalable && target != owner.size && !r.retry {
		return r.scale(ctx, owner, target)
	}
	return nil
}

// groupNode describes the state of a pod's node, or the worst of the nodes of its group: a LeaderWorkerSet's group ends
// with any of its pods, and its workers need not be selected by the pool.
func (r *nodes) groupNode(ctx context.Context, pod *corev1.Pod) (lifecycle.Node, error) {
	state, err := r.node(ctx, pod)
	if err != nil || !r.NodeSignals {
		return state, err
	}
	group, err := r.groupOf(ctx, pod)
	if err != nil {
		return state, err
	}
	for i := range group {
		if !config.Worker(&group[i]) {
			continue
		}
		of, err := r.node(ctx, &group[i])
		if err != nil {
			return state, err
		}
		state = max(state, of)
	}
	return state, nil
}

// groupOf lists the pods of the LeaderWorkerSet's group that a pod is of, the pod included; nil for a pod of none. They are
// shared with the cache.
func (r *Reconciler) groupOf(ctx context.Context, pod *corev1.Pod) ([]corev1.Pod, error) {
	group := client.MatchingLabels{}
	for _, label := range []string{config.LabelSet, config.LabelGroup} {
		value, ok := pod.Labels[label]
		if !ok {
			return nil, nil
		}
		group[label] = value
	}
	var list corev1.PodList
	if err := r.Client.List(ctx, &list, client.InNamespace(pod.Namespace), group, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the group of pod %s: %w", pod.Name, err)
	}
	return list.Items, nil
}

// draining counts the pods that drain because there are too many, without those that their owner, whose size has been
// lowered already, is about to delete.
func draining(pods []lifecycle.Pod, owner int) int {
	marked, live := 0, 0
	for i := range pods {
		p := &pods[i]
		if p.Deleting || p.Finished {
			continue
		}
		live++
		if p.Mark.Reason == lifecycle.DrainScaleDown {
			marked++
		}
	}
	return max(0, marked-max(0, live-owner))
}

// yieldToOlder leaves pods alone that an older pool selects, too.
func (r *adoption) yieldToOlder(ctx context.Context) error {
	var list v1alpha1.InferencePoolList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.key.Namespace)); err != nil {
		return fmt.Errorf("listing pools of %s: %w", r.key.Namespace, err)
	}
	var mine []*corev1.Pod
	for _, pod := range r.pods {
		older := ""
		for i := range list.Items {
			other := &list.Items[i]
			if other.Name != r.key.Name && config.Selects(other, pod) && config.Older(other, r.pool) {
				older = other.Name
			}
		}
		if older == "" {
			mine = append(mine, pod)
			continue
		}
		r.problems.overlap = fmt.Sprintf("pod %s, and maybe more, belong to the older pool %s, which selects them too", pod.Name, older)
		delete(r.podOf, string(pod.UID))
	}
	r.pods = mine
	return nil
}

// slotOf is a pod's number at its owner: that of its group in a LeaderWorkerSet, else the one in its name.
func slotOf(pod *corev1.Pod) int {
	if n, err := strconv.Atoi(pod.Labels[config.LabelGroup]); err == nil {
		return n
	}
	return ordinal(pod.Name)
}

// ordinal is the number at the end of a pod's name; -1 without one.
func ordinal(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil {
		return -1
	}
	return n
}

// owner is the workload whose size the pool is allowed to set.
type owner struct {
	object  *unstructured.Unstructured
	size    int
	version string // of the scale
	ordered bool
}

// owner reads the scale of the workload that the pool names; nil when it names none.
func (r *adoption) owner(ctx context.Context) (*owner, error) {
	if r.pool.Spec.Adoption == nil || r.pool.Spec.Adoption.ScaleTargetRef.Name == "" {
		return nil, nil
	}
	ref := r.pool.Spec.Adoption.ScaleTargetRef
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(ref.APIVersion)
	o.SetKind(ref.Kind)
	o.SetNamespace(r.key.Namespace)
	o.SetName(ref.Name)
	scale, err := r.scaleOf(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("reading the scale of %s %s: %w", ref.Kind, ref.Name, err)
	}
	return &owner{o, int(scale.Spec.Replicas), scale.ResourceVersion, ref.Kind != "Deployment"}, nil
}

// scaleOf reads the scale of a workload. A client takes a typed one for an object of a type that it knows, and none for
// others.
func (r *adoption) scaleOf(ctx context.Context, o *unstructured.Unstructured) (*autoscalingv1.Scale, error) {
	scale := &autoscalingv1.Scale{}
	if typed, err := r.Client.Scheme().New(o.GroupVersionKind()); err == nil {
		if known, ok := typed.(client.Object); ok {
			known.SetNamespace(o.GetNamespace())
			known.SetName(o.GetName())
			return scale, r.Client.SubResource("scale").Get(ctx, known, scale)
		}
	}
	loose := &unstructured.Unstructured{}
	loose.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	if err := r.Client.SubResource("scale").Get(ctx, o, loose); err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(loose.Object, scale); err != nil {
		return nil, fmt.Errorf("reading fields: %w", err)
	}
	return scale, nil
}

// scale sets the owner's size, if it has not been changed since it was read.
func (r *adoption) scale(ctx context.Context, o *owner, size int) error {
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": o.version}, "spec": map[string]any{"replicas": size},
	})
	if err != nil {
		return fmt.Errorf("writing a patch: %w", err)
	}
	if err := r.Client.SubResource("scale").Patch(ctx, o.object, client.RawPatch(types.MergePatchType, raw)); err != nil {
		r.problems.target = err.Error()
		r.recordEvent(warning, "ScaleTargetRefused", nil, "%s", err.Error())
		return fmt.Errorf("scaling %s %s to %d: %w", o.object.GetKind(), o.object.GetName(), size, err)
	}
	return nil
}

// setCosts makes a Deployment delete the marked pods first, and takes that back with the mark.
func (r *podWriter) setCosts(ctx context.Context, o *owner) error {
	if o == nil || o.ordered || r.retry {
		return nil
	}
	for _, pod := range r.podOf {
		mark := markOf(pod)
		want, has := mark.Reason == lifecycle.DrainScaleDown, pod.Annotations[corev1.PodDeletionCost] == lowestCost
		if want == has || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		var value any
		if want {
			value = lowestCost
		}
		if err := r.patch(ctx, string(pod.UID), nil, map[string]any{corev1.PodDeletionCost: value}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deletion cost of pod %s: %w", pod.Name, err)
		}
	}
	return nil
}
