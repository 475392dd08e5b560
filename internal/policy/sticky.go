package policy

// sticky sends every turn of a session to the endpoint of the turn before, whatever the load (the B3 routing policies: hard
// affinity, the upper bound of locality and the worst of hot spots). A first turn, a request without a session, and one
// whose endpoint cannot be chosen any more are sent to the endpoint with the fewest requests in flight.
type sticky struct{}

func (sticky) Score(r *Request, candidates []Candidate, out []Cost) {
	for i := range candidates {
		c := &candidates[i]
		out[i] = Cost{First: 1, Then: float64(c.Load.InFlight)}
		if r.Home != 0 && c.Hash == r.Home {
			out[i].First = 0
		}
	}
}
