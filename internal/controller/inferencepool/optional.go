package inferencepool

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kvasir-dev/kvasir/internal/children"
)

// optionalWatches watches gateways' kinds from the first time that the cluster has them. A kind that goes is watched
// on, so that it is seen when it comes again.
type optionalWatches struct {
	controller controller.Controller
	cache      cache.Cache

	mu      sync.Mutex // guards started
	started map[schema.GroupVersionKind]bool
}

// keep begins the watches that are possible now. Objects of these kinds have their pool's name.
func (w *optionalWatches) keep(c children.Config) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, kind := range []struct {
		gvk   schema.GroupVersionKind
		there bool
	}{{children.GIEKind, c.GIE}, {children.RouteKind, c.Routes}} {
		if !kind.there || w.started[kind.gvk] {
			continue
		}
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(kind.gvk)
		if err := w.controller.Watch(source.Kind[client.Object](w.cache, o, &handler.EnqueueRequestForObject{})); err != nil {
			return fmt.Errorf("watching %s: %w", kind.gvk.GroupKind(), err)
		}
		w.started[kind.gvk] = true
	}
	return nil
}
