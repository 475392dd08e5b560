package policy

import "fmt"

// stickyLeastLoaded is algorithm 1 of "Stateful Cache-Aware Routing for Distributed LLM Inference": the prefix of
// the first L tokens (the request's own choice, else PrefixTokens) decides. Among the endpoints that hold it the
// least loaded is chosen, however loaded; if none does, the least loaded of all, which is then assumed to hold it.
//
// A prefix is held in full blocks: L is rounded down to blocks, to one at least. A prompt without a full block is sent to
// the least loaded endpoint.
type stickyLeastLoaded struct{ prefixTokens int }

func newStickyLeastLoaded(c StickyLeastLoadedConfig) (Policy, error) {
	if c.PrefixTokens < 1 {
		return nil, fmt.Errorf("sticky least loaded: prefix of %d tokens, want at least 1", c.PrefixTokens)
	}
	return stickyLeastLoaded{prefixTokens: c.PrefixTokens}, nil
}

func (p stickyLeastLoaded) Score(r *Request, candidates []Candidate, out []Cost) {
	tokens := p.prefixTokens
	if r.PrefixTokens > 0 {
		tokens = r.PrefixTokens
	}
	needed := 0
	if r.Blocks > 0 {
		needed = min(max(1, tokens/r.BlockTokens), r.Blocks)
	}
	for i := range candidates {
		c := &candidates[i]
		cost := Cost{First: 1, Then: float64(c.Load.InFlight)}
		if needed > 0 && c.Match.Blocks() >= max(1, needed-needed%max(1, c.Grain)) {
			cost.First = 0
		}
		out[i] = cost
	}
}
