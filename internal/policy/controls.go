package policy

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// leastLoad picks the fewest requests in flight. It knows no cache.
type leastLoad struct{}

func (leastLoad) Score(_ *Request, candidates []Candidate, out []Cost) {
	for i := range candidates {
		out[i] = Cost{First: float64(candidates[i].Load.InFlight)}
	}
}

// roundRobin picks one candidate after the other, in their order.
type roundRobin struct{ turn atomic.Uint64 }

func (p *roundRobin) Score(_ *Request, candidates []Candidate, out []Cost) {
	n := uint64(len(candidates))
	if n == 0 {
		return
	}
	turn := (p.turn.Add(1) - 1) % n
	for i := range candidates {
		out[i] = Cost{First: float64((uint64(i) + n - turn) % n)}
	}
}

// random picks any: the candidates' order is that of a counter's rendezvous weights, so that a seed gives the same
// choices again.
type random struct {
	seed uint64
	turn atomic.Uint64
}

func newRandom(c RandomConfig) *random {
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	return &random{seed: c.Seed}
}

func (p *random) Score(_ *Request, candidates []Candidate, out []Cost) {
	turn := endpoint.Mix(p.seed + p.turn.Add(1))
	for i := range candidates {
		out[i] = Cost{First: float64(Weight(turn, candidates[i].Hash) >> 11)}
	}
}

// rendezvous picks by highest random weight of (key, endpoint): the session's, or the prefix's where there is no
// session or byPrefix asks for it. The ranks below the first are the fallbacks every picker agrees on.
type rendezvous struct{ byPrefix bool }

func (p rendezvous) Score(r *Request, candidates []Candidate, out []Cost) {
	key := r.Session
	if p.byPrefix || key == 0 {
		key = r.Prefix
	}
	for i := range candidates {
		// The upper 53 bits are exact in a float64; the tie-break is by the same weights.
		out[i] = Cost{First: -float64(Weight(key, candidates[i].Hash) >> 11)}
	}
}
