package policy

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// random picks any, uniformly: cost = the candidate's weight for a number that is drawn for the request. It is a control.
// The numbers are a counter's, mixed with the seed, so that the same seed repeats the choices.
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
