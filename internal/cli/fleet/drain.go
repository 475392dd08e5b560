package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// member reads a pod and its pool.
func member(ctx context.Context, c client.Reader, name types.NamespacedName) (*corev1.Pod, *v1alpha1.InferencePool, error) {
	pod := &corev1.Pod{}
	switch err := c.Get(ctx, name, pod); {
	case apierrors.IsNotFound(err):
		return nil, nil, refuse("there is no pod %s in the namespace %s", name.Name, name.Namespace)
	case err != nil:
		return nil, nil, err
	}
	pools, err := Pools(ctx, c, name.Namespace)
	if err != nil {
		return nil, nil, err
	}
	all := make([]*v1alpha1.InferencePool, len(pools))
	for i := range pools {
		all[i] = &pools[i]
	}
	pool := config.OldestOf(pod, all)
	if pool == nil {
		return nil, nil, refuse("no pool of the namespace %s has the pod %s", name.Namespace, name.Name)
	}
	return pod, pool, nil
}

// Drain is how a pod is to go.
type Drain struct {
	// Replace it: it is drained and deleted, at the latest at the deadline. Else it only gets no more requests.
	Replace bool
	// Within what time; the pool's drain deadline if zero.
	Within time.Duration
	Now    time.Time
}

// Marked is what was done to a pod.
type Marked struct {
	Pod  string `json:"pod"`
	Pool string `json:"pool"`
	// Drain is the mark, empty when there is none; Deadline the time when the pod is deleted at the latest.
	Drain    string     `json:"drain,omitempty"`
	Deadline *time.Time `json:"deadline,omitempty"`
	// Changed is false where nothing was to do.
	Changed bool `json:"changed"`
}

// Names returns the names of the objects.
func (m *Marked) Names() []string { return []string{"pod/" + m.Pod} }

// Mark sets the mark on a pod, by which pickers choose it no more.
func Mark(ctx context.Context, c client.Client, name types.NamespacedName, d Drain) (out *Marked, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		out, err = mark(ctx, c, name, d)
		return err
	})
	return out, err
}

func mark(ctx context.Context, c client.Client, name types.NamespacedName, d Drain) (*Marked, error) {
	pod, pool, err := member(ctx, c, name)
	if err != nil {
		return nil, err
	}
	before, marked := pod.Labels[v1alpha1.LabelDrain]
	switch {
	case marked && before != lifecycle.DrainManual && before != "":
		return nil, refuse("the pod %s drains already, for %s", pod.Name, before)
	case pod.DeletionTimestamp != nil:
		return nil, refuse("the pod %s is being deleted", pod.Name)
	case d.Replace && pool.Spec.Template == nil:
		return nil, refuse("pod %s does not belong to pool %s, which cannot replace it: drain it without --replace, and delete it yourself",
			pod.Name, pool.Name)
	}
	out := &Marked{Pod: pod.Name, Pool: pool.Name, Drain: lifecycle.DrainManual}
	var deadline any // null takes a deadline away
	if d.Replace {
		within := d.Within
		if within == 0 {
			within = podtemplate.Deadline(pool)
		}
		at := d.Now.Add(within).UTC().Truncate(time.Second)
		out.Deadline, deadline = &at, at.Format(time.RFC3339)
	}
	if _, dated := pod.Annotations[v1alpha1.AnnotationDrainDeadline]; marked && !d.Replace && !dated {
		return out, nil
	}
	out.Changed = true
	return out, patchPod(ctx, c, pod, lifecycle.DrainManual, deadline)
}

// Unmark takes the mark off a pod, which gets requests again.
func Unmark(ctx context.Context, c client.Client, name types.NamespacedName) (out *Marked, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		out, err = unmark(ctx, c, name)
		return err
	})
	return out, err
}

func unmark(ctx context.Context, c client.Client, name types.NamespacedName) (*Marked, error) {
	pod, pool, err := member(ctx, c, name)
	if err != nil {
		return nil, err
	}
	out := &Marked{Pod: pod.Name, Pool: pool.Name}
	reason, marked := pod.Labels[v1alpha1.LabelDrain]
	switch {
	case reason == lifecycle.DrainScaleDown:
		return nil, refuse("the operator drains the pod %s because the pool %s shrinks, and would do so again: raise the pool's size", pod.Name,
			pool.Name)
	case reason == lifecycle.DrainRollout:
		return nil, refuse("the operator drains the pod %s for a rollout, and would do so again: kubectl kvasir rollout pause %s, or apply the old template", pod.Name, pool.Name)
	case reason == lifecycle.DrainNode:
		return nil, refuse("the operator drains the pod %s because the node %s goes away, and would do so again: kubectl uncordon %s", pod.Name,
			pod.Spec.NodeName, pod.Spec.NodeName)
	case pod.DeletionTimestamp != nil:
		return nil, refuse("the pod %s is being deleted", pod.Name)
	case !marked:
		return out, nil
	}
	out.Changed = true
	return out, patchPod(ctx, c, pod, nil, nil)
}

// patchPod sets mark and deadline, if the pod is still what was read.
func patchPod(ctx context.Context, c client.Client, pod *corev1.Pod, mark, deadline any) error {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pod.ResourceVersion,
		"labels":          map[string]any{v1alpha1.LabelDrain: mark},
		"annotations":     map[string]any{v1alpha1.AnnotationDrainDeadline: deadline},
	}})
	if err == nil {
		err = c.Patch(ctx, pod, client.RawPatch(types.MergePatchType, raw))
	}
	if err != nil {
		return fmt.Errorf("marking the pod %s: %w", pod.Name, err)
	}
	return nil
}
