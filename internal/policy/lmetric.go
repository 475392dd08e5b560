package policy

// lMetric picks the least product of prefill work and batch size (the B3 routing policies; arXiv 2603.15202):
//
//	score = (pending prefill + uncached tokens of the request) × (requests in flight + 1)
//
// The published form leaves the request itself out of the batch size. Then every idle endpoint scores 0, whatever it
// holds, and the cache is ignored; it is kept as an option.
type lMetric struct{ literal bool }

func (p lMetric) Score(r *Request, candidates []Candidate, out []Cost) {
	for i := range candidates {
		c := &candidates[i]
		batch := float64(c.Load.InFlight)
		if !p.literal {
			batch++
		}
		out[i] = Cost{First: (c.Load.PendingTokens + float64(r.Uncached(c))) * batch}
	}
}
