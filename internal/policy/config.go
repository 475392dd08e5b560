package policy

// Type names a strategy as the API does.
type Type string

// The strategies.
const (
	MarginalCost      Type = "MarginalCost"
	StickyLeastLoaded Type = "StickyLeastLoaded"
	LongestPrefix     Type = "LongestPrefix"
	LMetric           Type = "LMetric"
	LeastPendingWork  Type = "LeastPendingWork"
	Unified           Type = "Unified"
	Sticky            Type = "Sticky"
	LeastLoad         Type = "LeastLoad"
	RoundRobin        Type = "RoundRobin"
	Random            Type = "Random"
	Rendezvous        Type = "Rendezvous"
	ApproximatePrefix Type = "ApproximatePrefix"
)

// Config selects a strategy and holds the parameters of all; only those of Type are read. Ratios are fractions.
type Config struct {
	Type              Type
	MarginalCost      MarginalCostConfig
	StickyLeastLoaded StickyLeastLoadedConfig
	LongestPrefix     LongestPrefixConfig
	LMetric           LMetricConfig
	Unified           UnifiedConfig
	Random            RandomConfig
	Rendezvous        RendezvousConfig
	ApproximatePrefix ApproximatePrefixConfig
}

// Default is the configuration of a strategy with the defaults of a RoutingPolicy.
func Default(t Type) Config {
	c := Config{Type: t}
	switch t {
	case MarginalCost:
		c.MarginalCost.DecodeHarm = 1
	case StickyLeastLoaded:
		c.StickyLeastLoaded.PrefixTokens = 64
	case LongestPrefix:
		c.LongestPrefix = LongestPrefixConfig{MinMatch: 0.25, MaxLoad: 1.5}
	case Unified:
		c.Unified = UnifiedConfig{MinHit: 0.5, MaxLoad: 2}
	case Rendezvous:
		c.Rendezvous.PrefixTokens = 1024
	case ApproximatePrefix:
		c.ApproximatePrefix = ApproximatePrefixConfig{
			ChunkBytes: 64, MaxChunks: 256, ChunksPerEndpoint: 31_250, PrefixWeight: 3, QueueWeight: 2, KVWeight: 2,
		}
	}
	return c
}

// MarginalCostConfig parameterises MarginalCost.
type MarginalCostConfig struct {
	// PriorRate is the prefill rate assumed until one is learned, tokens/s; 0 takes load.AssumedRate.
	PriorRate float64
	// DecodeHarm weighs the delay that a prefill imposes on running decodes; 1 counts it in full.
	DecodeHarm float64
}

// StickyLeastLoadedConfig parameterises StickyLeastLoaded.
type StickyLeastLoadedConfig struct {
	// PrefixTokens is the length of the prefix that decides, where the request gives none.
	PrefixTokens int
}

// LongestPrefixConfig parameterises LongestPrefix.
type LongestPrefixConfig struct {
	// Literal drops both guards.
	Literal bool
	// MinMatch is the part of the prompt that must match for the match to count.
	MinMatch float64
	// MaxLoad is the most in-flight requests an endpoint can have to be chosen for its match, as a multiple of the
	// mean.
	MaxLoad float64
}

// LMetricConfig parameterises LMetric.
type LMetricConfig struct {
	// Literal takes the batch size without the new request, so that idle endpoints score 0 whatever they hold.
	Literal bool
}

// UnifiedConfig parameterises Unified.
type UnifiedConfig struct {
	// MinHit is the part of the prompt that the session's endpoint must hold, more than which it is kept to.
	MinHit float64
	// MaxLoad is the most in-flight requests that it can have, as a multiple of the mean.
	MaxLoad float64
}

// RandomConfig parameterises Random.
type RandomConfig struct {
	// Seed of the choices; 0 draws one.
	Seed uint64
}

// RendezvousConfig parameterises Rendezvous.
type RendezvousConfig struct {
	// ByPrefix hashes the prompt's first PrefixTokens tokens instead of the session.
	ByPrefix     bool
	PrefixTokens int
}

// ApproximatePrefixConfig parameterises ApproximatePrefix.
type ApproximatePrefixConfig struct {
	// ChunkBytes is the size of a chunk of text, MaxChunks how many of a prompt count, and ChunksPerEndpoint how many
	// each endpoint is remembered for, at about 60 bytes each.
	ChunkBytes, MaxChunks, ChunksPerEndpoint int
	// PrefixWeight, QueueWeight and KVWeight are what the match, the queue and the KV use count in the score.
	PrefixWeight, QueueWeight, KVWeight float64
}

// Types are all strategies, the default first.
func Types() []Type {
	return []Type{
		MarginalCost, StickyLeastLoaded, LongestPrefix, LMetric, LeastPendingWork, Unified, Sticky, LeastLoad, RoundRobin,
		Random, Rendezvous, ApproximatePrefix,
	}
}
