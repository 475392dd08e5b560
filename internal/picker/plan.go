package picker

import (
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
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

// plans are the ways to serve a request in a pool with roles, with their costs in seconds.
type plans struct {
	// alone, from and to are endpoints as indices in the view: the one that serves the request alone, and those of the best
	// hand-off. from and to are -1 while there is no hand-off.
	alone, from, to int
	// why the request is not handed over, or PlanHandoff.
	why PlanChoice
	// pull is the best one, chosen or not; nil for none.
	pull *pull
	// whole, prefill, transfer and decode are the costs: of the request alone, and of the parts of the hand-off.
	whole, prefill, transfer, decode float64
	// What the costs are made of, for people: all endpoints as they were compared, and the places in it of alone and from; the
	// endpoints to which blocks are transferred, and the place of to.
	scale                 policy.Policy
	asked, loads          policy.Request
	all, loaded           []policy.Candidate
	best, first, receiver int
	costs                 []policy.Cost
}

// PlanChoice is the plan that was chosen for a request, or why it is served alone.
type PlanChoice uint8

// The choices.
const (
	PlanHandoff    PlanChoice = iota // one endpoint prefills and another one decodes
	PlanRule                         // the policy hands over nothing
	PlanGateway                      // a gateway sends the request, and endpoints that decode have no sidecar for the first leg
	PlanRequest                      // requests of this kind are never handed over
	PlanShort                        // the endpoint that serves it alone lacks no more than a block
	PlanThreshold                    // it lacks less than the policy's uncachedTokens
	PlanLength                       // prompt and answer do not fit the model, which only the request as a whole shows
	PlanNoPrefill                    // no other endpoint that prefills is ready, has room and hands over
	PlanNoDecode                     // no endpoint that decodes has room and takes over from the one that prefills
	PlanCheaper                      // it is cheaper alone
	PlanTried                        // the endpoints are tried again after failures, by another request
	PlanPull                         // one endpoint serves it and loads a part of the prompt from another one
	numPlanChoices int        = iota
)

// String is the value of the metric label.
func (c PlanChoice) String() string {
	return [...]string{
		"handoff", "rule", "gateway", "request", "short", "threshold", "model-length", "no-prefill", "no-decode", "cheaper", "tried", "pull",
	}[c]
}

// because is why a request is served alone, for people; empty if it is handed over.
func (c PlanChoice) because() string {
	if c == PlanHandoff {
		return ""
	}
	return c.String()
}

// split plans a ranked request of a pool with roles. probe reports whether it probes the endpoint that is now the best.
func (p *Picker) split(v *view, s *scratch, state *pickState, probe bool, now time.Time) bool {
	first := v.members[s.index[s.order[0]]]
	split, probes := p.plan(v, s, state, now)
	if !split {
		return probe
	}
	if probe {
		first.circuit.GiveUp() // it is not asked after all
	}
	if state.leg != DecodeLeg {
		return probes
	}
	v.receive(s, state, &s.question, now) // a sidecar sends the first leg
	return v.rank(s, &s.question, now)
}

// plan decides whether a ranked request is handed over. If it is, the candidates for the first leg take the place of those
// for the entire request in s, in order, and probe reports whether the request probes the first of them.
func (p *Picker) plan(v *view, s *scratch, state *pickState, now time.Time) (split, probe bool) {
	w := v.begin(s, state)
	state.plans = w
	var first *scratch
	if w.why == PlanHandoff {
		first = p.scratch.Get().(*scratch)
		defer p.release(first)
		if v.weigh(w, s, first, state, now, true); w.why == PlanHandoff {
			probe = v.take(w, state, now)
		}
	}
	if !state.again && (w.why == PlanHandoff || state.pull == nil) { // else see countPull
		v.handoffs.plans[w.why].Add(1)
	}
	if w.why != PlanHandoff {
		return false, false
	}
	state.coming = v.members[w.to]
	state.leg = PrefillLeg
	s.swapCandidates(first)
	if state.relays {
		p.relay(v, s, state, now)
		s.swapCandidates(first)
	}
	return true, probe
}

// swapCandidates exchanges the candidates of two, and what is known of them.
func (s *scratch) swapCandidates(with *scratch) {
	s.candidates, with.candidates = with.candidates, s.candidates
	s.index, with.index = with.index, s.index
	s.matches, with.matches = with.matches, s.matches
	s.ignored, with.ignored = with.ignored, s.ignored
	s.costs, with.costs = with.costs, s.costs
	s.order, with.order = with.order, s.order
}

// take asks the circuits of both endpoints for a hand-off, which is PlanTried if they let none through. probe reports whether it probes
// the first one.
func (v *view) take(w *plans, state *pickState, now time.Time) (probe bool) {
	from, to := v.members[w.from], v.members[w.to]
	ok, probe := from.circuit.Take(now, v.spec.Policy.CircuitFailures)
	if !ok {
		w.why = PlanTried
		return false
	}
	// A relayed leg is no probe: whether its endpoint has answered does not show.
	if ok = !probe || !state.relays || state.atOnce; ok {
		state.trial, ok = tryPair(from, to, now, v.spec.Policy.CircuitOpen)
	}
	if ok {
		return probe
	}
	if probe {
		from.circuit.GiveUp()
	}
	w.why = PlanTried
	return false
}

// begin makes the plans for a ranked request, in the memory of s. If they are to be compared, the choice is PlanHandoff.
func (v *view) begin(s *scratch, state *pickState) *plans {
	w, best := &s.plans, s.order[0]
	*w = plans{alone: s.index[best], from: -1, to: -1, all: w.all[:0], loaded: w.loaded[:0], costs: w.costs[:0]}
	w.why = v.staysAlone(&v.spec.Policy.Handoffs, s, state)
	return w
}

// weigh compares plans, and changes nothing else but first, which gets the candidates for the first leg. probing: the request
// can probe distrusted matches.
func (v *view) weigh(w *plans, s, first *scratch, state *pickState, now time.Time, probing bool) {
	v.prefillers(s, first, state, now, probing)
	if len(first.candidates) == 0 {
		w.why = PlanNoPrefill
		return
	}
	w.asked, w.scale = s.question, v.strategy
	if v.spec.Policy.Strategy.Type != policy.MarginalCost {
		w.scale = yardstick
	}
	// One call for both kinds of endpoints, so that the terms that depend on all candidates are the same for both.
	n := len(first.candidates)
	w.all, w.best = append(append(w.all, first.candidates...), s.candidates...), n+s.order[0]
	first.costs = resize(first.costs, len(w.all))
	w.scale.Score(&s.question, w.all, first.costs)
	w.whole = first.costs[w.best].First
	least := w.whole
	if state.pull != nil {
		least = min(least, state.pull.cost)
	}
	first.costs = first.costs[:n]
	first.order = policy.Rank(&s.question, first.candidates, first.costs, first.order, max(1, v.spec.Policy.Attempts))
	w.first = first.order[0]
	from := v.members[first.index[w.first]]
	receives := v.receiver(s, w, from, state, now)
	if w.receiver < 0 {
		w.why = PlanNoDecode
		return
	}
	w.from, w.to, w.prefill = first.index[w.first], s.index[w.receiver], first.costs[w.first].First
	w.decode = max(0, receives-(w.loaded[w.receiver].Delay-s.candidates[w.receiver].Delay)) // receives is rounded, the delay is not
	w.transfer = receives - w.decode
	if v.spec.Policy.Handoffs.Rule == HandoffByCost && w.prefill+receives >= least {
		w.why = PlanCheaper
	}
}

// record puts plans into a record of the decision log. The nil plans have none.
func (w *plans) record(v *view) *decisionlog.Plan {
	if w == nil {
		return nil
	}
	p := &decisionlog.Plan{
		HandedOver: w.why == PlanHandoff, Because: w.why.because(),
		Alone: nameOf(&v.spec.Endpoints[w.alone]), AloneCost: thousandths(1000 * w.whole),
	}
	if w.pull != nil {
		p.Pull, p.Peer = nameOf(&v.spec.Endpoints[w.pull.own]), nameOf(w.pull.peer)
		p.PullCost, p.PullTransferCost = thousandths(1000*w.pull.cost), thousandths(1000*w.pull.transfer)
	}
	if w.to >= 0 {
		p.Prefill, p.Decode = nameOf(&v.spec.Endpoints[w.from]), nameOf(&v.spec.Endpoints[w.to])
		p.PrefillCost, p.TransferCost, p.DecodeCost = thousandths(1000*w.prefill), thousandths(1000*w.transfer), thousandths(1000*w.decode)
	}
	return p
}

// staysAlone is why a ranked request is served alone whatever endpoints there are; PlanHandoff if that depends on them.
func (v *view) staysAlone(rule *HandoffSpec, s *scratch, state *pickState) PlanChoice {
	best := s.order[0]
	uncached := s.question.Uncached(&s.candidates[best])
	switch {
	case rule.Rule <= HandoffNever:
		return PlanRule
	case state.gateway != "" && (!rule.Sidecar || state.observed):
		return PlanGateway
	case !state.splits:
		return PlanRequest
	case uncached <= v.spec.BlockTokens:
		return PlanShort
	case rule.Rule == HandoffAbove && uncached < rule.UncachedTokens:
		return PlanThreshold
	case v.tooLong(s.index[best], state.total()+s.request.MaxTokens):
		return PlanLength // the engine refuses it, but only with max_tokens as the client has sent it
	}
	return PlanHandoff
}

// tooLong reports whether an endpoint's model is known to take fewer tokens.
func (v *view) tooLong(i, tokens int) bool {
	most := v.maxLen(v.spec.Endpoints[i].ID)
	return most > 0 && tokens > most
}

// prefillers leaves the endpoints that can take the first leg of a request now, with their matches, in first. s has those for
// the entire request.
func (v *view) prefillers(s, first *scratch, state *pickState, now time.Time, probing bool) {
	at := v.place(s.request.Model)
	at.prefills = true
	first.candidates = v.eligible(now, &at, state.reach(v, now), first)
	if first.guards == noGuards { // none that answers was left
		first.candidates, first.index = first.candidates[:0], first.index[:0]
		return
	}
	n := 0
	for c, i := range first.index {
		if !v.takes(now, i, &first.candidates[c].Load, 1) || v.members[i].gives.leavesOut(0, now) || !state.canRelay(v, i) || !v.pairs(s, i) {
			continue
		}
		first.candidates[n], first.index[n] = first.candidates[c], i
		n++
	}
	first.candidates, first.index = first.candidates[:n], first.index[:n]
	v.matchKeys(first, &state.prompt, probing)
	first.chunks = resize(first.chunks, len(s.chunks))
	for h := range s.chunks {
		first.chunks[h] = append(first.chunks[h][:0], s.chunks[h]...)
	}
	v.matchRouted(first, &state.prompt)
}

// receiver finds the candidate that a request is best handed over to by an endpoint, and returns what the hand-off and the wait
// there cost, in seconds. w.receiver is -1 if there is none that has room. Strategies that do not count in seconds keep their first
// choice.
func (v *view) receiver(s *scratch, w *plans, from *member, state *pickState, now time.Time) (seconds float64) {
	w.loaded, w.loads = append(w.loaded, s.candidates...), s.question
	v.load(&w.loads, w.loaded)
	w.costs = resize(w.costs, len(w.loaded))
	costs := w.costs
	w.scale.Score(&w.loads, w.loaded, costs)
	w.receiver = -1
	suits := func(c int) bool {
		i := s.index[c]
		return v.handsOver(from, v.members[i], now) && state.canRelay(v, i) && v.takes(now, i, &s.candidates[c].Load, s.needs())
	}
	if v.spec.Policy.Strategy.Type != policy.MarginalCost {
		if i := slices.IndexFunc(s.order, suits); i >= 0 {
			w.receiver = s.order[i]
		}
	} else {
		for c := range costs {
			if (w.receiver < 0 || costs[c].First < costs[w.receiver].First) && suits(c) {
				w.receiver = c
			}
		}
	}
	if w.receiver < 0 {
		return 0
	}
	return costs[w.receiver].First
}

// handsOver reports whether one endpoint can hand a request over to another one now, as far as is known.
func (v *view) handsOver(from, to *member, now time.Time) bool {
	return from != to && from.sameRevision(to) && !from.gives.leavesOut(to.hash, now) && !to.receives.leavesOut(from.hash, now)
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
// endpoints hold. If no other endpoint of the revision that has prefilled is left, the request is served as a whole.
func (v *view) receive(s *scratch, state *pickState, question *policy.Request, now time.Time) {
	h := &state.handoff
	from := h.from.member
	if !s.keep(func(c int) bool {
		m := v.members[s.index[c]]
		return m == h.planned || v.handsOver(from, m, now) && state.canRelay(v, s.index[c])
	}) && !s.keep(func(c int) bool { m := v.members[s.index[c]]; return m != from && from.sameRevision(m) }) {
		v.takeWhole(state, now)
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
func (v *view) takeWhole(state *pickState, now time.Time) {
	v.handoffs.outcomes[HandoffNoDecode].Add(1)
	state.handoff.lease.release()
	state.handoff.trial.giveUp(now)
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
