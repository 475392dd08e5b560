package cluster

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// routeWait is how long the first state waits for the routes, once the other objects are known. It does not wait if the API server
// has no definition of routes, or does not let the picker read them.
const routeWait = 10 * time.Second

// routes are the ModelRoutes of a fleet's namespace. The definition can be missing, where an older chart or no right for the picker is
// installed: then there are none, until it comes.
type routes struct {
	cache.SharedIndexInformer
	log     logr.Logger
	refused context.Context // ended when the API server has answered that there is no such kind, or no right
	refuse  context.CancelFunc
}

func newRoutes(i cache.SharedIndexInformer, log logr.Logger) *routes {
	r := &routes{SharedIndexInformer: i, log: log}
	r.refused, r.refuse = context.WithCancel(context.Background())
	return r
}

// broken handles a list or a watch that has failed. What it has brought stays.
func (r *routes) broken(_ context.Context, _ *cache.Reflector, err error) {
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		r.log.V(1).Info("Watching routes failed, keeping the last known objects", "reason", err.Error())
		return
	}
	if r.refused.Err() == nil {
		r.log.Info("The API server refuses ModelRoutes: requests go by the names of pools alone until it does not", "reason", err.Error())
	}
	r.refuse()
}

// wait returns when the routes are known, or cannot be soon.
func (r *routes) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, routeWait)
	defer cancel()
	defer context.AfterFunc(r.refused, cancel)()
	if !cache.WaitForCacheSync(ctx.Done(), r.HasSynced) && r.refused.Err() == nil {
		r.log.Info("Reading ModelRoutes takes long: requests go by the names of pools alone until it has ended")
	}
}

// routes are those of the store.
func (r *reader) routes(store cache.Store) (all []*v1alpha1.ModelRoute) {
	for _, o := range store.List() {
		raw := o.(*unstructured.Unstructured)
		if value, ok := r.read(raw, func() (any, error) { return crdadmission.Route(raw) }); ok {
			all = append(all, value.(*v1alpha1.ModelRoute))
		}
	}
	return all
}

// elsewhere are the pools of the namespace that other pickers serve, with what is said of them.
func (s *Source) elsewhere(pools []*v1alpha1.InferencePool) map[types.NamespacedName]string {
	all := map[types.NamespacedName]string{}
	for _, p := range pools {
		if !s.isServed(p.Name) {
			all[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = config.OtherPickers(p)
		}
	}
	return all
}
