package routingpolicy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// PoolStatus is the part of a pool's status about its policy: the policy and the generation that all replicas of the
// picker follow, and a condition, nil where no policy applies. While replicas differ, or none reports, the
// status keeps its value, unless that policy no longer applies.
func PoolStatus(pool *v1alpha1.InferencePool, winner *v1alpha1.RoutingPolicy,
	view *operatorfeed.View) (v1alpha1.PolicyInForce, *metav1.Condition) {
	if winner == nil {
		return v1alpha1.PolicyInForce{}, nil
	}
	affected := status.PolicyAffected.True("PolicyAffected", "RoutingPolicy %s applies%s", winner.Name, crossing(pool, winner))
	affected.ObservedGeneration = pool.Generation
	inForce := v1alpha1.PolicyInForce{}
	if before := pool.Status.RoutingPolicy; before.Name == winner.Name {
		inForce = before
	}
	// The generation that all follow is the lowest; it is valid only if all replicas follow the policy.
	lowest, all := int64(0), len(view.Replicas) > 0 && len(view.Silent) == 0
	for i := range view.Replicas {
		r := &view.Replicas[i]
		all = all && r.PolicyName == winner.Name
		if i == 0 || r.PolicyGeneration < lowest {
			lowest = r.PolicyGeneration
		}
	}
	if all && lowest > 0 {
		inForce = v1alpha1.PolicyInForce{Name: winner.Name, Generation: lowest}
	}
	return inForce, &affected
}

// crossing says that a policy's islandCrossing has no effect, if so.
func crossing(pool *v1alpha1.InferencePool, winner *v1alpha1.RoutingPolicy) string {
	rule := winner.Spec.Guards.IslandCrossing
	if rule == "" || rule == v1alpha1.CrossWhenCheaper || pool.Spec.Picker.Mode == v1alpha1.PickerExternal || pool.Spec.Picker.Island != "" {
		return ""
	}
	return "; its guards.islandCrossing " + string(rule) + " has no effect, because the pool does not set picker.island"
}
