package pickerfleet

import (
	"context"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// SetupWithManager adds the controller to a manager. changed receives pools whose pickers have news, and fleets to look at.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, changed <-chan event.GenericEvent) error {
	later := func(fleets func(context.Context, client.Object) []types.NamespacedName) handler.EventHandler {
		return gather{fleets}
	}
	own := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[resources.LabelFleet] != "" }))
	b := builder.ControllerManagedBy(mgr).
		Named("pickerfleet").
		For(&v1alpha1.PickerFleet{}, builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{},
			predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.InferencePool{}, later(ofPool), builder.WithPredicates(poolChanges)).
		Watches(&v1alpha1.RoutingPolicy{}, later(r.ofPolicy), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	for _, kind := range []client.Object{
		&appsv1.Deployment{}, &corev1.Service{}, &corev1.ServiceAccount{}, &corev1.ConfigMap{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
		&networkingv1.NetworkPolicy{},
	} {
		b = b.Watches(kind, later(ofLabel), own)
	}
	b = b.Watches(&corev1.Pod{}, later(r.ofPod), builder.WithPredicates(podChanges))
	b = b.Watches(&policyv1.PodDisruptionBudget{}, later(ofLabel), own, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	if changed != nil {
		b = b.WatchesRawSource(source.Channel(changed, later(r.ofNews)))
	}
	c, err := b.Build(r)
	if err != nil {
		return err
	}
	r.optional = inferencepool.NewOptionalWatches(c, mgr.GetCache())
	return nil
}

// poolChanges are the changes of pools that concern a fleet: of the spec, and of the fleet that serves the pool.
var poolChanges = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.InferencePool)
		after, also := e.ObjectNew.(*v1alpha1.InferencePool)
		return ok && also && (before.Generation != after.Generation || before.Status.Picker.FleetName != after.Status.Picker.FleetName ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero())
	},
}

// podChanges are the changes of pods by which they become engines of another pool: they come, or their labels change.
var podChanges = predicate.Funcs{
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc:  func(e event.UpdateEvent) bool { return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) },
}

// fleetOf is the fleet whose engines have a label.
func fleetOf(label string) (name string, ok bool) {
	return strings.CutPrefix(label, v1alpha1.LabelFleetPrefix)
}

// ofPool are the fleets that a pool names, in its spec and its status.
func ofPool(_ context.Context, o client.Object) []types.NamespacedName {
	pool, ok := o.(*v1alpha1.InferencePool)
	if !ok {
		return nil
	}
	var fleets []types.NamespacedName
	for _, name := range []string{pool.Spec.Picker.FleetName(), pool.Status.Picker.FleetName} {
		if name != "" {
			fleets = append(fleets, types.NamespacedName{Namespace: pool.Namespace, Name: name})
		}
	}
	return fleets
}

// ofPolicy are the fleets of the pools that a policy targets.
func (r *Reconciler) ofPolicy(ctx context.Context, o client.Object) []types.NamespacedName {
	policy, ok := o.(*v1alpha1.RoutingPolicy)
	if !ok {
		return nil
	}
	var fleets []types.NamespacedName
	for _, target := range config.PolicyTargets(policy) {
		fleets = append(fleets, r.fleetsOf(ctx, target)...)
	}
	return fleets
}

// ofNews are the fleets of a pool, or the fleet itself.
func (r *Reconciler) ofNews(ctx context.Context, o client.Object) []types.NamespacedName {
	if _, ok := o.(*v1alpha1.PickerFleet); ok {
		return []types.NamespacedName{client.ObjectKeyFromObject(o)}
	}
	return r.fleetsOf(ctx, client.ObjectKeyFromObject(o))
}

func (r *Reconciler) fleetsOf(ctx context.Context, key types.NamespacedName) []types.NamespacedName {
	pool := &v1alpha1.InferencePool{}
	if err := r.Client.Get(ctx, key, pool); err != nil {
		return nil // it will be seen when it is there
	}
	return ofPool(ctx, pool)
}

// ofLabel is the fleet whose object it is.
func ofLabel(_ context.Context, o client.Object) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: o.GetNamespace(), Name: o.GetLabels()[resources.LabelFleet]}}
}

// gather has the fleets of an object looked at a moment later, so that many changes are one look.
type gather struct {
	fleets func(context.Context, client.Object) []types.NamespacedName
}

func (g gather) add(ctx context.Context, o client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if o == nil {
		return
	}
	for _, fleet := range g.fleets(ctx, o) {
		queue.AddAfter(reconcile.Request{NamespacedName: fleet}, gathered)
	}
}

// Create implements handler.EventHandler.
func (g gather) Create(ctx context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	g.add(ctx, e.Object, queue)
}

// Update implements handler.EventHandler.
func (g gather) Update(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	g.add(ctx, e.ObjectOld, queue)
	g.add(ctx, e.ObjectNew, queue)
}

// Delete implements handler.EventHandler.
func (g gather) Delete(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	g.add(ctx, e.Object, queue)
}

// Generic implements handler.EventHandler.
func (g gather) Generic(ctx context.Context, e event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	g.add(ctx, e.Object, queue)
}
