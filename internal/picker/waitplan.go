package picker

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// Where and when a request is sent is one decision. A request waits for its cheapest endpoint, and waiting is part of the
// cost. If the endpoint were chosen among those that happen to have room, a full pool would copy each prefix to every
// endpoint, the copies would evict what other requests need, and the pool would not recover (docs/decisions.md).

const (
	// placementLasts is for how long the placement of a waiting request is used, at least, before it is computed again.
	// What is released is always computed again first. The more wait, the longer it is used, so that all placements
	// together take about a tenth of a core: placementCost is what one takes, and endpointCost what it takes besides for
	// each prompt at each endpoint (BenchmarkLook).
	placementLasts              = 20 * time.Millisecond
	placementCost, endpointCost = 3 * time.Microsecond, 400 * time.Nanosecond
	// keysPerPrompt is how many keys of a reloaded adapter take as long as a prompt at an endpoint: they are compared one
	// by one.
	keysPerPrompt = 8
	// maxPlaced bounds the placements that one look computes, and maxCompared the prompts that it compares with endpoints
	// for them, save those of the last placement. maxConfirmed is how often it finds that a request which it would release
	// is better off waiting.
	maxPlaced, maxCompared, maxConfirmed = 256, 256 * 64, 8
	// patience is how much prefill a second of waiting outweighs, in seconds: a request is overtaken by one whose prefill
	// takes a second less unless it has waited 50 s longer.
	patience = 0.02
	// A request that has waited for more than overduePart of its time to live is overtaken at most mostOvertaken times more. If its endpoint
	// has room for some of its sequences only, that room is kept for it then.
	overduePart, mostOvertaken = 0.5, 3
	// A request whose turn comes after that of others, which wait at other replicas, has only this part of the wait budget. So an endpoint
	// has room for the others first, and none stays idle: what they do not use is used for it, too, and reports can be late or wrong.
	yieldPart = 2
	// overtakenEnough is the cost of such a request: less than any other.
	overtakenEnough = -1e9
)

// placement is where a waiting request would be sent, as of a moment.
type placement struct {
	of       *view
	at       time.Time
	look     uint64 // the admission queue's, when it was computed
	endpoint int    // its place in the pool; -1 if no endpoint can take the request
	work     queued // that it would bring
	compared int    // prompts with endpoints, to compute it
}

// queued is the work of requests that wait in the picker for an endpoint: their uncached tokens, the pairs of tokens that
// attention compares for them, and all their tokens.
type queued struct{ tokens, pairs, context float64 }

func (q *queued) add(w *queued) {
	q.tokens += w.tokens
	q.pairs += w.pairs
	q.context += w.context
}

// apply shows the work to strategies as if it had been sent. The requests do not count as in flight: they do not decode,
// and nothing delays their answers.
func (q *queued) apply(l *load.View) {
	l.PendingTokens += q.tokens
	l.PendingPairs += q.pairs
	l.PendingContext += q.context
}

// queuedAs is what a look has to know of a request besides its keys, computed where its body is at hand.
type queuedAs struct {
	question  policy.Request
	sequences int           // one for each answer to each prompt
	others    int           // tokens of prompts that are not matched
	own       time.Duration // of its prefill, where it was placed last, or at the endpoint with the longest match
	chunks    [][]routinghistory.Chunk
}

// bytes that it keeps in memory besides the body: its chunks are eight bytes each.
func (q *queuedAs) bytes() (n int64) {
	for _, chunks := range q.chunks {
		n += 8 * int64(len(chunks))
	}
	return n
}

// waits reports whether requests wait in the picker for the endpoint that is best for them. Otherwise they are sent at
// once, or by a target for first tokens (intime.go), and full endpoints are avoided.
func (a *AdmissionSpec) waits() bool { return a.Queue && a.Slowdown <= 0 }

// isFull reports whether an endpoint cannot accept a request: it is short of KV blocks, or at its ceiling.
func (v *view) isFull(now time.Time, i int, l *load.View) bool {
	return l.KVUsage > v.spec.Policy.MaxKVUsage || v.members[i].ceiling.places(now, l) == 0
}

// takes reports whether an endpoint can be sent a request of so many sequences now: it can accept it, or serves nothing, and would
// begin the prefill within the wait budget. Where requests do not wait, every endpoint is sent what is chosen for it. Of several
// sequences, one that serves nothing decides itself: there will never be more room.
func (v *view) takes(now time.Time, i int, l *load.View, sequences int) bool {
	return v.takesWithin(now, i, l, sequences, v.spec.Policy.Admission.WaitBudget)
}

// takesWithin is takes with another wait budget.
func (v *view) takesWithin(now time.Time, i int, l *load.View, sequences int, budget time.Duration) bool {
	a := &v.spec.Policy.Admission
	return !a.waits() || admission.Backlog(l) <= budget &&
		(v.members[i].ceiling.places(now, l) >= sequences || sequences > 1 && l.Sequences == 0) &&
		(l.KVUsage <= v.spec.Policy.MaxKVUsage || l.InFlight == 0)
}

// goes reports whether a request can be sent at once: the endpoint that is best for it takes it. If it had to match and score
// the candidates to find out, choose need not do so again (s.scored).
func (v *view) goes(now time.Time, s *scratch, state *pickState) bool {
	free := 0
	for i := range s.candidates {
		if v.takes(now, s.index[i], &s.candidates[i].Load, s.needs()) {
			free++
		}
	}
	if free == 0 || free == len(s.candidates) {
		return free > 0
	}
	v.match(s, &state.prompt, false)
	s.question = v.question(s, state, now)
	best := v.bestToWaitFor(s, &state.prompt, now)
	goes := v.takes(now, s.index[best], &s.candidates[best].Load, s.needs())
	// Strategies with turns have to take theirs, and matches that are distrusted are probed.
	s.scored = goes && !policy.TakesTurns(v.strategy) && !slices.Contains(s.ignored, true)
	return goes
}

// bestToWaitFor is the candidate that a matched request (s.question) is best sent to, now or once it takes it. Waiting for
// an endpoint costs at least the time for which it has made no progress: so long prompts that decode in a full cache, an
// engine that has stopped, and a limit that is reached become more expensive until requests go elsewhere. A strategy that
// does not count in seconds might prefer such an endpoint for very little. Then waiting has to pay by the estimate of
// MarginalCost; otherwise the best one of those that take the request counts.
func (v *view) bestToWaitFor(s *scratch, p *prompt, now time.Time) int {
	for i := range s.candidates {
		if c := &s.candidates[i]; !v.takes(now, s.index[i], &c.Load, s.needs()) {
			c.Delay += c.Load.Stuck.Seconds()
		}
	}
	v.keepInIsland(s, &s.question)
	v.matchHistory(s, p, &s.question, v.history)
	s.costs = resize(s.costs, len(s.candidates))
	policy.Still(v.strategy).Score(&s.question, s.candidates, s.costs)
	s.order = policy.Rank(&s.question, s.candidates, s.costs, s.order, len(s.candidates))
	best := s.order[0]
	if v.takes(now, s.index[best], &s.candidates[best].Load, s.needs()) {
		return best
	}
	for _, i := range s.order {
		if !v.takes(now, s.index[i], &s.candidates[i].Load, s.needs()) {
			continue
		}
		estimates := s.costs
		if v.spec.Policy.Strategy.Type != policy.MarginalCost {
			s.estimates = resize(s.estimates, len(s.candidates))
			yardstick.Score(&s.question, s.candidates, s.estimates)
			estimates = s.estimates
		}
		if estimates[i].First <= estimates[best].First {
			return i
		}
		break
	}
	return best
}

// order ranks the candidates that are tried, the best first, into s.order. Those that take the request now precede the others,
// which are its fallbacks.
func (v *view) order(s *scratch, question *policy.Request, now time.Time) {
	tried := max(1, v.spec.Policy.Attempts)
	takes := func(c int) bool { return v.takes(now, s.index[c], &s.candidates[c].Load, s.needs()) }
	full := 0
	for c := range s.candidates {
		if !takes(c) {
			full++
		}
	}
	if full == 0 || full == len(s.candidates) { // nearly always: only the best ones need an order
		s.order = policy.Rank(question, s.candidates, s.costs, s.order, tried)
		return
	}
	s.order = policy.Rank(question, s.candidates, s.costs, s.order, len(s.candidates))
	slices.SortStableFunc(s.order, func(a, b int) int {
		switch first, second := takes(a), takes(b); {
		case first == second:
			return 0
		case first:
			return -1
		}
		return 1
	})
	s.order = s.order[:min(len(s.order), tried)]
}

// next is the waiting request to release now, nil if none can be: of the tenants whose requests can be released the one
// whose turn it is, and of its requests the one with the shortest prefill, because a prompt that is cached now can be evicted
// while it waits. It yields to the turns of requests that wait at other replicas (yieldPart). g.scratch has the candidates of
// the base model. q.mu is held.
func (q *admissionQueue) next(now time.Time, v *view, turns []admission.Turn) *admission.Ticket {
	if !v.spec.Policy.Admission.Queue {
		return q.tickets.Next()
	}
	if q.placing > 0 {
		return nil // what that one does to its endpoint is not known yet
	}
	q.looks++
	l := look{
		queue: q, now: now, view: v, turns: turns, left: maxPlaced, toCompare: maxCompared,
		base: lookBase{append([]policy.Candidate(nil), q.scratch.candidates...), append([]int(nil), q.scratch.index...)},
	}
	budget := v.spec.Policy.Admission.WaitBudget
	l.free = v.free(now, &l.base, budget)
	if len(turns) > 0 {
		l.spare = v.free(now, &l.base, budget/yieldPart)
	}
	if len(l.base.candidates) > 0 && !slices.Contains(l.free, true) {
		return nil
	}
	for range maxConfirmed {
		w := l.choose()
		if w == nil {
			return nil
		}
		if w.placement.look == q.looks || w.placement.endpoint < 0 {
			l.overtakes(w)
			return &w.ticket
		}
		w.placement.at = time.Time{} // chosen by what was known earlier
	}
	return nil
}

// lookBase are the candidates of the base model that a look has read.
type lookBase struct {
	candidates []policy.Candidate
	index      []int
}

// free reports for each of the pool's endpoints whether it can be sent a request of one sequence now, within a wait budget. Endpoints
// that are no candidates of the base model count too: a gateway's subset can consist of them.
func (v *view) free(now time.Time, base *lookBase, budget time.Duration) []bool {
	free, read := make([]bool, len(v.members)), make([]bool, len(v.members))
	for c, i := range base.index {
		free[i], read[i] = v.takesWithin(now, i, &base.candidates[c].Load, 1, budget), true
	}
	for i, m := range v.members {
		if !read[i] && v.spec.Endpoints[i].Pickable() {
			l := m.load.View(now)
			free[i] = v.takesWithin(now, i, &l, 1, budget)
		}
	}
	return free
}

// look is one search for the request to release.
type look struct {
	queue *admissionQueue
	now   time.Time
	view  *view
	base  lookBase
	free  []bool // by endpoint: it can be sent a request of one sequence
	spare []bool // the same for requests that yield to turns
	turns []admission.Turn
	ahead []queued // by endpoint: the work of requests that wait for it
	// left is how many placements can be computed, and toCompare how many prompts can be compared with endpoints.
	left, toCompare int
	overdue         []*waiter
	// narrow are overdue requests whose endpoints have room, but not for all of their sequences; kept are the endpoints whose room is kept
	// for one of them.
	narrow []*waiter
	kept   []bool
	order  []*waiter // of one tenant
}

// choose is next, by placements that are not too old. Requests that have to wait count as work of their endpoints for those
// behind them, in the order in which they would be released. The overdue requests that are passed over are left in l.overdue and
// l.narrow.
func (l *look) choose() (chosen *waiter) {
	l.ahead, l.overdue, l.narrow = make([]queued, len(l.view.members)), l.overdue[:0], l.narrow[:0]
	l.kept = resize(l.kept, len(l.view.members))
	clear(l.kept)
	l.queue.tickets.EachTenant(func(tickets []*admission.Ticket) bool {
		yields := tickets[0].Yields(l.turns)
		l.order = l.order[:0]
		for _, t := range tickets {
			l.order = append(l.order, l.queue.waiters[t])
		}
		slices.SortStableFunc(l.order, func(a, b *waiter) int { return cmp.Compare(a.cost(l.now), b.cost(l.now)) })
		for _, w := range l.order {
			switch p := l.placed(w); {
			case p == nil: // nothing is known of it yet
			case p.endpoint < 0:
				// A subset without an endpoint is refused while others of the pool serve, and held while none does. What a gateway
				// might not know yet can be the endpoint that the request waits for.
				if len(l.base.candidates) > 0 && (!w.state.remote || !l.view.someFresh(l.now)) {
					chosen = w
					return false
				}
			case !l.takes(p.endpoint, w.sequences):
				l.ahead[p.endpoint].add(&p.work)
				l.keepFor(w)
			case yields && !l.takesYielding(p.endpoint, w.sequences):
				l.ahead[p.endpoint].add(&p.work)
			case chosen == nil:
				chosen = w
			case w.late(l.now):
				l.overdue = append(l.overdue, w)
			}
		}
		return chosen == nil
	})
	return chosen
}

// overtakes counts that a request is released before others that are overdue.
func (l *look) overtakes(released *waiter) {
	for _, late := range l.overdue {
		late.overtaken++
	}
	for _, late := range l.narrow {
		if late.placement.endpoint == released.placement.endpoint {
			late.overtaken++
		}
	}
}

// keepFor keeps what room its endpoint has for a request that waits for more of it, if the request was overtaken often enough. One that
// exceeds the limit of the endpoint is not worth that.
func (l *look) keepFor(w *waiter) {
	endpoint := w.placement.endpoint
	switch {
	case !l.free[endpoint] || !w.late(l.now) || !l.view.members[endpoint].ceiling.holds(l.now, w.sequences):
	case w.overtaken >= mostOvertaken:
		l.kept[endpoint] = true
	default:
		l.narrow = append(l.narrow, w)
	}
}

// takes reports whether an endpoint can be sent a request of so many sequences now.
func (l *look) takes(endpoint, sequences int) bool {
	if l.kept[endpoint] {
		return false
	}
	if !l.free[endpoint] || sequences == 1 {
		return l.free[endpoint]
	}
	at := l.view.members[endpoint].load.View(l.now)
	return l.view.takes(l.now, endpoint, &at, sequences)
}

// takesYielding is takes for a request whose turn comes after that of others, which wait at other replicas.
func (l *look) takesYielding(endpoint, sequences int) bool {
	if !l.spare[endpoint] || sequences == 1 {
		return l.spare[endpoint]
	}
	at := l.view.members[endpoint].load.View(l.now)
	return l.view.takesWithin(l.now, endpoint, &at, sequences, l.view.spec.Policy.Admission.WaitBudget/yieldPart)
}

// cost orders the requests of a tenant, the lowest first: the seconds of its own prefill less what its wait outweighs. One
// that was overtaken often enough precedes all others.
func (w *waiter) cost(now time.Time) float64 {
	waited := now.Sub(w.ticket.Since()).Seconds()
	if w.overtaken >= mostOvertaken {
		return overtakenEnough - waited
	}
	return w.own.Seconds() - patience*waited
}

// late reports whether a request has waited for a large part of its time to live.
func (w *waiter) late(now time.Time) bool {
	return now.Sub(w.ticket.Since()).Seconds() > overduePart*w.ticket.TTL.Seconds()
}

// placed is the placement of a waiting request, computed again if it is too old; nil if there is none and none can be
// computed any more.
func (l *look) placed(w *waiter) *placement {
	p := &w.placement
	lasts := max(placementLasts,
		10*(time.Duration(l.queue.tickets.Len())*placementCost+time.Duration(l.queue.compared)*endpointCost))
	if p.of == l.view && l.now.Sub(p.at) < lasts {
		return p
	}
	if l.left > 0 && l.toCompare > 0 {
		l.left--
		l.place(w)
		l.toCompare -= p.compared
	}
	if p.of != l.view {
		return nil
	}
	return p
}

// comparisons is how many prompts are compared with endpoints to match a request with all candidates.
func (v *view) comparisons(s *scratch, p *prompt) int {
	n := len(s.index) * (1 + len(p.more))
	if p.adapter == "" {
		return n
	}
	keys := len(p.keys)
	for i := range p.more {
		keys += len(p.more[i].keys)
	}
	for _, i := range s.index {
		if v.members[i].reloads.active.Load() {
			n += keys / keysPerPrompt
		}
	}
	return n
}

// place computes the placement of a waiting request behind the requests that wait ahead of it. The mu of the admission queue is held.
func (l *look) place(w *waiter) {
	v, s := l.view, &l.queue.scratch
	s.candidates, s.index = append(s.candidates[:0], l.base.candidates...), append(s.index[:0], l.base.index...)
	if !w.anywhere(v, l.now) {
		s.candidates = w.eligible(l.now, v, s)
	}
	p := &w.placement
	compared := v.comparisons(s, &w.state.prompt)
	l.queue.compared += compared - p.compared
	*p = placement{of: v, at: l.now, look: l.queue.looks, endpoint: -1, compared: compared}
	if len(s.candidates) == 0 {
		return
	}
	v.matchKeys(s, &w.state.prompt, false)
	s.chunks = resize(s.chunks, len(v.histories))
	for h := range s.chunks {
		s.chunks[h] = s.chunks[h][:0]
		if len(w.chunks) == len(v.histories) {
			s.chunks[h] = append(s.chunks[h], w.chunks[h]...)
		}
	}
	v.matchRouted(s, &w.state.prompt)
	for i := range s.candidates {
		l.ahead[s.index[i]].apply(&s.candidates[i].Load)
	}
	s.question, s.sequences = w.question, w.sequences
	best := v.bestToWaitFor(s, &w.state.prompt, l.now)
	c := &s.candidates[best]
	work := load.WorkOf(s.question.Uncached(c)+w.others, s.question.MatchTokens(c))
	p.endpoint, w.own = s.index[best], admission.Prefill(&c.Load, work)
	p.work = queued{work.Tokens, work.Pairs, float64(s.question.PromptTokens + w.others)}
}
