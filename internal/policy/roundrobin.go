package policy

import "sync/atomic"

// roundRobin picks one candidate after the other, in their order: cost = (place - turn) mod n. It is a control.
//
// Each replica begins at a place of its own. If all began with the first candidate, replicas that get requests by turns would
// send each candidate as many at a time as there are replicas.
type roundRobin struct{ turn atomic.Uint64 }

func (p *roundRobin) Score(r *Request, candidates []Candidate, out []Cost) {
	n := uint64(len(candidates))
	if n == 0 {
		return
	}
	turn := r.turn(p.turn.Add(1)-1, len(candidates))
	for i := range candidates {
		out[i] = Cost{First: float64((uint64(i) + n - turn) % n)}
	}
}
