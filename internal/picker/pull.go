package picker

import (
	"math"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// pull is a plan for a request that one endpoint serves alone: it loads a part of the prompt from another one, its peer, which holds more
// of it, and computes the rest. It is compared with all endpoints as they are, by the same terms:
//
//	pull = wait, prefill of what the peer lacks and harm at the endpoint + transfer of what the peer holds and the endpoint lacks
//
// What is loaded takes a place in the cache as what is computed does, and costs as much for it: without that, pulls of an overloaded
// fleet fill all caches with copies. The price of the transfer is that of hand-offs. The engine computes what the peer does not hold
// any more, so that a pull cannot fail. Only strategies that count in seconds pull.
type pull struct {
	candidate int
	peer      *endpoint.Endpoint
	// tokens are transferred, lacks are computed.
	tokens, lacks int
	// cost of the pull in seconds, with the transfer in it, and whole is that of the endpoint that was the best without it.
	cost, transfer, whole float64
	// What the costs are made of, for people: the endpoints as they are, then as ones that pull; the places in it of the best one and of the
	// one that pulls. alone is the best one as an index in the view.
	asked      policy.Request
	all        []policy.Candidate
	best, at   int
	alone, own int
}

// ifCheaper is the pull if it costs less than the endpoint that was the best without it.
func (p *pull) ifCheaper() *pull {
	if p == nil || p.cost >= p.whole {
		return nil
	}
	return p
}

// pulled is a pull that was chosen, as long as its request is under way.
type pulled struct {
	peer          *endpoint.Endpoint
	tokens, lacks int
	// expected is the predicted time to the first token without the transfer. took is what was left for the transfer, once timed.
	expected, took time.Duration
	timed          bool
}

// PullFrom is the endpoint that the first target loads a part of the prompt from; nil if it loads nothing.
func (d *Decision) PullFrom() *endpoint.Endpoint {
	if d.handoff.pulls == nil {
		return nil
	}
	return d.handoff.pulls.peer
}

// describePull fills in the pull that was chosen. Nothing is booked for it yet.
func (d *Decision) describePull(p *pull, m *member) {
	if p != nil {
		expected := m.load.Predict(d.now(), load.WorkOf(p.lacks, d.PromptTokens-p.lacks))
		d.handoff.pulls = &pulled{peer: p.peer, tokens: p.tokens, lacks: p.lacks, expected: expected}
	}
}

// timePull takes the time of a pull from the first token. d.mu is held.
func (d *Decision) timePull(now time.Time) {
	if p := d.handoff.pulls; p != nil && d.streamed && !d.retried && d.first.IsZero() {
		p.took, p.timed = now.Sub(d.sent)-p.expected, true
	}
}

// learnPull takes the price of a pull, once the answer has shown that the endpoint has found what the peer was to lend. Of a long wait or
// prefill, nothing is learned: what their prediction was wrong by is more than the transfer. d.mu is held.
func (d *Decision) learnPull(cachedTokens int) {
	p, price := d.handoff.pulls, &d.view.handoffs.price
	if p == nil || !p.timed || cachedTokens < d.PromptTokens-p.lacks-d.view.spec.BlockTokens ||
		p.expected.Seconds() > price.seconds(p.tokens) {
		return
	}
	p.timed = false
	price.learn(p.tokens, p.took.Seconds())
}

// pullable reports whether a ranked request can be served with blocks of a peer.
func (v *view) pullable(state *pickState) bool {
	rule := &v.spec.Policy.Handoffs
	return state.pulls && state.leg == Whole && rule.Rule == HandoffByCost && rule.Connector == Offloading &&
		v.spec.Policy.Strategy.Type == policy.MarginalCost
}

// planPull finds the best pull for a ranked request; nil if there is none.
func (v *view) planPull(s *scratch, state *pickState, now time.Time) *pull {
	if !v.pullable(state) || len(s.candidates) < 2 {
		return nil
	}
	question, peer := &s.question, -1
	for c := range s.candidates {
		if !s.ignored[c] && v.spec.Endpoints[s.index[c]].RankHeader < 0 &&
			(peer < 0 || question.Uncached(&s.candidates[c]) < question.Uncached(&s.candidates[peer])) {
			peer = c
		}
	}
	if peer < 0 {
		return nil
	}
	n := len(s.candidates)
	base, perToken := v.handoffs.price.now()
	all := append(append(make([]policy.Candidate, 0, 2*n), s.candidates...), s.candidates...)
	lacks := question.Uncached(&s.candidates[peer])
	for c := range s.candidates {
		gain := question.Uncached(&s.candidates[c]) - lacks
		all[n+c].Match, all[n+c].Loads = s.candidates[peer].Match, max(0, gain)
		all[n+c].Delay += base + perToken*float64(gain)
	}
	costs := make([]policy.Cost, 2*n)
	v.strategy.Score(question, all, costs)
	best := &pull{
		candidate: -1, cost: math.Inf(1), peer: &v.spec.Endpoints[s.index[peer]], lacks: lacks, asked: *question, all: all,
		best: s.order[0], alone: s.index[s.order[0]], whole: costs[s.order[0]].First,
	}
	for c := range s.candidates {
		gain := question.Uncached(&s.candidates[c]) - lacks
		if gain <= v.spec.BlockTokens || costs[n+c].First >= best.cost || !v.members[s.index[c]].sameRevision(v.members[s.index[peer]]) ||
			!v.takes(now, s.index[c], &s.candidates[c].Load, s.needs()) {
			continue
		}
		best.candidate, best.at, best.own = c, n+c, s.index[c]
		best.tokens, best.transfer, best.cost = gain, base+perToken*float64(gain), costs[n+c].First
	}
	if best.candidate < 0 {
		return nil
	}
	return best
}

// joinPlans puts a pull that was weighed beside the other plans for a request, for people.
func (v *view) joinPlans(s *scratch, state *pickState) {
	p := state.weighed
	if p == nil {
		return
	}
	if state.plans == nil { // in a pool without roles
		state.plans = &s.plans
		*state.plans = plans{alone: p.alone, from: -1, to: -1, why: PlanCheaper}
	}
	w := state.plans
	w.pull = p
	if w.whole == 0 {
		w.whole = p.whole
	}
	switch {
	case w.why == PlanHandoff:
	case state.pull != nil:
		w.why = PlanPull
	case p.ifCheaper() != nil:
		w.why = PlanTried
	}
}

// takePull makes a pull's endpoint the first one of the request.
func (s *scratch) takePull(p *pull) {
	at := 0
	for i, c := range s.order {
		if c == p.candidate {
			at = i
		}
	}
	if s.order[at] != p.candidate { // it was not among the best
		s.order = append(s.order, p.candidate)
		at = len(s.order) - 1
	}
	copy(s.order[1:at+1], s.order[:at])
	s.order[0] = p.candidate
}

// begins makes a pull's endpoint the first one, unless its circuit lets no request through. probe reports whether the request probes it.
func (v *view) begins(s *scratch, state *pickState, probe bool, now time.Time) bool {
	p := state.pull
	if p.candidate == s.order[0] {
		return probe
	}
	first := v.members[s.index[s.order[0]]]
	ok, probes := v.members[s.index[p.candidate]].circuit.Take(now, v.spec.Policy.CircuitFailures)
	if !ok {
		state.pull = nil
		return probe
	}
	if probe {
		first.circuit.GiveUp() // it is not asked after all
	}
	s.takePull(p)
	return probes
}

// countPull counts the plan of a request for which a pull was the cheapest.
func (v *view) countPull(state *pickState) {
	switch {
	case state.again:
	case state.pull != nil:
		v.handoffs.plans[PlanPull].Add(1)
	case v.roles:
		v.handoffs.plans[PlanTried].Add(1)
	}
}
