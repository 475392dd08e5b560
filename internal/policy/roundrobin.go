package policy

import "sync/atomic"

// roundRobin picks one candidate after the other, in their order: cost = (place - turn) mod n. It is a control.
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
