package policy

// leastPendingWork picks the least prefill work (LPWL, which the author of the B3 routing policies put in LMetric's place
// later, in agentic-kvc):
//
//	score = pending prefill tokens + uncached tokens of the request, ties by requests in flight
//
// It is LMetric without the batch size: it keeps prefills short and does not balance what decodes.
type leastPendingWork struct{}

func (leastPendingWork) Score(r *Request, candidates []Candidate, out []Cost) {
	for i := range candidates {
		c := &candidates[i]
		out[i] = Cost{First: c.Load.PendingTokens + float64(r.Uncached(c)), Then: float64(c.Load.InFlight)}
	}
}
