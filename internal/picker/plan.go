package picker

import (
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// The plans for a request in a pool with roles are compared by their cost in seconds, all by the terms of MarginalCost:
//
//	alone     = wait, prefill and harm at the endpoint that decodes
//	hand-off  = wait, prefill and harm at an endpoint that prefills + transfer + wait and harm at the endpoint that decodes
//	transfer  = base + tokens that the endpoint which decodes lacks × seconds for each, both learned
//
// A running stream is so protected from a prefill beside it by the harm that this would do, and an endpoint that prefills
// from requests by its queue.

// plan decides whether a ranked request is handed over. If it is, the candidates for the first leg take the place of those
// for the entire request in s, in order, and probe reports whether the request probes the first of them.
func (p *Picker) plan(v *view, s *scratch, state *pickState, now time.Time) (split, probe bool) {
	rule := &v.spec.Policy.Handoffs
	best := s.order[0]
	uncached := s.question.Uncached(&s.candidates[best])
	if rule.Rule <= HandoffNever || rule.Rule == HandoffAbove && uncached < rule.UncachedTokens || uncached <= v.spec.BlockTokens {
		return false, false
	}
	if most := v.maxLen(v.spec.Endpoints[s.index[best]].ID); most > 0 && state.total()+s.request.MaxTokens > most {
		return false, false // the engine refuses it, but only with max_tokens as the client has sent it
	}
	first := p.scratch.Get().(*scratch)
	defer p.release(first)
	v.prefillers(s, first, state, now)
	if len(first.candidates) == 0 {
		return false, false
	}
	scale := v.strategy
	if v.spec.Policy.Strategy.Type != policy.MarginalCost {
		scale = yardstick
	}
	// One call for both kinds of endpoints, so that the terms that depend on all candidates are the same for both.
	n := len(first.candidates)
	all := slices.Concat(first.candidates, s.candidates)
	first.costs = resize(first.costs, len(all))
	scale.Score(&s.question, all, first.costs)
	alone := first.costs[n+best].First
	first.costs = first.costs[:n]
	first.order = policy.Rank(&s.question, first.candidates, first.costs, first.order, max(1, v.spec.Policy.Attempts))
	from := v.members[first.index[first.order[0]]]
	receiver, receives := v.receiver(s, scale, from, now)
	if receiver < 0 || rule.Rule == HandoffByCost && first.costs[first.order[0]].First+receives >= alone {
		return false, false
	}
	to := v.members[s.index[receiver]]
	ok, probe := from.circuit.Take(now, v.spec.Policy.CircuitFailures)
	if !ok {
		return false, false
	}
	if period := v.spec.Policy.CircuitOpen; !from.gives.take(to.hash, now, period) || !to.receives.take(from.hash, now, period) {
		if probe {
			from.circuit.GiveUp()
		}
		return false, false
	}
	state.coming = to
	state.leg = PrefillLeg
	s.candidates, first.candidates = first.candidates, s.candidates
	s.index, first.index = first.index, s.index
	s.matches, first.matches = first.matches, s.matches
	s.ignored, first.ignored = first.ignored, s.ignored
	s.costs, first.costs = first.costs, s.costs
	s.order, first.order = first.order, s.order
	return true, probe
}

// prefillers leaves the endpoints that can take the first leg of a request now, with their matches, in first. s has those for
// the entire request.
func (v *view) prefillers(s, first *scratch, state *pickState, now time.Time) {
	at := v.place(s.request.Model)
	at.prefills = true
	first.candidates = v.eligible(now, &at, state.reach(v, now), first)
	if first.guards == noGuards { // none that answers was left
		first.candidates, first.index = first.candidates[:0], first.index[:0]
		return
	}
	n := 0
	for c, i := range first.index {
		if !v.takes(now, i, &first.candidates[c].Load, 1) || v.members[i].gives.leavesOut(0, now) {
			continue
		}
		first.candidates[n], first.index[n] = first.candidates[c], i
		n++
	}
	first.candidates, first.index = first.candidates[:n], first.index[:n]
	v.matchKeys(first, &state.prompt, true)
	first.chunks = resize(first.chunks, len(s.chunks))
	for h := range s.chunks {
		first.chunks[h] = append(first.chunks[h][:0], s.chunks[h]...)
	}
	v.matchRouted(first, &state.prompt)
}

// receiver is the candidate that a request is best handed over to by an endpoint, and what the hand-off and the wait there cost, in
// seconds; -1 if there is none that has room. Strategies that do not count in seconds keep their first choice.
func (v *view) receiver(s *scratch, scale policy.Policy, from *member, now time.Time) (best int, seconds float64) {
	loaded := slices.Clone(s.candidates)
	question := s.question
	v.load(&question, loaded)
	costs := make([]policy.Cost, len(loaded))
	scale.Score(&question, loaded, costs)
	best = -1
	suits := func(c int) bool {
		return v.handsOver(from, v.members[s.index[c]], now) && v.takes(now, s.index[c], &s.candidates[c].Load, s.needs())
	}
	if v.spec.Policy.Strategy.Type != policy.MarginalCost {
		if i := slices.IndexFunc(s.order, suits); i >= 0 {
			best = s.order[i]
		}
	} else {
		for c := range costs {
			if (best < 0 || costs[c].First < costs[best].First) && suits(c) {
				best = c
			}
		}
	}
	if best < 0 {
		return best, 0
	}
	return best, costs[best].First
}

// handsOver reports whether one endpoint can hand a request over to another one now, as far as is known.
func (v *view) handsOver(from, to *member, now time.Time) bool {
	return from != to && !from.gives.leavesOut(to.hash, now) && !to.receives.leavesOut(from.hash, now)
}

// load turns candidates into ones to which the request's blocks are transferred: the transfer is a delay, and then they hold
// all of the prompt.
func (v *view) load(question *policy.Request, candidates []policy.Candidate) {
	if question.Blocks == 0 {
		question.Blocks = question.PromptTokens / max(1, question.BlockTokens)
	}
	base, perToken := v.handoffs.price.now()
	for c := range candidates {
		candidates[c].Delay += base + perToken*float64(question.Uncached(&candidates[c]))
		candidates[c].Match = kvindex.Match{}
		candidates[c].Match.Tiers[kvblock.GPU] = uint32(question.Blocks) // at most maxKeyed
	}
}

// receive prepares the candidates of a DecodeLeg for the strategy. Strategies that do not count in seconds see what the
// endpoints hold. If only the endpoint that has prefilled is left, it serves the request as a whole.
func (v *view) receive(s *scratch, state *pickState, question *policy.Request, now time.Time) {
	h := &state.handoff
	from := h.from.member
	if !s.keep(func(c int) bool {
		m := v.members[s.index[c]]
		return m == h.planned || v.handsOver(from, m, now)
	}) && !s.keep(func(c int) bool { return v.members[s.index[c]] != from }) {
		v.takeWhole(state)
		return
	}
	s.scored = false
	s.lacking = resize(s.lacking, len(s.candidates))
	for c := range s.candidates {
		s.lacking[c] = question.Uncached(&s.candidates[c])
	}
	if v.spec.Policy.Strategy.Type == policy.MarginalCost {
		v.load(question, s.candidates)
	}
}

// takeWhole makes a DecodeLeg a request as a whole, because the blocks cannot be loaded any more.
func (v *view) takeWhole(state *pickState) {
	v.handoffs.outcomes[HandoffNoDecode].Add(1)
	state.handoff.lease.release()
	state.leg, state.handoff = Whole, handoff{}
}

// keep leaves the candidates for which a function is true. It reports false, and leaves all, if there are none.
func (s *scratch) keep(suits func(c int) bool) bool {
	n := 0
	for c := range s.candidates {
		if !suits(c) {
			continue
		}
		if n != c { // the ones that it displaces were left out
			s.candidates[n], s.index[n], s.matches[n], s.ignored[n] = s.candidates[c], s.index[c], s.matches[c], s.ignored[c]
		}
		n++
	}
	if n == 0 {
		return false
	}
	if n < len(s.candidates) {
		s.candidates, s.index, s.matches, s.ignored, s.scored = s.candidates[:n], s.index[:n], s.matches[:n], s.ignored[:n], false
	}
	return true
}
