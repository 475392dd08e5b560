package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Admission by time to the first token (AdmissionSpec.Slowdown). A request goes to an endpoint only if its first token
// should come in time from there: within so many times what the prefill of its whole prompt takes on an endpoint that
// has nothing to do and holds nothing of it. Until there is such an endpoint it waits, and as soon as there can be none
// any more it is refused: who would be served late is told at once.

// maxTried bounds how many of those that wait are tried at one look.
const maxTried = 64

// trial tells who is tried at a look. Where that was in vain the next look goes on with those behind: however many wait for
// what is full, they hold up nobody for whom there is room.
type trial struct {
	passed      int // at the last looks, in vain
	seen, tried int // at this one
}

// next tells whether the next one that waits is tried.
func (t *trial) next() bool {
	t.seen++
	if t.seen <= t.passed || t.tried >= maxTried {
		return false
	}
	t.tried++
	return true
}

// over ends a look.
func (t *trial) over(found bool) {
	passed := 0
	if !found && t.tried >= maxTried {
		passed = t.passed + t.tried
	}
	*t = trial{passed: passed}
}

// schedule is what the time of a request's first token is judged by.
type schedule struct {
	// target is when the first token has to come, and least how long it takes at best, on the endpoint that holds the
	// most of the prompt and has nothing else to do: both since the request's arrival, 0 while no speed is known.
	target, least time.Duration
}

// lookUpFor finds what the candidates hold of a prompt, as match does, for requests that have keys.
func (v *view) lookUpFor(s *scratch, p *prompt) {
	s.holders = s.holders[:0]
	for _, i := range s.index {
		s.holders = append(s.holders, v.holders[i])
	}
	v.lookUp(s, p)
	for i := range s.candidates {
		s.candidates[i].Match = s.matches[i]
		if v.members[s.index[i]].doubted.Load() {
			s.candidates[i].Match = half(s.matches[i])
		}
	}
}

// cached is the part of a prompt that a candidate need not compute, in tokens.
func (v *view) cached(c *policy.Candidate, tokens int) int {
	size := v.spec.BlockTokens
	return min(c.Match.Blocks(), max(0, tokens-1)/size) * size
}

// schedule judges a request by its matches. Predictions have to keep to a part of the target.
func (v *view) schedule(s *scratch, tokens int, caution float64) schedule {
	var pace admission.Pace
	most := 0
	for i := range s.candidates {
		pace.Add(&s.candidates[i].Load)
		most = max(most, v.cached(&s.candidates[i], tokens))
	}
	work := load.WorkOf(tokens, 0)
	slowdown := caution * v.spec.Policy.Admission.Slowdown
	target := time.Duration(slowdown * float64(pace.Prefill(work)))
	if admission.Tight(target) {
		// Of a short prompt's time what every step takes is the most, and the least well known.
		target = time.Duration(max(slowdown*float64(pace.Least(work)), caution*leastSteps*float64(pace.Least(load.Work{}))))
	}
	return schedule{
		target: target,
		least:  pace.Prefill(load.WorkOf(tokens-most, most)),
	}
}

// tight tells whether the target is too short for others to join as they come.
func (s *schedule) tight() bool { return s.target > 0 && admission.Tight(s.target) }

// due is when the first token of a request that came then has to come, of whom those who join have to take care; zero for
// others.
func (s *schedule) due(came time.Time) time.Time {
	if !s.tight() {
		return time.Time{}
	}
	return came.Add(s.target)
}

// leastSteps is the shortest target, in steps of an idle engine: whoever meets a step under way waits for it, and then
// for its own, and something is decoded meanwhile. Without that the shortest prompts would always be refused.
const leastSteps = 3.5

// inTime keeps the candidates from which the first token of a request should come in time if it has waited for so long
// already, and whose steps stay as short as those need that they are for. It leaves all, and tells so, if there are fewer
// than it needs.
func (v *view) inTime(s *scratch, tokens int, waited time.Duration, at schedule, parts admission.Parts, needs int) bool {
	spec := &v.spec.Policy
	first := admission.FirstToken
	if at.tight() {
		first = admission.FirstTokenAlone
	}
	all := len(s.candidates)
	good := func(i int) bool {
		c := &s.candidates[i]
		l := &c.Load
		cached := v.cached(c, tokens)
		w := load.WorkOf(tokens-cached, cached)
		return admission.Joins(l, w) && !(l.KVUsage > spec.MaxKVUsage && l.InFlight > 0) && admission.Fits(l, tokens-cached, cached) &&
			(at.target == 0 || waited+first(l, w) <= at.target) && admission.Brief(l, tokens, at.target, parts.Share(i, all))
	}
	n := 0
	for i := range s.candidates {
		if good(i) {
			n++
		}
	}
	if n < needs {
		return false
	}
	n = 0
	for i := range s.candidates {
		if good(i) {
			s.candidates[n], s.index[n], s.matches[n] = s.candidates[i], s.index[i], s.matches[i]
			n++
		}
	}
	s.candidates, s.index, s.matches = s.candidates[:n], s.index[:n], s.matches[:n]
	return true
}

// queueInTime is queue for pools with a target. s has the endpoints that may be chosen.
func (p *Picker) queueInTime(v *view, s *scratch, in *asked, now time.Time) (*view, *waiter, error) {
	g := &v.gate
	v.lookUpFor(s, &in.prompt)
	at := v.schedule(s, in.tokens, g.cautious())
	in.due = at.due(in.start)
	parts, needs := g.come(now, in.who, at.target)
	if g.waiting.Load() == 0 && v.inTime(s, in.tokens, 0, at, parts, needs) {
		return v, nil, nil
	}
	defer v.done()
	w := v.waiter(s, in, now, at)
	g.push(now, v, w)
	g.look()
	return nil, w, nil
}

// cautious counts a request with a target, and is the part of that which predictions have to keep to.
func (g *gate) cautious() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.caution.Came()
	return g.caution.Part()
}

// come takes note of a request with a target. It tells how those of late are spread, where some were refused of late, and
// how many endpoints have to have a place for the request.
func (g *gate) come(now time.Time, w who, target time.Duration) (parts admission.Parts, needs int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spread.Add(target)
	return g.parts(now), needed(g.queue.Ahead(now, w.level, w.name))
}

// needed is how many endpoints have to have a place for a request: one, and one more for a claimant's next one, if its
// tenant is held back.
func needed(held bool) int {
	if held {
		return 2
	}
	return 1
}

// parts of the targets of late, none while nobody is refused: as long as there is room for all, all have it everywhere.
// g.mu is held.
func (g *gate) parts(now time.Time) admission.Parts {
	if !g.queue.Refused(now) {
		return nil
	}
	return g.spread.Parts()
}

// waiter makes a request one that waits, and is refused when its first token can come in time no more.
func (v *view) waiter(s *scratch, in *asked, now time.Time, at schedule) *waiter {
	w := &waiter{
		ticket: v.ticket(s, in, now), over: make(chan error, 1), lead: make(chan struct{}, 1),
		asked: asked{allow: in.allow, prompt: in.prompt}, model: s.request.Model, schedule: at,
	}
	if at.target > 0 {
		left := max(1, at.target-at.least)
		if w.ticket.TTL <= 0 {
			w.ticket.TTL = v.spec.Policy.Admission.Limits.TTL
		}
		w.ticket.TTL = min(w.ticket.TTL, left)
	}
	return w
}

// place lets one of those that wait go on for which there is an endpoint in time. The next one is tried when that one
// is booked. g.mu is held, and g.scratch has the endpoints of the base model.
func (g *gate) place(now time.Time, v *view) {
	if g.placing > 0 {
		return
	}
	var chosen *admission.Ticket
	s := &g.scratch
	base, index := append([]policy.Candidate(nil), s.candidates...), append([]int(nil), s.index...)
	parts := g.parts(now)
	g.queue.Urgent(now, func(t *admission.Ticket, held bool) bool {
		if !g.trial.next() {
			return true
		}
		w := g.waiters[t]
		s.candidates, s.index = append(s.candidates[:0], base...), append(s.index[:0], index...)
		if !w.anywhere(v) {
			s.candidates = w.eligible(now, v, s)
		}
		v.lookUpFor(s, &w.asked.prompt)
		if len(s.candidates) > 0 && v.inTime(s, w.asked.tokens, now.Sub(t.Since()), w.schedule, parts, needed(held)) {
			chosen = t
			return false
		}
		return true
	})
	g.trial.over(chosen != nil)
	if chosen == nil {
		return
	}
	g.queue.Remove(chosen) // it is charged when it is booked, by what it costs there
	g.flow.Passed(now, chosen)
	g.placing++
	g.waiters[chosen].placed = true
	g.stats.Waited++
	g.stats.WaitedTime += now.Sub(chosen.Since())
	g.end(chosen, nil)
}

// charge counts what a request costs its tenant.
func (v *view) charge(now time.Time, w *who, uncached int) {
	if a := &v.spec.Policy.Admission; a.Tenants == nil || !a.Queue || a.Slowdown <= 0 || w.class == everybody {
		return
	}
	g := &v.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue.Limits.CatchUp = catchUp
	g.queue.Charge(now, &admission.Ticket{Level: w.level, Tenant: w.name, Weight: w.class.Weight, Tokens: float64(uncached)})
}
