package picker

import (
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Target is an endpoint that can serve the request.
type Target struct {
	Endpoint *endpoint.Endpoint
	// Match is the endpoint's match when it was picked, in blocks, as the strategy has seen it; Found is the match in the
	// index, which is longer for an endpoint that is Doubted (its confirmed blocks count half) or Distrusted (its matches
	// are ignored for such requests, because it does not find what it announces).
	Match, Found        kvindex.Match
	Doubted, Distrusted bool
	// Differs: the endpoint counts or announces other tokens for such requests than the other endpoints.
	Differs bool
	// Stalled: the endpoint showed no progress at the pick, and no other one was left.
	Stalled bool
	// Predicted is how many prompt tokens the endpoint should find in its cache; Confirmed is the part of them that
	// the pod itself has announced. Expected is how many the answer's usage should count: Predicted, unless the request
	// asks for several choices.
	Predicted, Confirmed, Expected int
	// Routed is how many of the decision's Chunks were routed to the endpoint before.
	Routed int
	// InFlight requests at the pick, this one not counted.
	InFlight int
	Cost     policy.Cost

	member      *member
	at          int // in the view's members
	uncached    int
	lacking     int // what a DecodeLeg would have to prefill there without the blocks, in tokens
	rankedAmong int
}

// target describes candidate c as a place where the request can be sent.
func (v *view) target(s *scratch, question *policy.Request, state *pickState, c int) Target {
	i, candidate := s.index[c], &s.candidates[c]
	uncached, lacking := question.Uncached(candidate), 0
	if state.leg == DecodeLeg {
		uncached, lacking = 0, s.lacking[c]
	} else if p := state.pull; p != nil && p.candidate == c {
		uncached -= p.tokens
	}
	return Target{
		Endpoint:    &v.spec.Endpoints[i],
		Found:       s.matches[c],
		Doubted:     v.members[i].doubted.Load(),
		Distrusted:  s.ignored[c],
		Differs:     v.checks.differs(state.class(), v.members[i]),
		Match:       candidate.Match,
		Confirmed:   min(candidate.Match.Confirmed(), question.Blocks) * question.BlockTokens,
		Predicted:   question.MatchTokens(candidate),
		Expected:    v.expected(v.members[i], state, &s.request, question, candidate),
		InFlight:    candidate.Load.InFlight,
		Stalled:     candidate.Load.Stalled,
		Routed:      candidate.Routed,
		Cost:        s.costs[c],
		member:      v.members[i],
		at:          i,
		uncached:    uncached,
		lacking:     lacking,
		rankedAmong: len(s.candidates),
	}
}
