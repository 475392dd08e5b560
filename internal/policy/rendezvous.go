package policy

// rendezvous picks by highest random weight (Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996;
// the policy rendezvous_hash of "Routing on Real KV Cache Events"):
//
//	weight = M(key xor M(hash of the endpoint)); the highest wins
//	key    = the session's, or the prefix's where there is no session or ByPrefix asks for it
//
// M is Murmur3's 64-bit finaliser; key and endpoint are hashed with FNV-1a and M before. When an endpoint is removed only
// its own keys move, each to its second choice; a new endpoint takes an equal share from all others. The ranks below the
// first are the fallbacks that every picker agrees on. It knows neither load nor cache.
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
