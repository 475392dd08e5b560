package policy

import (
	"fmt"
	"math"
)

// longestPrefix picks the endpoint with the most matching blocks, ties by least load ("Routing on Real KV Cache
// Events", and the overlap score of "We fight GPU scarcity without compromise").
//
// Taken literally it sends a fleet's entire traffic to one pod as soon as all requests share a system prompt: one block
// more always beats any load. So by default a match counts only if it is large enough (minMatch of the prompt) and its
// endpoint is not overloaded (maxLoad times the mean in-flight requests), and ties are broken by the least of
//
//	(pending prefill + prompt) × (requests in flight + 1)
//
// because counting only requests puts short prompts behind long ones.
type longestPrefix struct {
	literal           bool
	minMatch, maxLoad float64
}

func newLongestPrefix(c LongestPrefixConfig) (Policy, error) {
	if !c.Literal && (!(c.MinMatch >= 0) || !(c.MaxLoad >= 1)) {
		return nil, fmt.Errorf("longest prefix: minimum match %v, maximum load %v: want at least 0 and 1", c.MinMatch, c.MaxLoad)
	}
	return longestPrefix{literal: c.Literal, minMatch: c.MinMatch, maxLoad: c.MaxLoad}, nil
}

func (p longestPrefix) Score(r *Request, candidates []Candidate, out []Cost) {
	limit := math.Inf(1)
	if !p.literal {
		limit = p.maxLoad * math.Max(1, meanInFlight(candidates))
	}
	for i := range candidates {
		c := &candidates[i]
		match := math.Min(c.Match.Credit(&r.Credit), float64(r.Blocks))
		worth := match*float64(r.BlockTokens) >= p.minMatch*float64(r.PromptTokens)
		if !p.literal && (!worth || float64(c.Load.InFlight) > limit) {
			match = 0
		}
		load := float64(c.Load.InFlight)
		if !p.literal {
			load = (c.Load.PendingTokens + float64(r.PromptTokens)) * (load + 1)
		}
		out[i] = Cost{First: -match, Then: load}
	}
}

func meanInFlight(candidates []Candidate) float64 {
	sum := 0
	for i := range candidates {
		sum += candidates[i].Load.InFlight
	}
	return float64(sum) / math.Max(1, float64(len(candidates)))
}
