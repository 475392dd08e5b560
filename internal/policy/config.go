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
	Rendezvous        RendezvousConfig
}

// MarginalCostConfig parameterises MarginalCost.
type MarginalCostConfig struct {
	// PriorRate is the prefill rate assumed until one is learned, tokens/s; 0 takes DefaultPriorRate.
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
	// MaxLoad is the most in-flight requests an endpoint may have to be chosen for its match, as a multiple of the
	// mean.
	MaxLoad float64
}

// LMetricConfig parameterises LMetric.
type LMetricConfig struct {
	// Literal takes the batch size without the new request, so that idle endpoints score 0 whatever they hold.
	Literal bool
}

// RendezvousConfig parameterises Rendezvous.
type RendezvousConfig struct {
	// ByPrefix hashes the prompt's first PrefixTokens tokens instead of the session.
	ByPrefix     bool
	PrefixTokens int
}
