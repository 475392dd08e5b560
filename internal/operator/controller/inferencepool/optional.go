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

// optionalWatches watches gateways' kinds from the first time that the cluster has them. It keeps watching a kind that was
// removed, so that it notices when the kind is installed again.
type optionalWatches struct {
	controller controller.Controller
	cache      cache.Cache

	mu      sync.Mutex // guards started
	started map[schema.GroupVersionKind]bool
}

// keep begins the watches that are possible now.
func (w *optionalWatches) keep(c resources.Config) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sameName := handler.TypedEventHandler[client.Object, reconcile.Request](&handler.EnqueueRequestForObject{})
	type optional struct {
		gvk     schema.GroupVersionKind
		there   bool
		handler handler.TypedEventHandler[client.Object, reconcile.Request]
	}
	kinds := []optional{
		{resources.GIEKind, c.GIE, sameName}, {resources.RouteKind, c.Routes, handler.EnqueueRequestsFromMapFunc(ofRoute)},
		{resources.ProvisioningKind, c.Provisioning, handler.EnqueueRequestsFromMapFunc(ofInstance)},
	}
	for _, gvk := range c.Traffic.Kinds() {
		kinds = append(kinds, optional{gvk, true, handler.EnqueueRequestsFromMapFunc(ofInstance)})
	}
	for _, kind := range kinds {
		if !kind.there || w.started[kind.gvk] {
			continue
		}
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(kind.gvk)
		if err := w.controller.Watch(source.Kind[client.Object](w.cache, o, kind.handler)); err != nil {
			return fmt.Errorf("watching %s: %w", kind.gvk.GroupKind(), err)
		}
		w.started[kind.gvk] = true
	}
	return nil
}

// ofInstance is the pool that an object's label names.
func ofInstance(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[labelInstance]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}
