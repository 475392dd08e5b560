package policy

import (
	"fmt"
	"math"
	"sync/atomic"
)

// unified stays with a session's endpoint while that pays, and scores by LMetric else (the B3 routing policies):
//
//	if match of the session's endpoint / prompt > minHit
//	   and its requests in flight ≤ maxLoad × max(1, mean of the fleet): that endpoint
//	else: least (pending prefill + uncached) × requests in flight,
//	      ties by uncached, then by requests, then by turns
//
// The product is the published one, which is 0 for every idle endpoint; the ties then bring the cache back in.
type unified struct {
	minHit, maxLoad float64
	turn            atomic.Uint64
}

func newUnified(c UnifiedConfig) (Policy, error) {
	if !(c.MinHit >= 0 && c.MinHit <= 1) || !(c.MaxLoad >= 1) {
		return nil, fmt.Errorf("unified: minimum hit %v, maximum load %v: want 0 to 1, and at least 1", c.MinHit, c.MaxLoad)
	}
	return &unified{minHit: c.MinHit, maxLoad: c.MaxLoad}, nil
}

func (p *unified) Score(r *Request, candidates []Candidate, out []Cost) {
	limit := p.maxLoad * math.Max(1, meanInFlight(candidates))
	n := uint64(max(1, len(candidates)))
	turn := r.turn(p.turn.Add(1)-1, int(n))
	for i := range candidates {
		c := &candidates[i]
		uncached := float64(r.Uncached(c))
		requests := float64(c.Load.InFlight)
		if r.Home != 0 && c.Hash == r.Home && requests <= limit &&
			float64(r.MatchTokens(c)) > p.minHit*math.Max(1, float64(r.PromptTokens)) {
			out[i] = Cost{First: -1}
			continue
		}
		// Uncached tokens, requests and turn in one number: requests take 20 bits, the turn what is behind the point.
		after := float64((uint64(i)+n-turn)%n) / float64(n)
		out[i] = Cost{First: (c.Load.PendingTokens + uncached) * requests, Then: uncached*(1<<20) + requests + after}
	}
}
