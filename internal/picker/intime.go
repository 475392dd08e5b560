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

// cursor selects the waiting requests that a look tries. If that fails, the next look continues with those behind: requests
// that wait for a full endpoint, however many, do not delay requests for which there is room.
type cursor struct {
	passed      int // at the last looks, without success
	seen, tried int // at this one
}

// next reports whether the next one that waits is tried.
func (c *cursor) next() bool {
	c.seen++
	if c.seen <= c.passed || c.tried >= maxTried {
		return false
	}
	c.tried++
	return true
}

// over ends a look.
func (c *cursor) over(found bool) {
	passed := 0
	if !found && c.tried >= maxTried {
		passed = c.passed + c.tried
	}
	*c = cursor{passed: passed}
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
func (s *schedule) due(arrived time.Time) time.Time {
	if !s.tight() {
		return time.Time{}
	}
	return arrived.Add(s.target)
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
	all, now := len(s.candidates), v.admission.now()
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
func (p *Picker) queueInTime(v *view, s *scratch, state *pickState, now time.Time) (*view, *waiter, error) {
	q := &v.admission
	v.matchKeys(s, &state.prompt, false)
	at := v.schedule(s, state.total(), q.cautious())
	state.due = at.due(state.start)
	parts, needs := q.recordArrival(now, state.caller, at.target)
	if q.waiting.Load() == 0 && v.inTime(s, state.total(), 0, at, parts, needs) {
		return v, nil, nil
	}
	defer v.unpin()
	w := v.waiter(s, state, now, at)
	q.push(now, v, w)
	q.look()
	return nil, w, nil
}

// cautious counts a request with a target, and is the part of that which predictions have to keep to.
func (q *admissionQueue) cautious() float64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.caution.RecordArrival()
	return q.caution.Part()
}

// recordArrival counts a request with a target. It returns the distribution of recent targets, if some requests were
// refused recently, and how many endpoints must have a place for the request.
func (q *admissionQueue) recordArrival(now time.Time, c caller, target time.Duration) (parts admission.Parts, needs int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spread.Add(target)
	return q.parts(now), needed(q.tickets.Ahead(now, c.level, c.name))
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
// q.mu is held.
func (q *admissionQueue) parts(now time.Time) admission.Parts {
	if !q.tickets.Refused(now) {
		return nil
	}
	return q.spread.Parts()
}

// waiter creates the waiting entry of a request, which is refused when its first token can no longer arrive in time.
func (v *view) waiter(s *scratch, state *pickState, now time.Time, at schedule) *waiter {
	ticket, known := v.ticket(s, state, now)
	w := &waiter{
		ticket: ticket, queuedAs: known, over: make(chan error, 1), lead: make(chan struct{}, 1),
		state: pickState{allow: state.allow, remote: state.remote, prompt: state.prompt}, model: s.request.Model, schedule: at,
	}
	if state.again { // it has waited for as long as its answer is away
		if w.ticket.TTL <= 0 {
			w.ticket.TTL = v.spec.Policy.Admission.Limits.TTL
		}
		w.ticket.TTL = max(1, w.ticket.TTL-now.Sub(state.start))
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
// q.mu is held, and g.scratch has the endpoints of the base model.
func (q *admissionQueue) place(now time.Time, v *view) {
	if q.placing > 0 {
		return
	}
	var chosen *admission.Ticket
	s := &q.scratch
	base, index := append([]policy.Candidate(nil), s.candidates...), append([]int(nil), s.index...)
	parts := q.parts(now)
	q.tickets.Urgent(now, func(t *admission.Ticket, held bool) bool {
		if !q.cursor.next() {
			return true
		}
		w := q.waiters[t]
		s.candidates, s.index = append(s.candidates[:0], base...), append(s.index[:0], index...)
		if !w.anywhere(v, now) {
			s.candidates = w.eligible(now, v, s)
		}
		v.matchKeys(s, &w.state.prompt, false)
		if len(s.candidates) > 0 && v.inTime(s, w.state.total(), now.Sub(t.Since()), w.schedule, parts, needed(held)) {
			chosen = t
			return false
		}
		return true
	})
	q.cursor.over(chosen != nil)
	if chosen == nil {
		return
	}
	q.tickets.Remove(chosen) // it is charged when it is booked, by what it costs there
	q.flow.Passed(now, chosen)
	q.placing++
	q.waiters[chosen].placed = true
	q.stats.Waited++
	q.stats.WaitedTime += now.Sub(chosen.Since())
	q.end(chosen, nil)
}

// charge counts what a request costs its tenant.
func (v *view) charge(now time.Time, c *caller, uncached int) {
	if a := &v.spec.Policy.Admission; a.Tenants == nil || !a.Queue || a.Slowdown <= 0 || c.class == everybody {
		return
	}
	q := &v.admission
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tickets.Limits.CatchUp = catchUp
	q.tickets.Charge(now, &admission.Ticket{Level: c.level, Tenant: c.name, Weight: c.class.Weight, Tokens: float64(uncached)})
}
