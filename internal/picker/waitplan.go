package picker

import (
	"math"
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
	// together take about a tenth of a core: placementCost is what one takes, and endpointCost what it takes for each
	// endpoint besides (BenchmarkLook).
	placementLasts              = 20 * time.Millisecond
	placementCost, endpointCost = 3 * time.Microsecond, 400 * time.Nanosecond
	// maxPlaced bounds the placements that one look computes.
	maxPlaced = 256
	// maxConfirmed bounds how often a look finds that a request which it would release is better off waiting.
	maxConfirmed = 16
	// patience is how much prefill a second of waiting outweighs, in seconds: a request is overtaken by one whose prefill
	// takes a second less unless it has waited 50 s longer.
	patience = 0.02
	// Once a request has waited for more than overduePart of its time to live, one release in overdueEvery is the oldest
	// that can be released. So no request is refused because cheaper ones keep coming.
	overdueEvery, overduePart = 4, 0.5
)

// placement is where a waiting request would be sent, as of a moment.
type placement struct {
	of       *view
	at       time.Time
	endpoint int // its place in the pool; -1 if no endpoint can take the request
	// own is the time of its prefill there, tokens and context what it would bring: its uncached tokens, and all.
	own     time.Duration
	tokens  float64
	context float64
}

// queued is the work of requests that wait in the picker for an endpoint.
type queued struct{ tokens, context float64 }

func (q *queued) add(p *placement) {
	q.tokens += p.tokens
	q.context += p.context
}

// apply shows the work to strategies as if it had been sent. The requests do not count as in flight: they do not decode,
// and nothing delays their answers.
func (q *queued) apply(l *load.View) {
	l.PendingTokens += q.tokens
	l.PendingContext += q.context
}

// waits reports whether requests wait in the picker for the endpoint that is best for them. Otherwise they are sent at
// once, or by a target for first tokens (intime.go), and full endpoints are avoided.
func (a *AdmissionSpec) waits() bool { return a.Queue && a.Slowdown <= 0 }

// isFull reports whether an endpoint cannot accept a request: it is short of KV blocks, or at its ceiling.
func (v *view) isFull(now time.Time, i int, l *load.View) bool {
	return l.KVUsage > v.spec.Policy.MaxKVUsage || v.members[i].ceiling.places(now, l) == 0
}

// takes reports whether an endpoint can be sent a request now: it can accept it, or serves nothing, and would begin the
// prefill within the wait budget.
func (v *view) takes(now time.Time, i int, l *load.View) bool {
	if a := &v.spec.Policy.Admission; a.waits() && admission.Wait(l) > a.WaitBudget {
		return false
	}
	if v.members[i].ceiling.places(now, l) == 0 {
		return false
	}
	return l.KVUsage <= v.spec.Policy.MaxKVUsage || l.InFlight == 0
}

// goes reports whether a request can be sent at once: the endpoint that is best for it takes it.
func (v *view) goes(now time.Time, s *scratch, in *asked) bool {
	free := 0
	for i := range s.candidates {
		if v.takes(now, s.index[i], &s.candidates[i].Load) {
			free++
		}
	}
	if free == 0 || free == len(s.candidates) {
		return free > 0
	}
	v.match(s, &in.prompt, false)
	s.question = v.question(s, in, now)
	best := v.bestToWaitFor(s, &in.prompt, now)
	return v.takes(now, s.index[best], &s.candidates[best].Load)
}

// keepFree takes out the candidates that would let the request wait, unless all would.
func (v *view) keepFree(now time.Time, s *scratch) {
	n := 0
	for i := range s.candidates {
		if v.takes(now, s.index[i], &s.candidates[i].Load) {
			if n < i {
				s.candidates[n], s.index[n] = s.candidates[i], s.index[i]
			}
			n++
		}
	}
	if n > 0 {
		s.candidates, s.index = s.candidates[:n], s.index[:n]
	}
}

// bestToWaitFor is the candidate that a matched request (s.question) is best sent to, now or once it takes it. A strategy
// that does not count in seconds might prefer a full endpoint for very little. Then waiting has to pay by the estimate of
// MarginalCost; otherwise the best one of those that take the request counts.
func (v *view) bestToWaitFor(s *scratch, p *prompt, now time.Time) int {
	v.stay(s, &s.question)
	v.recall(s, p, &s.question, v.history)
	s.costs = resize(s.costs, len(s.candidates))
	policy.Still(v.strategy).Score(&s.question, s.candidates, s.costs)
	s.order = policy.Rank(&s.question, s.candidates, s.costs, s.order, len(s.candidates))
	best := s.order[0]
	if v.spec.Policy.Strategy.Type == policy.MarginalCost || v.takes(now, s.index[best], &s.candidates[best].Load) {
		return best
	}
	for _, i := range s.order {
		if v.takes(now, s.index[i], &s.candidates[i].Load) {
			s.estimates = resize(s.estimates, len(s.candidates))
			yardstick.Score(&s.question, s.candidates, s.estimates)
			if s.estimates[i].First < s.estimates[best].First {
				return i
			}
			return best
		}
	}
	return best
}

// next is the waiting request to release now, nil if none can be: the first in turn whose endpoint takes it. If several of
// its tenant can be released, the one with the shortest prefill is sent first: a request whose prompt is cached now can lose it
// by waiting. g.scratch has the candidates of the base model. g.mu is held.
func (g *gate) next(now time.Time, v *view) *admission.Ticket {
	if !v.spec.Policy.Admission.Queue {
		return g.queue.Next()
	}
	if g.placing > 0 {
		return nil // what that one does to its endpoint is not known yet
	}
	base := lookBase{append([]policy.Candidate(nil), g.scratch.candidates...), append([]int(nil), g.scratch.index...)}
	free := v.free(now, &base)
	if len(base.candidates) > 0 && !slices.Contains(free, true) {
		return nil
	}
	for range maxConfirmed {
		t := g.cheapestInTurn(now, v, &base, free)
		if t == nil || g.waiters[t].placement.at.Equal(now) {
			return t
		}
		g.waiters[t].placement.at = time.Time{} // chosen by what was known earlier
	}
	return nil
}

// lookBase are the candidates of the base model that a look has read.
type lookBase struct {
	candidates []policy.Candidate
	index      []int
}

// free reports for each of the pool's endpoints whether it can be sent a request now. Endpoints that are no candidates of the
// base model count too: a gateway's subset can consist of them.
func (v *view) free(now time.Time, base *lookBase) []bool {
	free, read := make([]bool, len(v.members)), make([]bool, len(v.members))
	for c, i := range base.index {
		free[i], read[i] = v.takes(now, i, &base.candidates[c].Load), true
	}
	for i, m := range v.members {
		if !read[i] && v.spec.Endpoints[i].Pickable() {
			l := m.load.View(now)
			free[i] = v.takes(now, i, &l)
		}
	}
	return free
}

// cheapestInTurn is next, by placements that are not too old. Requests that have to wait count as work of
// their endpoints for those behind them.
func (g *gate) cheapestInTurn(now time.Time, v *view, base *lookBase, free []bool) (chosen *admission.Ticket) {
	ahead := make([]queued, len(v.members))
	least, placed := math.Inf(1), 0
	lasts := max(placementLasts, 10*time.Duration(g.queue.Len())*(placementCost+time.Duration(len(v.members))*endpointCost))
	g.queue.InTurn(func(t *admission.Ticket) bool {
		if chosen != nil && (t.Level != chosen.Level || t.Tenant != chosen.Tenant) {
			return false
		}
		w := g.waiters[t]
		p := &w.placement
		if p.of != v || now.Sub(p.at) >= lasts {
			switch {
			case placed < maxPlaced:
				placed++
				g.placeWaiting(now, v, w, base, ahead)
			case p.of != v:
				return true // nothing is known of it yet
			}
		}
		if p.endpoint < 0 {
			// A subset without an endpoint is refused while others of the pool serve, and held while none does.
			if len(base.candidates) > 0 {
				chosen = t
			}
			return chosen == nil
		}
		if !free[p.endpoint] {
			ahead[p.endpoint].add(p)
			return true
		}
		waited := now.Sub(t.Since())
		overdue := g.released%overdueEvery == 0 && waited.Seconds() > overduePart*t.TTL.Seconds()
		if cost := p.own.Seconds() - patience*waited.Seconds(); cost < least || overdue {
			chosen, least = t, cost
		}
		return !overdue
	})
	return chosen
}

// placeWaiting computes the placement of a waiting request behind the requests that wait ahead of it. g.mu is held.
func (g *gate) placeWaiting(now time.Time, v *view, w *waiter, base *lookBase, ahead []queued) {
	s := &g.scratch
	s.candidates, s.index = append(s.candidates[:0], base.candidates...), append(s.index[:0], base.index...)
	if !w.anywhere(v) {
		s.candidates = w.eligible(now, v, s)
	}
	p := &w.placement
	*p = placement{of: v, at: now, endpoint: -1}
	if len(s.candidates) == 0 {
		return
	}
	v.matchKeys(s, &w.asked.prompt, false)
	s.chunks = resize(s.chunks, len(v.histories))
	for h := range s.chunks {
		s.chunks[h] = s.chunks[h][:0]
		if len(w.chunks) == len(v.histories) {
			s.chunks[h] = append(s.chunks[h], w.chunks[h]...)
		}
	}
	v.matchRouted(s, &w.asked.prompt)
	for i := range s.candidates {
		ahead[s.index[i]].apply(&s.candidates[i].Load)
	}
	s.question = w.question
	best := v.bestToWaitFor(s, &w.asked.prompt, now)
	c := &s.candidates[best]
	p.endpoint = s.index[best]
	p.tokens, p.context = float64(s.question.Uncached(c)), float64(s.question.PromptTokens)
	p.own = admission.Prefill(&c.Load, load.WorkOf(s.question.Uncached(c), s.question.MatchTokens(c)))
}

// queuedAs is what a look has to know of a request besides its keys, computed where its body is at hand.
type queuedAs struct {
	question policy.Request
	chunks   [][]routinghistory.Chunk
}

// bytes that it keeps in memory besides the body: its chunks are eight bytes each.
func (q *queuedAs) bytes() (n int64) {
	for _, chunks := range q.chunks {
		n += 8 * int64(len(chunks))
	}
	return n
}
