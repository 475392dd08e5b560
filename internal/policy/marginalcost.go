package policy

import (
	"fmt"
	"math"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// DefaultPriorRate is the prefill rate assumed before one is learned, tokens/s: an 8B model on one H100, about.
const DefaultPriorRate = 20_000

const (
	// pressureFrom is the KV use above which an endpoint is priced as about to evict or preempt, and pressureSeconds
	// what full use costs: about what it takes until others have left.
	pressureFrom    = 0.85
	pressureSeconds = 10
	// pinned is the part of what a prompt finds in a cache that it takes from what is free: the rest is in use by others
	// already.
	pinned = 0.3
	// crowding is what a second of our prefill, or of the wait for it, costs each request in flight, in seconds: they
	// decode more slowly, and longer.
	crowding = 0.2
	// queued is how much each request that waits in the fleet adds to the price of an uncached token.
	queued = 0.5
	// wasteUpTo is the utilisation by prefills up to which the price of an uncached token rises, and mostWaste its bound:
	// beyond it requests wait too long for an endpoint that holds a little more.
	wasteUpTo = 0.75
	mostWaste = 3
)

// marginalCost picks the endpoint where the request adds the least time, in seconds:
//
//	cost = (wait + own × (1 + waste)) × (1 + harm) + reload + pressure + delay
//	wait     = overhead + pending work + context that is decoded × seconds for each token of it
//	own      = uncached tokens × seconds for each + pairs of tokens that attention compares × seconds for each
//	waste    = (u + q / 2) / (1 - u), at most 3; u the part of the time that the fleet prefills, at most 0.75, q the mean
//	           number of requests at an endpoint that are prefilled or wait for it, both over the last 20 s: a prefill that
//	           another endpoint could have spared is paid by those who come after, as many as come while it lasts
//	harm     = 0.2 × decodeHarm × requests in flight: what we take, those feel who are there
//	reload   = matching tokens in lower tiers / the tier's reload rate
//	pressure = 10 s × max(0, KV use with this request and those that wait - 0.85)
//	delay    = the way to another island and back, and bringing in a LoRA adapter that does not run there
//
// All speeds are learned per endpoint (load.Speed), so that different GPUs compare in seconds. What an endpoint has
// taught counts by how far it is to be believed (load.View.Trust), the rest is the fleet's mean, or the prior: an
// endpoint that was slow once and is left alone since is tried again. Endpoints that differ by less than a quarter are
// taken for equal, and costs are compared in steps of about 1 %, at least 1 ms: so equal endpoints share what is new.
//
// The parts come from simulations of many configurations (docs/policies.md): predicted time to first token with a price
// on wasted prefills that rises with the load, from this project's own; the product of work and batch size, which keeps
// decodes balanced, from LMetric; waste is about how many a job delays in a queue with one server.
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
	used, queue := utilisation(candidates)
	used = math.Min(wasteUpTo, used)
	waste := math.Min(mostWaste, (used+queued*queue)/(1-used))
	for i := range candidates {
		c := &candidates[i]
		speed := fleet.of(c)
		wait, own := speed.wait(c), speed.own(r, c)
		cost := (wait + own*(1+waste)) * (1 + crowding*p.harm*float64(c.Load.InFlight))
		out[i] = Cost{First: step(cost + r.reload(c) + r.pressure(c) + c.Delay), Then: float64(c.Load.InFlight)}
	}
}

// utilisation is the part of the time that the fleet prefills, and the mean number of requests at an endpoint that are
// prefilled or wait for it. What peers send is taken to be as much work as what we send, by requests in flight.
func utilisation(candidates []Candidate) (used, queue float64) {
	all, ours := 0, 0
	for i := range candidates {
		l := &candidates[i].Load
		used += l.Utilisation
		queue += l.Queue
		all += l.InFlight
		ours += l.InFlight - l.Peers.InFlight
	}
	if ours > 0 {
		share := float64(ours) / float64(all)
		used, queue = used/share, queue/share
	}
	n := math.Max(1, float64(len(candidates)))
	return used / n, queue / n
}

const (
	// Costs below stepFloor seconds are compared in steps of stepSize seconds, those above by the first stepBits bits
	// behind the leading one: in steps of 0.8 to 1.6 %.
	stepFloor = 0.05
	stepSize  = 0.001
	stepBits  = 6
)

// step rounds a cost in seconds, so that what differs by next to nothing is equal. It never turns an order around.
func step(seconds float64) float64 {
	if seconds <= stepFloor {
		return stepSize * math.Round(seconds/stepSize)
	}
	const dropped = 52 - stepBits
	return math.Float64frombits((math.Float64bits(seconds) + 1<<(dropped-1)) &^ (1<<dropped - 1))
}

// speed is how fast an endpoint prefills: seconds for each token and each pair of tokens that attention compares, and
// those that every first token takes.
type speed struct{ token, pair, overhead, context float64 }

// fleet is the mean of what the candidates have taught, each by its trust; the prior where none has.
func (p marginalCost) fleet(candidates []Candidate) speed {
	var s speed
	weight := 0.0
	for i := range candidates {
		if l := &candidates[i].Load; l.Rate > 0 && l.Trust > 0 {
			s.token += l.Trust / l.Rate
			s.pair += l.Trust * l.PairSeconds
			s.overhead += l.Trust * l.Overhead
			s.context += l.Trust * l.ContextSeconds
			weight += l.Trust
		}
	}
	if weight == 0 {
		return speed{token: 1 / p.prior}
	}
	return speed{s.token / weight, s.pair / weight, s.overhead / weight, s.context / weight}
}

// alike is how much endpoints may differ in what they have taught and still be taken for equal, as a factor. What
// differs by more counts by what it differs more.
const alike = 1.25

// unlike is the most that an endpoint is taken to be slower or faster than the fleet, as a factor.
const unlike = 16

// of is a candidate's own speed as far as it is to be believed, and the fleet's for the rest.
func (s speed) of(c *Candidate) speed {
	l := &c.Load
	if !(l.Rate > 0) {
		return s
	}
	ratio := math.Max(1.0/unlike, math.Min(l.Trust/(l.Rate*s.token)+1-l.Trust, unlike))
	switch {
	case ratio > alike:
		ratio /= alike
	case ratio < 1/alike:
		ratio *= alike
	default:
		return s
	}
	return speed{s.token * ratio, s.pair * ratio, s.overhead * ratio, s.context * ratio}
}

// wait is the time before the request's own prefill begins, seconds.
func (s speed) wait(c *Candidate) float64 {
	return s.overhead + s.context*c.Load.DecodingTokens + s.token*c.Load.PendingTokens + s.pair*c.Load.PendingPairs
}

// own is the time of the request's own prefill, seconds.
func (s speed) own(r *Request, c *Candidate) float64 {
	w := load.WorkOf(r.Uncached(c), r.MatchTokens(c))
	return s.token*w.Tokens + s.pair*w.Pairs
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
		use += (float64(r.Uncached(c)) + pinned*(float64(r.MatchTokens(c))+c.Load.PendingContext)) / float64(c.Load.KVTokens)
	}
	return pressureSeconds * math.Max(0, use-pressureFrom)
}
