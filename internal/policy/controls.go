package policy

import (
	"math/rand/v2"
	"sync/atomic"
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

// random picks any.
type random struct{}

func (random) Score(_ *Request, candidates []Candidate, out []Cost) {
	for i := range candidates {
		out[i] = Cost{First: rand.Float64()}
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
