package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// objectsOf returns the objects of one pool: the pool, the policies that target it, without their other targets, and its
// pods. The arguments are not changed.
func objectsOf(pool types.NamespacedName, pools []*v1alpha1.InferencePool, policies []*v1alpha1.RoutingPolicy,
	pods []*corev1.Pod) config.Objects {
	var o config.Objects
	for _, p := range pools {
		if p.Namespace == pool.Namespace && p.Name == pool.Name {
			o.Pools = append(o.Pools, p)
		}
	}
	for _, p := range policies {
		var refs []v1alpha1.PolicyTarget
		for _, ref := range p.Spec.TargetRefs {
			if p.Namespace == pool.Namespace && ref.Name == pool.Name {
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
	for _, pod := range pods {
		if owner := config.PoolOf(pod, pools); owner != nil && owner.Name == pool.Name {
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
		for _, ref := range p.Spec.Admission.Tenants.SecretRefs {
			all[reference{name: ref.Name}] = true
		}
	}
	return all
}
