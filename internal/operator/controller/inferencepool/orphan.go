package inferencepool

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// A pool that is deleted with --cascade=orphan leaves its pods and child objects. A pool that is applied later under the
// same name adopts them: this is how an immutable field is changed without a restart of engines.

// takenFor is how long a name that was found taken is skipped before it is tried again.
const takenFor = time.Minute

// ownPod reports whether a pod has the name and labels that the operator gives to pods of this pool.
func (r *scope) ownPod(pod *corev1.Pod) bool {
	slot, err := strconv.Atoi(pod.Labels[v1alpha1.LabelSlot])
	return err == nil && pod.Name == lifecycle.PodName(r.key.Name, pod.Labels[v1alpha1.LabelRevision], slot)
}

// mayAdopt reports whether an object of the operator's making without an owner can be adopted. It asks the API server
// whether the pool still exists: a deleted owner would have the object deleted.
func (r *scope) mayAdopt(ctx context.Context, o metav1.Object) (bool, error) {
	if metav1.GetControllerOf(o) != nil || !o.GetDeletionTimestamp().IsZero() {
		return false, nil
	}
	live := &v1alpha1.InferencePool{}
	err := r.Direct.Get(ctx, r.key, live)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading pool %s before adopting %s: %w", r.key, o.GetName(), err)
	}
	return live.UID == r.pool.UID && live.DeletionTimestamp.IsZero(), nil
}

// adoptObject makes the pool the owner of an object, unless the object has changed since it was read.
func (r *scope) adoptObject(ctx context.Context, o client.Object) error {
	was, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("adopting %s: %T is no object", o.GetName(), o)
	}
	o.SetOwnerReferences(append(slices.Clone(o.GetOwnerReferences()), resources.Owner(r.pool)))
	if err := r.Client.Patch(ctx, o, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("adopting %s: %w", o.GetName(), err)
	}
	return nil
}

// adoptPods adopts the orphaned pods, and reports whether there were any: the next decision is made with them.
func (r *podKeeper) adoptPods(ctx context.Context) (bool, error) {
	adopted := false
	for _, pod := range r.orphans {
		may, err := r.mayAdopt(ctx, pod)
		if err != nil {
			return adopted, err
		}
		if !may {
			continue
		}
		owners := append(slices.Clone(pod.OwnerReferences), resources.Owner(r.pool))
		err = newPodWriter(r.scope, r.observed).send(ctx, r.Client, pod, types.MergePatchType, map[string]any{
			"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "ownerReferences": owners},
		})
		switch {
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			r.retry = true
		case err != nil:
			return adopted, fmt.Errorf("adopting pod %s into pool %s: %w", pod.Name, r.key, err)
		default:
			adopted = true
			r.recordEvent(normal, "PodAdopted", pod, "%s had no owner", pod.Name)
		}
	}
	return adopted, nil
}

// nameTaken checks whether another owner has the name of a pod. If so the slot is skipped for a while.
func (r *scope) nameTaken(ctx context.Context, name string) (bool, error) {
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading pod %s, whose name pool %s needs: %w", name, r.key, err)
	}
	if metav1.IsControlledBy(pod, r.pool) {
		return false, nil // the cache lags
	}
	r.memory.taken[name] = r.now
	r.wakeAt(r.now.Add(takenFor))
	return true, nil
}

// takenSlots returns the slots whose pods cannot be made because another object has their names, and records the names.
func (r *podKeeper) takenSlots() []int {
	var slots []int
	for name, at := range r.memory.taken {
		if r.now.Sub(at) >= takenFor {
			delete(r.memory.taken, name)
		}
	}
	foreign := map[string]bool{} // names, and whether people should know
	for name := range r.memory.taken {
		foreign[name] = true
	}
	for _, pod := range r.strangers {
		owner := metav1.GetControllerOf(pod)
		former := owner != nil && owner.Kind == v1alpha1.KindInferencePool && owner.Name == r.key.Name
		foreign[pod.Name] = !former // pods of a pool that had this name are on their way out
	}
	for name, tell := range foreign {
		slot, ok := lifecycle.SlotOf(r.key.Name, name)
		if !ok {
			continue
		}
		slots = append(slots, slot)
		if tell {
			r.problems.taken = append(r.problems.taken, "Pod "+name)
		}
	}
	slices.Sort(slots)
	slices.Sort(r.problems.taken)
	return slots
}
