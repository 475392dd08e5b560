package inferencepool

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// OptionalWatches watches gateways' kinds from the first time that the cluster has them. It keeps watching a kind that was
// removed, so that it notices when the kind is installed again.
type OptionalWatches struct {
	controller controller.Controller
	cache      cache.Cache

	mu      sync.Mutex // guards started
	started map[schema.GroupVersionKind]bool
}

// NewOptionalWatches returns the watches of a controller; none has begun.
func NewOptionalWatches(c controller.Controller, in cache.Cache) *OptionalWatches {
	return &OptionalWatches{controller: c, cache: in, started: map[schema.GroupVersionKind]bool{}}
}

// OptionalKind is a kind that can be watched if the cluster has it, and which objects to reconcile when one of it changes.
type OptionalKind struct {
	GVK   schema.GroupVersionKind
	There bool
	Of    handler.MapFunc
}

// Keep begins the watches that are possible now.
func (w *OptionalWatches) Keep(kinds []OptionalKind) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, kind := range kinds {
		if !kind.There || w.started[kind.GVK] {
			continue
		}
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(kind.GVK)
		if err := w.controller.Watch(source.Kind[client.Object](w.cache, o, handler.EnqueueRequestsFromMapFunc(kind.Of))); err != nil {
			return fmt.Errorf("watching %s: %w", kind.GVK.GroupKind(), err)
		}
		w.started[kind.GVK] = true
	}
	return nil
}

// optionalKinds are those that a pool is reconciled for.
func (r *Reconciler) optionalKinds(c resources.Config) []OptionalKind {
	kinds := []OptionalKind{
		{resources.GIEKind, c.GIE, r.ofGatewayPool}, {resources.RouteKind, c.Routes, ofRoute},
		{resources.ProvisioningKind, c.Provisioning, ofInstance},
	}
	for _, gvk := range c.Traffic.Kinds() {
		kinds = append(kinds, OptionalKind{gvk, true, ofInstance})
	}
	return kinds
}

// ofGatewayPool are the pool of the name, and those of the fleet whose pool it is.
func (r *Reconciler) ofGatewayPool(ctx context.Context, o client.Object) []reconcile.Request {
	return append(r.ofFleet(ctx, o), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
}

// ofInstance is the pool that an object's label names.
func ofInstance(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[labelInstance]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}
