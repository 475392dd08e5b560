package policy

// leastLoad picks the fewest requests in flight ("load_only" of the B3 routing policies): cost = requests in flight. It
// knows no cache.
type leastLoad struct{}

func (leastLoad) Score(_ *Request, candidates []Candidate, out []Cost) {
	for i := range candidates {
		out[i] = Cost{First: float64(candidates[i].Load.InFlight)}
	}
}
