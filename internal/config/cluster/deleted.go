package cluster

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

const (
	// servedAfterDelete is how long a deleted pool is served. A pool that is deleted with --cascade=orphan, to be made again with
	// another immutable field, keeps its pods and pickers: without this, all requests between the two would get 404, and the index
	// would be lost. Pickers that the operator runs for one pool end with a pool that is deleted for good; those of a fleet serve it
	// only while it has pods.
	servedAfterDelete = time.Hour
	// servedAfterLeave is how long a pool is served that has left the fleet, for other pickers: until gateways and clients have
	// changed to them, and a while for connections that are kept.
	servedAfterLeave = 10 * time.Minute
)

// departed is a pool that is served although it is no longer of the scope.
type departed struct {
	since   time.Time // when that was seen
	deleted bool      // else it has left for other pickers
}

// ends is when a departed pool is no longer served.
func (d *departed) ends() time.Time {
	if d.deleted {
		return d.since.Add(servedAfterDelete)
	}
	return d.since.Add(servedAfterLeave)
}

// over reports whether a departed pool must no longer be served.
func (s *Source) over(now time.Time) bool {
	for _, d := range s.departed {
		if !now.Before(d.ends()) {
			return true
		}
	}
	return false
}

// isServed reports whether a pool of the namespace is served.
func (s *Source) isServed(pool string) bool {
	return s.served[pool] != nil || s.bare != nil && pool == s.bare.pool.Name
}

// keep notes which pools are served: those of the scope, and those that were until a short time ago. It returns the pools of the
// namespace, with those that were deleted and are served. Pools that have left for other pickers are served as they are now. A
// departed pool is served no longer once a pool of the scope wants one of its names.
func (s *Source) keep(pools []*v1alpha1.InferencePool, pods []*corev1.Pod, now time.Time) []*v1alpha1.InferencePool {
	present, served := map[string]*v1alpha1.InferencePool{}, s.scope.of(pools)
	for _, p := range pools {
		present[p.Name] = p
	}
	wanted := map[v1alpha1.ModelName]bool{}
	for name, p := range served {
		delete(s.departed, name)
		for _, model := range requestNames(p) {
			wanted[model] = true
		}
	}
	all := slices.Clip(pools)
	var gone []*v1alpha1.InferencePool
	for _, name := range slices.Sorted(maps.Keys(s.served)) {
		if served[name] != nil {
			continue
		}
		last, deleted := s.served[name], present[name] == nil
		if deleted {
			all = append(all, last)
		} else {
			last = present[name]
		}
		if d := s.depart(name, deleted, now); !now.Before(d.ends()) ||
			slices.ContainsFunc(requestNames(last), func(model v1alpha1.ModelName) bool { return wanted[model] }) {
			gone = append(gone, last)
		}
		served[name] = last
	}
	if s.scope.fleet != "" {
		gone = append(gone, withoutPods(all[len(pools):], all, pods)...)
	}
	for _, p := range gone {
		if s.departed[p.Name] != nil { // it is gone for one reason
			s.log.Info("The pool is no longer served", "pool", s.scope.namespace+"/"+p.Name, "deleted", s.departed[p.Name].deleted)
		}
		delete(s.departed, p.Name)
		delete(served, p.Name)
	}
	s.served = served
	return slices.DeleteFunc(slices.Clone(all), func(p *v1alpha1.InferencePool) bool {
		return present[p.Name] == nil && served[p.Name] == nil
	})
}

// depart returns since when a pool is no longer of the scope. If one that has left is deleted then, it counts as deleted.
func (s *Source) depart(name string, deleted bool, now time.Time) *departed {
	d := s.departed[name]
	if d != nil && d.deleted == deleted {
		return d
	}
	d = &departed{since: now, deleted: deleted}
	s.departed[name] = d
	message := "The pool has left the fleet, serving it on for its clients"
	if deleted {
		message = "The pool was deleted, serving it as it was"
	}
	s.log.Info(message, "pool", s.scope.namespace+"/"+name, "until", d.ends().UTC().Format(time.RFC3339))
	return d
}

// withoutPods are those of the pools, among all, that have no pod, except ones that are ending.
func withoutPods(pools, all []*v1alpha1.InferencePool, pods []*corev1.Pod) []*v1alpha1.InferencePool {
	if len(pools) == 0 {
		return nil
	}
	owners, have := config.NewOwners(all), map[string]bool{}
	for _, pod := range pods {
		if owner := owners.PoolOf(pod); owner != nil && pod.DeletionTimestamp == nil {
			have[owner.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(pools), func(p *v1alpha1.InferencePool) bool { return have[p.Name] })
}

// requestNames are the names of a pool that requests can use, as far as the object has them.
func requestNames(p *v1alpha1.InferencePool) []v1alpha1.ModelName {
	return slices.Concat([]v1alpha1.ModelName{p.Spec.Model.Name}, p.Spec.Model.Aliases, p.Spec.Model.Adapters.Names)
}
