package picker

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// lookAgain is how often the leader checks for room. Ends of requests also trigger a check; the timer covers changes over
// time: prefills that progress, engine metrics that arrive, deadlines that pass.
const lookAgain = 5 * time.Millisecond

// catchUp is how far back a tenant has a claim to its share.
const catchUp = 10 * time.Second

// admissionQueue holds requests back while a pool is full. It has no goroutine of its own: one waiting request, the leader,
// checks for room on behalf of all.
//
// Lock order: a decision's mutex before that of the admission queue.
type admissionQueue struct {
	// view is the pool as last applied, nil when it was removed.
	view    atomic.Pointer[view]
	waiting atomic.Int64 // len(waiters), to be read without the lock
	// elsewhere: requests wait at other replicas, so that those here have their turns with them.
	elsewhere atomic.Bool

	now timeNow

	mu      sync.Mutex
	scratch scratch // of look
	tickets admission.Queue
	flow    admission.Flow
	spread  admission.Spread // of the targets of arriving requests
	caution admission.Caution
	placing int // requests that were released and are not booked yet
	cursor  cursor
	looks   uint64 // so far
	// compared is how many prompts are compared with endpoints to place all waiting requests once.
	compared int
	waiters  map[*admission.Ticket]*waiter
	leader   *waiter
	stats    AdmissionStats
}

// waiter is a request that waits.
type waiter struct {
	ticket admission.Ticket
	// over receives the verdict, once: nil to continue.
	over chan error
	lead chan struct{}

	// The request, its model, and the deadline of its first token.
	state    pickState
	model    string
	schedule schedule
	placed   bool // it was let through by place
	// What a look has to know of the request besides its keys, and where it would be sent.
	queuedAs
	placement placement
	overtaken int // how often a request was released instead, while it was overdue
}

// AdmissionStats count what waited. The reasons add up to all that did not go through.
type AdmissionStats struct {
	// Waiting requests, the bytes of their bodies, and the uncached tokens they will cost.
	Waiting       int
	WaitingBytes  int64
	WaitingTokens float64
	// Waited is how many went through after they had waited, and for how long in total.
	Waited     int64
	WaitedTime time.Duration
	// Shed requests had no place in the queue, Late ones waited too long, Unserved ones for a pool without endpoints,
	// and Gone ones were given up by their clients.
	Shed, Late, Unserved, Gone int64
}

// admit waits until the pool has room for the request and leaves the endpoints that can be chosen in s.candidates. It
// returns the pool as it is then, which the caller must unpin, and the function to call when the request is booked. It
// fails with an *Error, or with the context's when the client has gone.
func (p *Picker) admit(ctx context.Context, q *admissionQueue, s *scratch, state *pickState) (*view, func(), error) {
	v, w, err := p.passOrQueue(q, s, state)
	if w == nil {
		return v, nothing, err
	}
	if err := q.wait(ctx, w); err != nil {
		return nil, nil, err
	}
	state.waited = p.now().Sub(w.ticket.Since())
	return p.resume(q, w, s, state)
}

// passOrQueue puts the endpoints that can be chosen into s.candidates and returns the present pool, which the caller must unpin. If
// there is no room, it queues the request instead, and returns its waiter.
func (p *Picker) passOrQueue(q *admissionQueue, s *scratch, state *pickState) (*view, *waiter, error) {
	v := q.pin()
	if v == nil {
		return nil, nil, UnknownModel(s.request.Model)
	}
	now := p.now()
	at := v.place(s.request.Model)
	s.candidates, s.scored = v.eligible(now, &at, state.reach(v, now), s), false
	if state.routing.mirrors() {
		if err := v.spare(q, s, now); err != nil {
			v.unpin()
			return nil, nil, err
		}
		return v, nil, nil
	}
	spec := &v.spec.Policy.Admission
	if !spec.Queue || state.observed || state.leg == DecodeLeg ||
		len(s.candidates) == 0 && !state.mayHold(v, now) {
		return v, nil, nil
	}
	if spec.Slowdown > 0 {
		return p.queueInTime(v, s, state, now)
	}
	if q.waiting.Load() == 0 && !q.elsewhere.Load() && v.goes(now, s, state) {
		return v, nil, nil
	}
	defer v.unpin()
	w := v.waiter(s, state, now, schedule{})
	q.push(now, v, w)
	q.look()
	return nil, w, nil
}

// reach reports which of a pool's endpoints a request can go to now; nil for all. Gateways reach no endpoint that they might not
// know yet.
func (state *pickState) reach(v *view, now time.Time) func(*endpoint.Endpoint) bool {
	fresh := state.remote && !state.observed && v.someFresh(now)
	if state.allow != nil { // the gateway knows what it names, unless it takes that from its client
		fresh = fresh && v.newToGateways(now)
	}
	if !state.remote || !v.sockets && !fresh {
		return state.allow
	}
	return func(ep *endpoint.Endpoint) bool {
		return ep.Socket == "" && (state.allow == nil || state.allow(ep)) && (!fresh || !v.isFresh(ep, now))
	}
}

// mayHold reports whether a request that no endpoint can take now can wait for one. For a gateway that has given a subset
// it returns false at once where the subset names none of the pool's endpoints, because no other endpoint will ever be in
// it, and where other endpoints of the pool serve, because the gateway might have another subset to try. Otherwise all of
// the pool is starting, restarting or asleep, and the request waits as it would without a subset.
func (state *pickState) mayHold(v *view, now time.Time) bool {
	if state.allow == nil {
		return true
	}
	named, known := false, !v.newToGateways(now)
	for i := range v.spec.Endpoints {
		ep := &v.spec.Endpoints[i]
		if known && ep.Pickable() && ep.Role.Decodes() && !v.members[i].sleep.asleep(now) {
			return false
		}
		named = named || state.allow(ep)
	}
	return named
}

// resume continues with a request that was admitted. The caller must have unpinned the view.
func (p *Picker) resume(q *admissionQueue, w *waiter, s *scratch, state *pickState) (*view, func(), error) {
	done := false
	booked := func() {
		if done {
			return
		}
		done = true
		q.mu.Lock()
		q.placing--
		q.mu.Unlock()
		q.look()
	}
	goesOn := false
	defer func() {
		if !goesOn { // the pool is gone, or something has panicked: others must not wait for this request
			booked()
		}
	}()
	v := q.pin()
	if v == nil {
		return nil, nil, UnknownModel(s.request.Model)
	}
	at, now := v.place(s.request.Model), p.now()
	s.candidates, s.scored = v.eligible(now, &at, state.reach(v, now), s), false
	state.due = w.schedule.due(state.start)
	if w.placed && len(s.candidates) > 0 {
		q.mu.Lock()
		parts := q.parts(now)
		q.mu.Unlock()
		v.matchKeys(s, &state.prompt, false)
		v.inTime(s, state.total(), now.Sub(state.start), w.schedule, parts, 1)
	}
	goesOn = true
	return v, booked, nil
}

func nothing() {}

// wait blocks until the request is let through or refused.
func (q *admissionQueue) wait(ctx context.Context, w *waiter) error {
	var again <-chan time.Time
	for {
		select {
		case err := <-w.over:
			return err
		case <-ctx.Done():
			return q.giveUp(ctx, w)
		case <-w.lead:
			ticker := time.NewTicker(lookAgain)
			defer ticker.Stop()
			again = ticker.C
		case <-again:
			q.look()
		}
	}
}

// look admits requests while there is room, and refuses those that have waited too long.
func (q *admissionQueue) look() {
	if q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	v := q.view.Load()
	if v == nil {
		return // closed, or about to be
	}
	if v.spec.Policy.Admission.waits() && q.placing > 0 {
		return // the next look is when that one is booked
	}
	now := q.now()
	turns := q.tickets.Elsewhere(now)
	q.elsewhere.Store(len(turns) > 0)
	q.scratch.candidates = v.eligible(now, &place{v: v}, nil, &q.scratch)
	open := len(q.scratch.candidates) > 0 && !v.newToGateways(now)
	for _, t := range q.tickets.Expire(now, open) {
		if open {
			q.stats.Late++
			q.caution.Refused()
			q.end(t, tooLate(v.spec.Name, q.flow.RetryAfter(now, q.tickets.Tokens())))
		} else {
			q.stats.Unserved++
			q.end(t, noEndpoint(v.spec.Name))
		}
	}
	if a := &v.spec.Policy.Admission; a.Queue && a.Slowdown > 0 {
		q.place(now, v)
		q.handOver()
		return
	}
	for t := q.next(now, v, turns); t != nil; t = q.next(now, v, turns) {
		work := q.waiters[t].placement.work.tokens
		q.tickets.TakeFor(now, t, work)
		q.publish(v, t, max(1, work))
		q.flow.Passed(now, t)
		q.placing++
		q.stats.Waited++
		q.stats.WaitedTime += now.Sub(t.Since())
		q.end(t, nil)
	}
	q.handOver()
}

// anywhere reports whether a request can go to any endpoint of its pool.
func (w *waiter) anywhere(v *view, now time.Time) bool {
	return w.state.reach(v, now) == nil && w.model == v.spec.Model
}

// eligible are the endpoints that a request can go to, in s.
func (w *waiter) eligible(now time.Time, v *view, s *scratch) []policy.Candidate {
	at := v.place(w.model)
	return v.eligible(now, &at, w.state.reach(v, now), s)
}

// push lets a request wait, and refuses those that have no place for it.
func (q *admissionQueue) push(now time.Time, v *view, w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters == nil {
		q.waiters = map[*admission.Ticket]*waiter{}
	}
	q.tickets.Limits = v.spec.Policy.Admission.Limits
	q.tickets.Limits.CatchUp = catchUp
	q.waiters[&w.ticket] = w
	defer q.publish(v, &w.ticket, 0)
	for _, t := range q.tickets.Push(now, &w.ticket) {
		q.stats.Shed++
		q.end(t, queueFull(v.spec.Name, q.flow.RetryAfter(now, q.tickets.Tokens())))
	}
	q.handOver()
}

// giveUp removes a request whose context has ended.
func (q *admissionQueue) giveUp(ctx context.Context, w *waiter) error {
	err := ctx.Err()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tickets.Remove(&w.ticket) {
		if errors.Is(context.Cause(ctx), ErrRouteTime) { // it goes to a fallback of its route, or its time is over
			q.stats.Late++
		} else {
			q.stats.Gone++
		}
		q.end(&w.ticket, err)
		q.handOver()
	} else if granted := <-w.over; granted == nil { // it has just been let through
		q.placing--
	}
	return err
}

// end sends a waiter its verdict. q.mu is held, and the ticket is out of the queue.
func (q *admissionQueue) end(t *admission.Ticket, verdict error) {
	w := q.waiters[t]
	delete(q.waiters, t)
	q.compared -= w.placement.compared
	q.waiting.Store(int64(len(q.waiters)))
	if q.leader == w {
		q.leader = nil
	}
	if v := q.view.Load(); v != nil {
		q.publish(v, t, 0)
	}
	w.over <- verdict
}

// handOver makes one of those that wait the leader, if there is none. q.mu is held.
func (q *admissionQueue) handOver() {
	q.waiting.Store(int64(len(q.waiters)))
	if t := q.tickets.Next(); q.leader == nil && t != nil {
		q.leader = q.waiters[t]
		q.leader.lead <- struct{}{}
	}
}

// close refuses all requests that wait for a removed pool.
func (q *admissionQueue) close(name string) {
	q.view.Store(nil)
	q.mu.Lock()
	defer q.mu.Unlock()
	for t := q.tickets.Next(); t != nil; t = q.tickets.Next() {
		q.tickets.Remove(t)
		q.stats.Unserved++
		q.end(t, noEndpoint(name))
	}
}

// read copies the counters.
func (q *admissionQueue) read() AdmissionStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Waiting, s.WaitingBytes, s.WaitingTokens = q.tickets.Len(), q.tickets.Bytes(), q.tickets.Tokens()
	return s
}

// ticket puts the request into the queue's words.
func (v *view) ticket(s *scratch, state *pickState, now time.Time) (admission.Ticket, queuedAs) {
	v.match(s, &state.prompt, false)
	question := v.question(s, state, now)
	known := queuedAs{question: question, sequences: s.needs(), others: state.otherTokens(&s.request), chunks: s.keptChunks()}
	cached := 0
	for i := range s.candidates {
		c := &s.candidates[i]
		if matched := question.MatchTokens(c); i == 0 || matched > cached {
			cached = matched
			known.own = admission.Prefill(&c.Load, load.WorkOf(question.Uncached(c)+known.others, matched))
		}
	}
	r := &s.request
	t := admission.Ticket{
		Level: state.caller.level, TTL: state.caller.ttl, Tenant: state.caller.name, Weight: state.caller.class.Weight,
		Tokens: float64(question.PromptTokens - cached), Bytes: int64(len(state.body)),
	}
	switch {
	case question.Home != 0:
		t.Running = true
	case len(r.Messages) > 0:
		t.Running = bytes.Contains(r.Messages, []byte(`"assistant"`)) // a role: in a text its quotes were escaped
	case question.Session == 0:
		t.Running = cached > 0 && cached >= question.PromptTokens/2
	}
	t.Bytes += known.bytes()
	t.Tokens += float64(known.others)
	return t, known
}
