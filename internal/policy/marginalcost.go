package policy

import (
	"fmt"
	"math"

	"github.com/kvasir-dev/kvasir/internal/load"
)

const (
	// fullFrom is the KV use above which an endpoint is priced as about to evict or preempt.
	fullFrom = 0.85
	// usualKVTokens is the KV capacity of an endpoint that does not report its own.
	usualKVTokens = 400_000
	// crowding is what a second of our prefill, or of the wait for it, costs each request in flight, in seconds: they
	// decode more slowly, and longer.
	crowding = 0.2
	// queued is how much each request that waits in the fleet adds to the price of an uncached token.
	queued = 0.5
	// wasteUpTo is the utilisation by prefills up to which the price of an uncached token rises, and mostWaste its bound:
	// beyond it requests wait too long for an endpoint that holds a little more.
	wasteUpTo = 0.85
	mostWaste = 6
)

// marginalCost picks the endpoint where the request adds the least time, in seconds:
//
//	cost = (wait + own + waste × (own - least) + evict × fresh × seconds for each token) × (1 + harm) + delay
//	wait  = overhead + pending work + context that is decoded × seconds for each token of it, in each step
//	        + matching tokens in lower tiers / the tier's reload rate + KV tokens that lack × seconds for each token
//	fresh = uncached tokens, and those that another endpoint sends
//	own   = uncached tokens × seconds for each + pairs of tokens that attention compares × seconds for each;
//	        least is the least of all endpoints
//	waste = (u + q / 2) / (1 - u), at most 6; u the part of the time that the fleet prefills, at most 0.85, q the mean
//	        number of requests at an endpoint that are prefilled or wait for it, both over the last 20 s: a prefill that
//	        another endpoint could have avoided delays the requests that arrive while it lasts
//	evict = p / (1 - p), p = reuse × √f, at most 0.95: what is computed takes the place of something that is wanted
//	        again with a probability of p, is then computed again, and takes a place in turn; f is the part of the KV
//	        cache that requests use, reuse the part of the fleet's prompt tokens that caches held over the last 20 s
//	harm  = 0.2 × decodeHarm × requests in flight: the delay of the requests that decode there
//	lack  = tokens by which the KV cache, with this request and those that wait, is more than 0.85 full: so many will
//	        have to be computed again
//	delay = the way to another island and back, and bringing in a LoRA adapter that does not run there
//
// All speeds are learned per endpoint (load.Speed), so that different GPUs compare in seconds, and all prices are derived
// from them: an error that scales all speeds alike changes no choice. An endpoint's learned speed counts by how reliable it
// is (load.View.Trust), the rest is the fleet's mean, or the prior: an endpoint that was slow once and has had no requests
// since is tried again. If an endpoint's time for the work in question is within a quarter of the fleet's, the fleet's is
// used, and costs are compared in steps of about 1 %, at least 1 ms: so equal endpoints share new work.
//
// The parts are derived from simulations of many configurations (docs/policies.md): predicted time to first token with a
// price on wasted prefills that rises with the load, from this project's own; the product of work and batch size, which
// keeps decodes balanced, from LMetric; waste is about how many requests a job delays in a queue with one server. Only the
// waste of a choice is priced: a long prompt that no endpoint holds would otherwise wait very long for the endpoint with
// the fewest requests.
type marginalCost struct {
	prior float64
	harm  float64
}

func newMarginalCost(c MarginalCostConfig) (Policy, error) {
	if c.PriorRate == 0 {
		c.PriorRate = load.AssumedRate
	}
	if !(c.PriorRate > 0) || !(c.DecodeHarm >= 0) {
		return nil, fmt.Errorf("marginal cost: prior rate %v tokens/s, decode harm %v: want a positive rate and no negative harm",
			c.PriorRate, c.DecodeHarm)
	}
	return marginalCost{prior: c.PriorRate, harm: c.DecodeHarm}, nil
}

func (p marginalCost) Score(r *Request, candidates []Candidate, out []Cost) {
	fleet := p.fleet(candidates)
	waste := wasteOf(candidates)
	least := math.Inf(1)
	for i := range candidates {
		own := fleet.own(r, &candidates[i])
		out[i].Then = own
		least = min(least, own)
	}
	reuse := reuseOf(candidates)
	for i := range candidates {
		c, own := &candidates[i], out[i].Then
		wait := fleet.wait(c) + r.reload(c) + fleet.PerToken*(r.lack(c)+evict(c, reuse)*float64(r.fresh(c)))
		cost := (wait + own + waste*(own-least)) * (1 + crowding*p.harm*float64(c.Load.InFlight))
		out[i] = Cost{First: step(cost + c.Delay), Then: float64(c.Load.InFlight)}
	}
}

// wasteOf is how many seconds others wait for each that a prefill takes which another endpoint could have spared.
func wasteOf(candidates []Candidate) float64 {
	used, queue := utilisation(candidates)
	used = min(wasteUpTo, used)
	return min(mostWaste, (used+queued*queue)/(1-used))
}

// mostWanted bounds the probability that what is pushed out of a cache is wanted again.
const mostWanted = 0.95

// evict is how many tokens have to be computed again, in the end, for each that the candidate computes. Each new token
// evicts another one, and the more of the cache requests use, the shorter unused blocks stay: of those that will be wanted
// again, the part √f is evicted before. That is next to nothing in an idle engine, whose cache evicts only old blocks, and
// all in one that requests fill.
func evict(c *Candidate, reuse float64) float64 {
	p := min(mostWanted, reuse*math.Sqrt(max(0, min(1, c.Load.KVUsage))))
	return p / (1 - p)
}

// reuseOf is the part of the fleet's prompt tokens that caches held recently, 0 to 1.
func reuseOf(candidates []Candidate) float64 {
	prompted, computed := 0.0, 0.0
	for i := range candidates {
		prompted += candidates[i].Load.Prompted
		computed += candidates[i].Load.Computed
	}
	if !(prompted > 0) {
		return 0
	}
	return max(0, 1-computed/prompted)
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

// speed is how fast the fleet prefills.
type speed struct{ load.Speed }

// fleet is the mean of what the candidates have learned; the prior where none has learned anything.
func (p marginalCost) fleet(candidates []Candidate) speed {
	var mean load.Mean
	for i := range candidates {
		mean.Add(&candidates[i].Load)
	}
	if !mean.Known() {
		return speed{load.Speed{PerToken: 1 / p.prior}}
	}
	return speed{mean.Speed()}
}

// alike is how much an endpoint's time can differ from the fleet's, as a factor, and still count as equal. Only the
// difference beyond it counts.
const alike = 1.25

// unlike is the most that an endpoint is taken to be slower or faster than the fleet, as a factor.
const unlike = 16

// seconds that work takes at a candidate, with so many tokens of context decoded meanwhile: the fleet's time, corrected by
// the candidate's known difference. Times are compared, not speeds: similar samples do not separate the effects of tokens,
// pairs and context; they determine only the sum.
func (s *speed) seconds(c *Candidate, tokens, pairs, context float64) float64 {
	l := &c.Load
	fleet := s.PerToken*tokens + s.PerPair*pairs + s.PerContext*context
	if !(l.Rate > 0) {
		return fleet
	}
	own := tokens/l.Rate + l.PairSeconds*pairs + l.ContextSeconds*context
	own = fleet + l.Trust*(own-fleet)
	own = max(fleet*(1.0/unlike), min(own, fleet*unlike))
	return max(own*(1/alike), min(fleet, own*alike))
}

// wait is the time before the request's own prefill begins, seconds.
func (s *speed) wait(c *Candidate) float64 {
	l := &c.Load
	return s.Overhead + s.seconds(c, l.PendingTokens, l.PendingPairs, l.DecodingTokens*load.Steps(l.PendingTokens))
}

// own is the time of the request's own prefill, seconds.
func (s *speed) own(r *Request, c *Candidate) float64 {
	w := load.WorkOf(r.Uncached(c), r.MatchTokens(c))
	return s.seconds(c, w.Tokens, w.Pairs, 0)
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

// lack is how many KV tokens an endpoint would be short of, with the request.
func (r *Request) lack(c *Candidate) float64 {
	l := &c.Load
	capacity := float64(l.KVTokens)
	if capacity == 0 {
		capacity = usualKVTokens
	}
	return max(0, (l.KVUsage-fullFrom)*capacity+float64(r.fresh(c))+load.PinnedPart*(float64(r.PromptTokens-r.fresh(c))+l.PendingContext))
}

// fresh is how many tokens of the prompt need a new place in the endpoint's cache: those that it computes, and those that it loads.
func (r *Request) fresh(c *Candidate) int { return r.Uncached(c) + c.Loads }
