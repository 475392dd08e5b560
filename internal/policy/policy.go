// Package policy chooses: given each endpoint's match and load, what does it cost to send the request there?
//
// A strategy is one file with a formula and its source. All are fed by the same counters and the same matches, none
// keeps counters of its own, and all end in the same tie-break: rendezvous hashing of the request's prefix, so that
// pickers that do not talk choose alike.
package policy

import (
	"fmt"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// Request is what a strategy can know of a request.
type Request struct {
	// PromptTokens is the prompt's length, 0 when it is not known.
	PromptTokens int
	// BlockTokens is the size of a block; Blocks is the number of full blocks a match can count: a full hit still computes
	// one token.
	BlockTokens, Blocks int
	// PrefixTokens is the request's own choice of the prefix that decides, 0 for none.
	PrefixTokens int
	// Session names the conversation, 0 when there is none.
	Session uint64
	// Home is the hash of the endpoint that the session's last request went to, 0 when there is none.
	Home uint64
	// Prefix hashes the first tokens (or, without tokens, bytes) of the prompt.
	Prefix uint64
	// Place is the picker's among its replicas, from 0 for the first (or only) one to below 1: strategies begin their turns there,
	// so that replicas do not all begin with the same endpoint.
	Place float64
	// Chunks is the number of chunks of the prompt's text, where the strategy matches these; 0 where it does not.
	Chunks int
	// Credit is what a block of each tier is worth, 1 for the GPU.
	Credit [kvblock.NumTiers]float64
	// ReloadRate is how fast each tier is read back, tokens/s; 0 where it is not known.
	ReloadRate [kvblock.NumTiers]float64
}

// Candidate is an endpoint that can be chosen.
type Candidate struct {
	// Hash of the endpoint's identity.
	Hash  uint64
	Match kvindex.Match
	Load  load.View
	// Delay is what the endpoint costs the request besides, seconds: the way to another island, an adapter that has to
	// be brought in.
	Delay float64
	// Loads are matching tokens that a peer lends to the endpoint: they are not computed, but take a place in the cache.
	Loads int
	// Grain is how many blocks the endpoint's engine reuses at a time, at least 1 (0 means 1): its Match is a multiple.
	Grain int
	// Routed is how many of the request's leading chunks were routed to the endpoint before.
	Routed int
}

// MatchTokens is the part of the prompt that the candidate need not compute, in tokens: at most all full blocks but one
// token.
func (r *Request) MatchTokens(c *Candidate) int {
	return min(c.Match.Blocks(), r.Blocks) * r.BlockTokens
}

// turn is the endpoint, of n, whose turn it is in a sequence that begins at the picker's place.
func (r *Request) turn(number uint64, n int) uint64 {
	return (uint64(r.Place*float64(n)) + number) % uint64(n)
}

// Uncached is the part of the prompt that the candidate has to compute, in tokens.
func (r *Request) Uncached(c *Candidate) int { return r.PromptTokens - r.MatchTokens(c) }

// Cost orders candidates: by First, then by Then, less is better. Only MarginalCost uses a unit, seconds.
type Cost struct{ First, Then float64 }

// Policy is a strategy with its parameters. It is safe for concurrent use.
type Policy interface {
	// Score sets out[i] to the cost of candidates[i]; out is as long as candidates. It neither keeps nor changes
	// its arguments.
	Score(r *Request, candidates []Candidate, out []Cost)
}

// New makes the strategy that a configuration names. It fails for a strategy or a parameter it does not know.
func New(c Config) (Policy, error) {
	switch c.Type {
	case MarginalCost:
		return newMarginalCost(c.MarginalCost)
	case StickyLeastLoaded:
		return newStickyLeastLoaded(c.StickyLeastLoaded)
	case LongestPrefix:
		return newLongestPrefix(c.LongestPrefix)
	case LMetric:
		return lMetric{literal: c.LMetric.Literal}, nil
	case LeastPendingWork:
		return leastPendingWork{}, nil
	case Unified:
		return newUnified(c.Unified)
	case Sticky:
		return sticky{}, nil
	case LeastLoad:
		return leastLoad{}, nil
	case RoundRobin:
		return new(roundRobin), nil
	case Random:
		return newRandom(c.Random), nil
	case Rendezvous:
		return rendezvous{byPrefix: c.Rendezvous.ByPrefix}, nil
	case ApproximatePrefix:
		return newApproximatePrefix(c.ApproximatePrefix)
	}
	return nil, fmt.Errorf("strategy %q is not available", c.Type)
}

// Rank finds the best n candidates by cost and breaks ties by rendezvous hashing of the request's prefix. order receives
// their indices, best first.
func Rank(r *Request, candidates []Candidate, costs []Cost, order []int, n int) []int {
	order = order[:0]
	before := func(a, b int) bool {
		switch x, y := &costs[a], &costs[b]; {
		case x.First != y.First:
			return x.First < y.First
		case x.Then != y.Then:
			return x.Then < y.Then
		}
		x, y := Weight(r.Prefix, candidates[a].Hash), Weight(r.Prefix, candidates[b].Hash)
		if x != y {
			return x > y
		}
		return a < b
	}
	for i := range candidates {
		switch last := len(order) - 1; {
		case len(order) < n:
			order = append(order, i)
		case n > 0 && before(i, order[last]):
			order[last] = i
		default:
			continue
		}
		for j := len(order) - 1; j > 0 && before(order[j], order[j-1]); j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	return order
}

// Weight is a candidate's weight for a key in rendezvous hashing: the highest wins. When a candidate is added or removed,
// only the keys move that it gets or had.
func Weight(key, candidate uint64) uint64 { return endpoint.Mix(key ^ endpoint.Mix(candidate)) }
