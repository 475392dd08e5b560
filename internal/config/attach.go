package config

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// PolicyTargets are the pools that a policy names, in the order of spec.targetRefs. They are in its namespace. A gateway's pool
// object has the name of the pool that it is made for, so both groups mean the same pool.
func PolicyTargets(p *v1alpha1.RoutingPolicy) []types.NamespacedName {
	all := make([]types.NamespacedName, len(p.Spec.TargetRefs))
	for i, ref := range p.Spec.TargetRefs {
		all[i] = types.NamespacedName{Namespace: p.Namespace, Name: ref.Name}
	}
	return all
}

// PolicyWinners finds the policy of each pool that is targeted: the only one that targets it. Where several do, the oldest wins.
// Policies without an age were read from files: there the one that inForce names for the pool stays. Otherwise the first by
// name wins. The order of policies does not matter. Pickers apply the result and the operator writes it into status.
func PolicyWinners(policies []*v1alpha1.RoutingPolicy,
	inForce map[types.NamespacedName]string) map[types.NamespacedName]*v1alpha1.RoutingPolicy {
	winners := map[types.NamespacedName]*v1alpha1.RoutingPolicy{}
	for _, p := range policies {
		for _, target := range PolicyTargets(p) {
			if before := winners[target]; before == nil || wins(p, before, inForce[target]) {
				winners[target] = p
			}
		}
	}
	return winners
}

func wins(p, before *v1alpha1.RoutingPolicy, inForce string) bool {
	switch {
	case !p.CreationTimestamp.Equal(&before.CreationTimestamp):
		return p.CreationTimestamp.Before(&before.CreationTimestamp)
	case p.CreationTimestamp.IsZero() && (p.Name == inForce || before.Name == inForce):
		return p.Name == inForce
	}
	return p.Name < before.Name
}
