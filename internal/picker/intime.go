package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Admission by time to the first token (AdmissionSpec.Slowdown). A request is sent to an endpoint only if its first token
// should arrive in time from there: within a multiple of the time that the prefill of its entire prompt takes on an idle
// endpoint that holds nothing of it. It waits until there is such an endpoint. Once no endpoint can be in time any more, it
// is refused at once rather than served late.

// maxTried bounds how many of those that wait are tried at one look.
const maxTried = 64

// trial selects the waiting requests that a look tries. If that fails, the next look continues with those behind: requests
// that wait for a full endpoint, however many, do not delay requests for which there is room.
type trial struct {
	passed      int // at the last looks, without success
	seen, tried int // at this one
}

// next reports whether the next one that waits is tried.
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
	// target is the limit for the first token, and least the shortest possible time, on an idle endpoint that holds the
	// longest match: both since the request's arrival, 0 while no speed is known.
	target, least time.Duration
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

// tight reports whether the target is too short for others to join as they arrive.
func (s *schedule) tight() bool { return s.target > 0 && admission.Tight(s.target) }

// due is the deadline of the first token of a request that arrived then; joining requests must respect it; zero
// for others.
func (s *schedule) due(came time.Time) time.Time {
	if !s.tight() {
		return time.Time{}
	}
	return came.Add(s.target)
}

// leastSteps is the shortest target, in steps of an idle engine: a request that arrives during a step waits for its end,
// and then for its own, and other requests decode meanwhile. Without that the shortest prompts would always be refused.
const leastSteps = 3.5

// inTime keeps the candidates from which the first token of a request should arrive in time if it has waited for so long
// already, and whose steps stay short enough for the requests that they serve. If fewer than needed are left, it keeps all
// and returns false.
func (v *view) inTime(s *scratch, tokens int, waited time.Duration, at schedule, parts admission.Parts, needs int) bool {
	spec := &v.spec.Policy
	first := admission.FirstToken
	if at.tight() {
		first = admission.FirstTokenAlone
	}
	all, now := len(s.candidates), v.gate.now()
	good := func(i int) bool {
		c := &s.candidates[i]
		l := &c.Load
		if v.members[s.index[i]].ceiling.places(now, l) == 0 {
			return false
		}
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

// queueInTime is queue for pools with a target. s has the endpoints that can be chosen.
func (p *Picker) queueInTime(v *view, s *scratch, in *asked, now time.Time) (*view, *waiter, error) {
	g := &v.gate
	v.matchKeys(s, &in.prompt, false)
	at := v.schedule(s, in.total(), g.cautious())
	in.due = at.due(in.start)
	parts, needs := g.come(now, in.who, at.target)
	if g.waiting.Load() == 0 && v.inTime(s, in.total(), 0, at, parts, needs) {
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

// come takes note of a request with a target. It returns the distribution of recent targets, if some requests were refused
// recently, and how many endpoints must have a place for the request.
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

// parts of the recent targets, none while no request is refused: as long as there is room for all, all have it everywhere.
// g.mu is held.
func (g *gate) parts(now time.Time) admission.Parts {
	if !g.queue.Refused(now) {
		return nil
	}
	return g.spread.Parts()
}

// waiter creates the waiting entry of a request, which is refused when its first token can no longer arrive in time.
func (v *view) waiter(s *scratch, in *asked, now time.Time, at schedule) *waiter {
	ticket, known := v.ticket(s, in, now)
	w := &waiter{
		ticket: ticket, queuedAs: known, over: make(chan error, 1), lead: make(chan struct{}, 1),
		asked: asked{allow: in.allow, remote: in.remote, prompt: in.prompt}, model: s.request.Model, schedule: at,
	}
	if in.again { // it has waited for as long as its answer is away
		if w.ticket.TTL <= 0 {
			w.ticket.TTL = v.spec.Policy.Admission.Limits.TTL
		}
		w.ticket.TTL = max(1, w.ticket.TTL-now.Sub(in.start))
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

// place admits one waiting request for which there is an endpoint in time. The next one is tried when that one is booked.
// g.mu is held, and g.scratch has the endpoints of the base model.
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
		v.matchKeys(s, &w.asked.prompt, false)
		if len(s.candidates) > 0 && v.inTime(s, w.asked.total(), now.Sub(t.Since()), w.schedule, parts, needed(held)) {
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
