package policy

import (
	"fmt"
	"math"
)

// DefaultPriorRate is the prefill rate assumed before one is learned, tokens/s: an 8B model on one H100, about.
const DefaultPriorRate = 20_000

const (
	// pressureFrom is the KV use above which an endpoint is priced as about to evict or preempt, and pressureSeconds
	// what full use costs.
	pressureFrom    = 0.85
	pressureSeconds = 10
	// The price of an uncached token is wasteFloor of its own prefill time in an idle fleet and rises with the mean
	// wait in it (per second), up to wasteCeiling.
	wasteFloor   = 0.5
	wasteSlope   = 4
	wasteCeiling = 8
)

// marginalCost picks the endpoint where the request adds the least time, in seconds:
//
//	cost = wait + own + reload + harm + pressure + waste
//	wait     = overhead + pending uncached tokens / rate
//	own      = uncached tokens of the request / rate
//	reload   = matching tokens in lower tiers / the tier's reload rate
//	harm     = own × decoding requests × decodeHarm: every running decode waits for our prefill
//	pressure = 10 s × max(0, KV use with this request - 0.85)
//	waste    = own × min(8, 0.5 + 4 × mean wait of the fleet): near saturation a prefill that another endpoint
//	           could have spared is paid by those who come after
//
// Rates and overheads are learned per endpoint, so that different GPUs compare in seconds; endpoints that have not
// taught one yet take the mean of the others, or the prior. The form without harm won 24 simulated configurations;
// with harm it held in agentic and decode-heavy traffic as well.
type marginalCost struct {
	prior float64
	harm  float64
}

func newMarginalCost(c MarginalCostConfig) (Policy, error) {
	if c.PriorRate == 0 {
		c.PriorRate = DefaultPriorRate
	}
	if !(c.PriorRate > 0) || !(c.DecodeHarm >= 0) {
		return nil, fmt.Errorf("marginal cost: prior rate %v tokens/s, decode harm %v: want a positive rate and no negative harm",
			c.PriorRate, c.DecodeHarm)
	}
	return marginalCost{prior: c.PriorRate, harm: c.DecodeHarm}, nil
}

func (p marginalCost) Score(r *Request, candidates []Candidate, out []Cost) {
	rate, overhead := p.fleet(candidates)
	meanWait := 0.0
	for i := range candidates {
		meanWait += wait(&candidates[i], rate, overhead)
	}
	meanWait /= math.Max(1, float64(len(candidates)))
	waste := math.Min(wasteCeiling, wasteFloor+wasteSlope*meanWait)
	for i := range candidates {
		c := &candidates[i]
		own := float64(r.Uncached(c)) / rateOf(c, rate)
		cost := wait(c, rate, overhead) + own*(1+p.harm*float64(c.Load.Decoding)+waste)
		cost += r.reload(c) + r.pressure(c)
		out[i] = Cost{First: cost, Then: float64(c.Load.InFlight)}
	}
}

// fleet is the mean learned rate and overhead, for endpoints that have none of their own yet.
func (p marginalCost) fleet(candidates []Candidate) (rate, overhead float64) {
	n := 0.0
	for i := range candidates {
		if l := &candidates[i].Load; l.Rate > 0 {
			rate, overhead, n = rate+l.Rate, overhead+l.Overhead, n+1
		}
	}
	if n == 0 {
		return p.prior, 0
	}
	return rate / n, overhead / n
}

func rateOf(c *Candidate, fallback float64) float64 {
	if c.Load.Rate > 0 {
		return c.Load.Rate
	}
	return fallback
}

func wait(c *Candidate, rate, overhead float64) float64 {
	if c.Load.Rate > 0 {
		rate, overhead = c.Load.Rate, c.Load.Overhead
	}
	return overhead + c.Load.PendingTokens/rate
}

// reload is the time to bring the matching blocks of lower tiers to the GPU, seconds.
func (r *Request) reload(c *Candidate) float64 {
	seconds := 0.0
	for tier, blocks := range c.Match.Tiers {
		if rate := r.ReloadRate[tier]; rate > 0 {
			seconds += float64(int(blocks)*r.BlockTokens) / rate
		}
	}
	return seconds
}

// pressure prices an endpoint that would run short of KV blocks, seconds.
func (r *Request) pressure(c *Candidate) float64 {
	use := c.Load.KVUsage
	if c.Load.KVTokens > 0 {
		use += float64(r.Uncached(c)) / float64(c.Load.KVTokens)
	}
	return pressureSeconds * math.Max(0, use-pressureFrom)
}
