// Package modelroute writes the status of ModelRoutes: whether a route is applied, and whether the pools that it names exist and are
// of one fleet. Nothing depends on it: pickers of fleets read routes themselves, and decide by the same rule (RefusedRoutes of
// package config).
//
// A route that is created, changed or deleted can have any other of its namespace accepted or refused, so that a request of the
// controller is for a namespace: it decides about all routes in one pass and writes those whose status has changed.
package modelroute

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// othersAfter is when routes that another installation of the operator might have left are looked at again.
const othersAfter = 30 * time.Second

// Others finds pools that another installation of the operator manages: it writes the status of their routes.
type Others interface {
	ManagesPool(ctx context.Context, pool types.NamespacedName) (bool, error)
}

// Reconciler writes the status of routes.
type Reconciler struct {
	// Client reads routes and pools from a cache and patches status.
	Client client.Client
	Clock  clock.PassiveClock
	// Others is nil where there can be no other installation.
	Others Others
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("modelroute").
		Watches(&v1alpha1.ModelRoute{}, handler.EnqueueRequestsFromMapFunc(namespaceOf), changed).
		Watches(&v1alpha1.InferencePool{}, handler.EnqueueRequestsFromMapFunc(namespaceOf), changed).
		Complete(r)
}

// namespaceOf is the request for an object's namespace.
func namespaceOf(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace()}}}
}

// Reconcile brings the status of the routes of a namespace up to date.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	namespace := request.Namespace
	routes, err := r.routes(ctx, namespace)
	if err != nil || len(routes) == 0 {
		return reconcile.Result{}, err
	}
	pools, err := r.pools(ctx, namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	refused, now := config.RefusedRoutes(routes, nil), metav1.NewTime(r.Clock.Now())
	managed := map[string]bool{} // by others, by pool
	var result reconcile.Result
	var failed []error
	for _, route := range routes {
		switch yields, err := r.yields(ctx, route, managed); {
		case err != nil:
			failed = append(failed, err)
			continue
		case yields:
			result.RequeueAfter = othersAfter
			continue
		}
		next := route.DeepCopy()
		next.Status = routeStatus(route, refused[route], pools, now)
		if equality.Semantic.DeepEqual(route.Status, next.Status) {
			continue
		}
		patch := client.MergeFromWithOptions(route, client.MergeFromWithOptimisticLock{})
		if err := r.Client.Status().Patch(ctx, next, patch); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("writing the status of route %s/%s: %w", namespace, route.Name, err))
		}
	}
	if len(failed) > 0 {
		return reconcile.Result{}, errors.Join(failed...)
	}
	return result, nil
}

func (r *Reconciler) routes(ctx context.Context, namespace string) ([]*v1alpha1.ModelRoute, error) {
	var list v1alpha1.ModelRouteList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing routes of %s: %w", namespace, err)
	}
	all := make([]*v1alpha1.ModelRoute, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return all, nil
}

// pools of a namespace, by name.
func (r *Reconciler) pools(ctx context.Context, namespace string) (map[string]*v1alpha1.InferencePool, error) {
	var list v1alpha1.InferencePoolList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing pools of %s: %w", namespace, err)
	}
	all := make(map[string]*v1alpha1.InferencePool, len(list.Items))
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all, nil
}

// yields reports whether another installation of the operator manages a pool of the route. managed is what was found so far.
func (r *Reconciler) yields(ctx context.Context, route *v1alpha1.ModelRoute, managed map[string]bool) (bool, error) {
	if r.Others == nil {
		return false, nil
	}
	for _, p := range config.RoutePools(route) {
		is, known := managed[p.Name]
		if !known {
			var err error
			if is, err = r.Others.ManagesPool(ctx, types.NamespacedName{Namespace: route.Namespace, Name: p.Name}); err != nil {
				return false, err
			}
			managed[p.Name] = is
		}
		if is {
			return true, nil
		}
	}
	return false, nil
}
