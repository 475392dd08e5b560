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
//	cost = wait + own + reload + harm + pressure + waste + delay
//	wait     = overhead + pending uncached tokens / rate
//	own      = uncached tokens of the request / rate
//	reload   = matching tokens in lower tiers / the tier's reload rate
//	harm     = own × decoding requests × decodeHarm: every running decode waits for our prefill
//	pressure = 10 s × max(0, KV use with this request - 0.85)
//	waste    = own × min(8, 0.5 + 4 × mean wait of the fleet): near saturation a prefill that another endpoint
//	           could have spared is paid by those who come after
//	delay    = the way to another island and back, and bringing in a LoRA adapter that does not run there
//
// Rates and overheads are learned per endpoint, so that different GPUs compare in seconds. What an endpoint has taught
// counts by how far it is to be believed (load.View.Trust), the rest is the fleet's mean, or the prior: an endpoint
// that was slow once and is left alone since is tried again. Costs are compared in steps of 2 %, at least 1 ms: what
// differs by less is a tie, so that equal endpoints share what is new. The form without harm won 24 simulated
// configurations; with harm it held in agentic and decode-heavy traffic as well.
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
	fleet := p.fleet(candidates)
	meanWait := 0.0
	for i := range candidates {
		meanWait += fleet.of(&candidates[i]).wait(&candidates[i])
	}
	meanWait /= math.Max(1, float64(len(candidates)))
	waste := math.Min(wasteCeiling, wasteFloor+wasteSlope*meanWait)
	for i := range candidates {
		c := &candidates[i]
		speed := fleet.of(c)
		own := float64(r.Uncached(c)) / speed.rate
		cost := speed.wait(c) + own*(1+p.harm*float64(c.Load.Decoding)+waste)
		cost += r.reload(c) + r.pressure(c) + c.Delay
		out[i] = Cost{First: step(cost), Then: float64(c.Load.InFlight)}
	}
}

const (
	// Costs below stepFloor seconds are compared in steps of stepFloor × stepSize, those above in steps of stepSize.
	stepFloor = 0.05
	stepSize  = 0.02
)

// step rounds a cost in seconds, so that what differs by next to nothing is equal. It never turns an order around.
func step(seconds float64) float64 {
	if seconds <= stepFloor {
		return stepFloor * stepSize * math.Round(seconds/(stepFloor*stepSize))
	}
	ratio := math.Log1p(stepSize)
	return stepFloor * math.Exp(ratio*math.Round(math.Log(seconds/stepFloor)/ratio))
}

// speed is how fast an endpoint prefills: tokens/s, and the seconds that every first token takes.
type speed struct{ rate, overhead float64 }

// fleet is the mean of what the candidates have taught, each by its trust; the prior where none has.
func (p marginalCost) fleet(candidates []Candidate) speed {
	var slowness, overhead, weight float64
	for i := range candidates {
		if l := &candidates[i].Load; l.Rate > 0 && l.Trust > 0 {
			slowness += l.Trust / l.Rate
			overhead += l.Trust * l.Overhead
			weight += l.Trust
		}
	}
	if weight == 0 {
		return speed{rate: p.prior}
	}
	return speed{rate: weight / slowness, overhead: overhead / weight}
}

// of is a candidate's own speed as far as it is to be believed, and the fleet's for the rest. Slowness, the inverse of
// the rate, is what adds up.
func (s speed) of(c *Candidate) speed {
	l := &c.Load
	if !(l.Rate > 0) {
		return s
	}
	slowness := l.Trust/l.Rate + (1-l.Trust)/s.rate
	return speed{rate: 1 / slowness, overhead: l.Trust*l.Overhead + (1-l.Trust)*s.overhead}
}

// wait is the time before the request's own prefill begins, seconds.
func (s speed) wait(c *Candidate) float64 {
	return s.overhead + c.Load.PendingTokens/s.rate
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
