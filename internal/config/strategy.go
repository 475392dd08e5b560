package config

import (
	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Strategy translates a strategy. An absent member has all its defaults.
func Strategy(s *v1alpha1.Strategy) policy.Config {
	c := policy.Config{Type: policy.Type(s.Type)}
	switch full := s.WithDefaults(); full.Type {
	case v1alpha1.StrategyMarginalCost:
		m := full.MarginalCost
		c.MarginalCost = policy.MarginalCostConfig{
			PriorRate:  float64(m.PriorPrefillTokensPerSecond),
			DecodeHarm: fraction(*m.DecodeHarmPercent),
		}
	case v1alpha1.StrategyStickyLeastLoaded:
		c.StickyLeastLoaded.PrefixTokens = int(full.StickyLeastLoaded.PrefixTokens)
	case v1alpha1.StrategyLongestPrefix:
		m := full.LongestPrefix
		c.LongestPrefix = policy.LongestPrefixConfig{
			Literal:  m.Variant == v1alpha1.LongestPrefixLiteral,
			MinMatch: fraction(*m.MinMatchPercent),
			MaxLoad:  fraction(m.MaxLoadPercent),
		}
	case v1alpha1.StrategyLMetric:
		c.LMetric.Literal = full.LMetric.Variant == v1alpha1.LMetricLiteral
	case v1alpha1.StrategyUnified:
		c.Unified = policy.UnifiedConfig{MinHit: fraction(*full.Unified.MinHitPercent), MaxLoad: fraction(full.Unified.MaxLoadPercent)}
	case v1alpha1.StrategyRendezvous:
		m := full.Rendezvous
		c.Rendezvous = policy.RendezvousConfig{
			ByPrefix:     m.Key == v1alpha1.RendezvousByPrefix,
			PrefixTokens: int(m.PrefixTokens),
		}
	case v1alpha1.StrategyApproximatePrefix:
		m := full.ApproximatePrefix
		c.ApproximatePrefix = policy.ApproximatePrefixConfig{
			ChunkBytes: int(m.ChunkBytes), MaxChunks: int(m.MaxChunks), ChunksPerEndpoint: int(m.ChunksPerEndpoint),
			PrefixWeight: float64(*m.PrefixWeight), QueueWeight: float64(*m.QueueWeight), KVWeight: float64(*m.KVWeight),
		}
	}
	return c
}
