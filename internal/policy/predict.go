package policy

import "github.com/kvasir-dev/kvasir/internal/load"

// Predict sets out[i] to the time until a request has its first token from candidates[i], in seconds, by the terms of
// MarginalCost: its wait, what is brought in from lower tiers, its own prefill, and the way. It is what the request
// itself would see, without the prices on what it takes from others, which are theirs to see. out is as long as candidates.
func Predict(r *Request, candidates []Candidate, out []float64) {
	fleet := marginalCost{prior: load.AssumedRate}.fleet(candidates)
	for i := range candidates {
		c := &candidates[i]
		out[i] = fleet.wait(c) + r.reload(c) + fleet.own(r, c) + c.Delay
	}
}
