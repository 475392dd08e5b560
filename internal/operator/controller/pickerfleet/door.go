package pickerfleet

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// What gateways see of a fleet is one pool of theirs, and its selector has labels to match and no alternatives. So the pods of the
// engines of all pools of the fleet get a label. It is set and removed here, on pods as they are: in a pool's template it would be another
// template, and replace the engines. A pod that has the label and is of no pool of the fleet loses it, whatever has set it: a gateway that
// does not reach the endpoint that was picked takes any pod that the selector selects.

// isDoor reports whether gateways see objects of a kind. Pickers serve their own clients without them.
func isDoor(gvk schema.GroupVersionKind) bool {
	return gvk == resources.GIEKind || gvk == resources.RouteKind
}

// showsEngines reports whether gateways select the fleet's engines.
func (r *scope) showsEngines() bool {
	return r.config.GIE && r.fleet.Spec.Gateway.Mode != v1alpha1.GatewayDisabled
}

// labelEngines sets the fleet's label on the engines of its pools, and removes it from all other pods.
func (r *scope) labelEngines(ctx context.Context) error {
	if !r.showsEngines() {
		return r.label(ctx, r.key, func(*corev1.Pod) bool { return false }, true)
	}
	owners := config.NewOwners(r.neighbours)
	return r.label(ctx, r.key, func(pod *corev1.Pod) bool {
		pool := owners.PoolOf(pod)
		return pool != nil && serves(r.key.Name, pool)
	}, false)
}

// label sets the label of a fleet on the pods that shall have it, and removes it from others. Labelled: no other pod has to be looked at.
func (r *Reconciler) label(ctx context.Context, fleet types.NamespacedName, shall func(*corev1.Pod) bool, labelled bool) error {
	set := resources.FleetEngines(fleet.Name)
	options := []client.ListOption{client.InNamespace(fleet.Namespace), client.UnsafeDisableDeepCopy}
	if labelled {
		options = append(options, client.HasLabels{v1alpha1.LabelFleetPrefix + fleet.Name})
	}
	var pods corev1.PodList
	// The pods are shared with the cache and only read.
	if err := r.Client.List(ctx, &pods, options...); err != nil {
		return fmt.Errorf("listing pods of %s: %w", fleet.Namespace, err)
	}
	var refused error
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !pod.DeletionTimestamp.IsZero() {
			continue
		}
		labels := map[string]any{}
		for key, value := range set {
			got, has := pod.Labels[key]
			switch want := shall(pod); {
			case want && got != value:
				labels[key] = value
			case !want && has:
				labels[key] = nil
			}
		}
		if len(labels) == 0 {
			continue
		}
		switch err := r.patchLabels(ctx, pod, labels); {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // its change brings us here again
		case objects.Refused(err):
			refused = fmt.Errorf("labelling pod %s: %w", pod.Name, err)
		default:
			return fmt.Errorf("labelling pod %s: %w", pod.Name, err)
		}
	}
	return refused
}

// patchLabels changes labels of a pod, and of no other of its name.
func (r *Reconciler) patchLabels(ctx context.Context, pod *corev1.Pod, labels map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "labels": labels}})
	if err != nil {
		return err
	}
	return r.Client.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}},
		client.RawPatch(types.MergePatchType, patch))
}

// passDoor keeps an error with which the API server refuses what gateways see, and returns any other.
func (r *scope) passDoor(err error) error {
	if !objects.Refused(err) {
		return err
	}
	r.door.Refused = append(r.door.Refused, err.Error())
	r.wakeAt(r.now.Add(refusedEvery))
	return nil
}

// gatewayAccepted judges whether gateways send requests to the fleet.
func (r *scope) gatewayAccepted(ctx context.Context) (metav1.Condition, error) {
	if different := r.fleet.DifferentEngines(); different != "" {
		r.door.Remarks = append(r.door.Remarks, different)
	}
	key := types.NamespacedName{Namespace: r.key.Namespace, Name: resources.NamesOfFleet(r.key.Name).Pickers}
	gateway, want := resources.FleetGateway(r.fleet.PickerFleet), resources.FleetPool(r.fleet)
	return inferencepool.JudgeGateway(ctx, r.Client, r.config, key, gateway, want, r.door)
}

// optionalKinds are those that a fleet is reconciled for.
func (r *Reconciler) optionalKinds(c resources.Config) []inferencepool.OptionalKind {
	kinds := []inferencepool.OptionalKind{
		{GVK: resources.GIEKind, There: c.GIE, Of: r.ofDoor}, {GVK: resources.RouteKind, There: c.Routes, Of: r.ofDoor},
	}
	for _, gvk := range c.Traffic.Kinds() {
		kinds = append(kinds, inferencepool.OptionalKind{GVK: gvk, There: true, Of: r.ofDoor})
	}
	return kinds
}

// ofDoor is the fleet whose object it is, or whose object has its name.
func (r *Reconciler) ofDoor(ctx context.Context, o client.Object) []reconcile.Request {
	if name := o.GetLabels()[resources.LabelFleet]; name != "" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	}
	var list v1alpha1.PickerFleetList
	// The fleets are shared with the cache and only read.
	if err := r.Client.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // from a cache that has begun: it cannot fail
	}
	for i := range list.Items {
		if fleet := &list.Items[i]; resources.NamesOfFleet(fleet.Name).Pickers == o.GetName() {
			return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(fleet)}}
		}
	}
	return nil
}

// ofPod are the fleets whose label a pod has, and those of its pool.
func (r *Reconciler) ofPod(ctx context.Context, o client.Object) []types.NamespacedName {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Labels[resources.LabelComponent] == resources.ComponentPicker {
		return nil
	}
	pools, err := r.allPools(ctx, pod.Namespace)
	if err != nil {
		return nil // from a cache that has begun: it cannot fail
	}
	var fleets []types.NamespacedName
	if pool := config.PoolOf(pod, pools); pool != nil {
		fleets = ofPool(ctx, pool)
	}
	for key := range pod.Labels {
		if name, ok := fleetOf(key); ok {
			fleets = append(fleets, types.NamespacedName{Namespace: pod.Namespace, Name: name})
		}
	}
	return fleets
}
