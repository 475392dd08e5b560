package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Defaults live in the schema. What stands here is what a schema cannot say: an object whose absence means something
// (a rollout is refused for selected pods, a member for another type) has no default there, though the fields in it
// do. Complete fills such an object in where its absence means all defaults, with the same values as the schema has
// for an empty one.

// Complete fills in the rollout of a pool that owns its pods.
func (s *InferencePoolSpec) Complete() {
	if s.Template != nil && s.Rollout == nil {
		s.Rollout = &Rollout{
			Type:                    RollingUpdate,
			MaxSurge:                ptr.To(intstr.FromInt32(1)),
			MaxUnavailable:          ptr.To(intstr.FromInt32(0)),
			ProgressDeadlineSeconds: 1800,
			RevisionHistoryLimit:    3,
		}
	}
}

// Complete fills in the members of the strategy and of the shadows.
func (s *RoutingPolicySpec) Complete() {
	s.Strategy.Complete()
	for i := range s.Shadow {
		s.Shadow[i].Strategy.Complete()
	}
}

// Complete fills in the member of the strategy's type, where it has one.
func (s *Strategy) Complete() {
	switch s.Type {
	case StrategyMarginalCost:
		complete(&s.MarginalCost, MarginalCost{DecodeHarmPercent: ptr.To[int32](100)})
	case StrategyStickyLeastLoaded:
		complete(&s.StickyLeastLoaded, StickyLeastLoaded{PrefixTokens: 64})
	case StrategyLongestPrefix:
		complete(&s.LongestPrefix, LongestPrefix{
			Variant: LongestPrefixGuarded, MinMatchPercent: ptr.To[int32](25), MaxLoadPercent: 150,
		})
	case StrategyLMetric:
		complete(&s.LMetric, LMetric{Variant: LMetricPlusOne})
	case StrategyUnified:
		complete(&s.Unified, Unified{MinHitPercent: ptr.To[int32](50), MaxLoadPercent: 200})
	case StrategyRendezvous:
		complete(&s.Rendezvous, Rendezvous{Key: RendezvousBySession, PrefixTokens: 1024})
	case StrategyApproximatePrefix:
		complete(&s.ApproximatePrefix, ApproximatePrefix{
			ChunkBytes: 64, MaxChunks: 256, ChunksPerEndpoint: 31250,
			PrefixWeight: ptr.To[int32](3), QueueWeight: ptr.To[int32](2), KVWeight: ptr.To[int32](2),
		})
	case StrategyLeastPendingWork, StrategySticky, StrategyLeastLoad, StrategyRoundRobin, StrategyRandom:
		// No parameters.
	}
}

func complete[T any](member **T, defaults T) {
	if *member == nil {
		*member = &defaults
	}
}
