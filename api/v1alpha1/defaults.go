package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Defaults live in the schema. What stands here is what a schema cannot say: an object whose absence means something
// (a rollout is refused for selected pods, a member for another type) has no default there, though the fields in it
// do. WithDefaults fills such an object in where its absence means all defaults, with the values that the schema has
// for an empty one. It changes nothing in place: the receiver can be shared with a cache.

// Defaults of single fields, as the schema has them. Code that can meet an object without them, such as one whose parent object
// is absent, uses these.
const (
	DefaultMinReplicas             int32 = 1    // autoscaling.minReplicas
	DefaultUtilizationFloorPercent int32 = 40   // autoscaling.down.utilizationFloorPercent
	DefaultDownStabilization       int32 = 300  // autoscaling.down.stabilizationSeconds
	DefaultDrainDeadlineSeconds    int32 = 600  // drain.deadlineSeconds
	DefaultPickerReplicas          int32 = 2    // picker.replicas
	DefaultSamplePercent           int32 = 100  // picker.tracing.samplePercent
	DefaultBatchMilliseconds       int32 = 5    // engine.events.reporter.batchMilliseconds
	DefaultHTTPPort                int32 = 8000 // engine.ports.http
)

// DefaultFallbackWithinMilliseconds is rules.fallbackWithinMilliseconds of a ModelRoute. The schema has no default there, because
// the field is only for rules with a fallback.
const DefaultFallbackWithinMilliseconds int32 = 10_000

// WithDefaults returns the spec with the rollout of a pool that owns its pods filled in. It shares everything else with
// the receiver.
func (s *InferencePoolSpec) WithDefaults() InferencePoolSpec {
	out := *s
	if out.Template != nil && out.Rollout == nil {
		out.Rollout = &Rollout{
			Type:                    RollingUpdate,
			MaxSurge:                ptr.To(intstr.FromInt32(1)),
			MaxUnavailable:          ptr.To(intstr.FromInt32(0)),
			ProgressDeadlineSeconds: 1800,
			RevisionHistoryLimit:    3,
		}
	}
	return out
}

// WithDefaults returns the strategy with the member of its type filled in, where the type has one. It shares a member
// that is set with the receiver.
func (s *Strategy) WithDefaults() Strategy {
	out := *s
	switch out.Type {
	case StrategyMarginalCost:
		fill(&out.MarginalCost, MarginalCost{DecodeHarmPercent: ptr.To[int32](100)})
	case StrategyStickyLeastLoaded:
		fill(&out.StickyLeastLoaded, StickyLeastLoaded{PrefixTokens: 64})
	case StrategyLongestPrefix:
		fill(&out.LongestPrefix, LongestPrefix{
			Variant: LongestPrefixGuarded, MinMatchPercent: ptr.To[int32](25), MaxLoadPercent: 150,
		})
	case StrategyLMetric:
		fill(&out.LMetric, LMetric{Variant: LMetricPlusOne})
	case StrategyUnified:
		fill(&out.Unified, Unified{MinHitPercent: ptr.To[int32](50), MaxLoadPercent: 200})
	case StrategyRendezvous:
		fill(&out.Rendezvous, Rendezvous{Key: RendezvousBySession, PrefixTokens: 1024})
	case StrategyApproximatePrefix:
		fill(&out.ApproximatePrefix, ApproximatePrefix{
			ChunkBytes: 64, MaxChunks: 256, ChunksPerEndpoint: 31250,
			PrefixWeight: ptr.To[int32](3), QueueWeight: ptr.To[int32](2), KVWeight: ptr.To[int32](2),
		})
	case StrategyLeastPendingWork, StrategySticky, StrategyLeastLoad, StrategyRoundRobin, StrategyRandom:
		// No parameters.
	}
	return out
}

func fill[T any](member **T, defaults T) {
	if *member == nil {
		*member = &defaults
	}
}
