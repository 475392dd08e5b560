package pickerfleet

import (
	"context"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// writeStatus writes the status, once, when it differs.
func (r *scope) writeStatus(ctx context.Context) error {
	was := r.fleet.PickerFleet
	next := was.DeepCopy()
	s := &next.Status
	s.ObservedGeneration = ptr.To(was.Generation)
	s.ReadyReplicas, s.Pools, s.Address = ptr.To(r.ready()), ptr.To(int32(min(len(r.fleet.Pools), math.MaxInt32))), r.address()
	gateway, err := r.gatewayAccepted(ctx)
	if err != nil {
		return err
	}
	for _, c := range []metav1.Condition{r.available(), r.programmed(), gateway} {
		c.ObservedGeneration, c.LastTransitionTime = was.Generation, metav1.NewTime(r.now.Truncate(1e9))
		meta.SetStatusCondition(&s.Conditions, c)
	}
	if equality.Semantic.DeepEqual(was.Status, next.Status) {
		return nil
	}
	err = r.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		r.wakeAt(r.now.Add(gathered))
		return nil
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("writing the status of fleet %s: %w", r.key, err)
	}
	return nil
}

func (r *scope) ready() int32 {
	if r.pickers == nil {
		return 0
	}
	return r.pickers.Status.ReadyReplicas
}

// address is that of the Service for clients; empty if the pickers have no proxy.
func (r *scope) address() string {
	if r.fleet.Spec.Proxy == v1alpha1.Disabled {
		return ""
	}
	scheme := "http://"
	if r.fleet.Spec.ProxyTLS.SecretRef.Name != "" {
		scheme = "https://"
	}
	return scheme + resources.Host(resources.NamesOfFleet(r.key.Name).Pickers, r.key.Namespace)
}

// available judges the pickers as PickerAvailable judges those of a pool.
func (r *scope) available() metav1.Condition {
	want, ready := r.fleet.Spec.Replicas, r.ready()
	if want == 0 {
		want = v1alpha1.DefaultPickerReplicas
	}
	if reason, message := r.problems(); reason != "" {
		return status.Available.False(reason, "%d of %d replicas are ready; %s", ready, want, message)
	}
	return inferencepool.JudgePickers(status.Available, want, r.pickers, inferencepool.PickerFailure(r.pickers, r.stuck, r.trouble), r.after)
}

// programmed judges whether all pickers serve all pools, each as it is now. The first pool for which this is not so is named.
func (r *scope) programmed() metav1.Condition {
	if r.ready() == 0 {
		return status.Programmed.Unknown(status.ReasonNoPicker, "no picker of the fleet is ready")
	}
	behind, name, why := 0, "", ""
	for _, pool := range r.fleet.Pools {
		if lacks := r.lacks(pool); lacks != "" {
			behind++
			if name == "" {
				name, why = pool.Name, lacks
			}
		}
	}
	if behind > 0 {
		return status.Programmed.False(status.ReasonReconciling, "%d of %d pools are served; pool %s is not: %s",
			len(r.fleet.Pools)-behind, len(r.fleet.Pools), name, why)
	}
	return status.Programmed.True(status.ReasonProgrammed, "%d pools are served", len(r.fleet.Pools))
}

// lacks is why not all pickers serve a pool as it is; empty if they do. Pickers of its own that a moving pool still has count, too.
func (r *scope) lacks(pool *v1alpha1.InferencePool) string {
	if unfit := resources.Unfit(pool); unfit != "" {
		return unfit
	}
	view := r.Pickers.Known(client.ObjectKeyFromObject(pool))
	if f, refused := view.Refused(pool.Generation); refused {
		return f.Message
	}
	if len(view.Silent) > 0 {
		return fmt.Sprintf("%d of %d replicas do not report that they serve it", len(view.Silent), view.Live())
	}
	late := 0
	for i := range view.Replicas {
		if view.Replicas[i].PoolGeneration < pool.Generation {
			late++
		}
	}
	switch {
	case len(view.Replicas) == 0:
		return "no replica has reported it yet"
	case late > 0:
		return fmt.Sprintf("%d of %d replicas serve a version of before", late, len(view.Replicas))
	}
	return ""
}
