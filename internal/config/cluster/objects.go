package cluster

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// scope is which pools of a namespace are followed: one pool, or those that name a fleet, or are served by it by their status.
type scope struct {
	namespace   string
	pool, fleet string // one of them is empty
}

// has reports whether a pool is of the scope.
func (s *scope) has(p *v1alpha1.InferencePool) bool {
	switch {
	case p.Namespace != s.namespace:
		return false
	case s.fleet == "":
		return p.Name == s.pool
	}
	// The operator changes the status when the pickers serve to which a pool that leaves moves.
	return p.Spec.Picker.FleetName() == s.fleet || p.Status.Picker.FleetName == s.fleet
}

// of are the pools of the scope, by name.
func (s *scope) of(pools []*v1alpha1.InferencePool) map[string]*v1alpha1.InferencePool {
	all := map[string]*v1alpha1.InferencePool{}
	for _, p := range pools {
		if s.has(p) {
			all[p.Name] = p
		}
	}
	return all
}

// objectsOf returns the objects of the pools that are served: the pools, the policies that target one, without their other
// targets, and their pods. pools are all of the namespace, because a pod belongs to the oldest that selects it. The arguments are
// not changed.
func objectsOf(served func(pool string) bool, pools []*v1alpha1.InferencePool, policies []*v1alpha1.RoutingPolicy,
	pods []*corev1.Pod) config.Objects {
	var o config.Objects
	for _, p := range pools {
		if served(p.Name) {
			o.Pools = append(o.Pools, p)
		}
	}
	for _, p := range policies {
		var refs []v1alpha1.PolicyTarget
		for _, ref := range p.Spec.TargetRefs {
			if served(ref.Name) {
				refs = append(refs, ref)
			}
		}
		if len(refs) == 0 {
			continue
		}
		ours := *p
		ours.Spec.TargetRefs = refs
		o.Policies = append(o.Policies, &ours)
	}
	owners := config.NewOwners(pools)
	for _, pod := range pods {
		if owner := owners.PoolOf(pod); owner != nil && served(owner.Name) {
			o.Pods = append(o.Pods, pod)
		}
	}
	return o
}

// keySecret is the Secret with the root of a pool's keys, where the pool names none.
const keySecret = "-key"

// reference is a Secret or a ConfigMap that an object names.
type reference struct {
	configMap bool
	name      string
}

// referred are those that the objects name.
func referred(o *config.Objects) map[reference]bool {
	all := map[reference]bool{}
	for _, p := range o.Pools {
		root := p.Spec.KeySpace.SecretRef.Name
		if root == "" {
			root = p.Name + keySecret
		}
		all[reference{name: root}] = true
		for _, name := range append(p.Spec.Engine.SecretNames(), p.Spec.Model.Tokenizer.SecretNames()...) {
			all[reference{name: name}] = true
		}
		if v := p.Spec.Model.Tokenizer.Volume; v != nil && v.ConfigMap.Name != "" {
			all[reference{configMap: true, name: v.ConfigMap.Name}] = true
		}
	}
	for _, p := range o.Policies {
		for _, name := range p.Spec.SecretNames() {
			all[reference{name: name}] = true
		}
	}
	return all
}
