package picker

import (
	"bytes"
	"context"
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

// gate holds requests back while a pool is full. It has no goroutine of its own: one waiting request, the leader, checks
// for room on behalf of all.
//
// Lock order: a decision's mutex before the gate's.
type gate struct {
	// view is the pool as last applied, nil when it was removed.
	view    atomic.Pointer[view]
	waiting atomic.Int64 // len(waiters), to be read without the lock

	now timeNow

	mu      sync.Mutex
	scratch scratch // of look
	queue   admission.Queue
	flow    admission.Flow
	spread  admission.Spread // of the targets of arriving requests
	caution admission.Caution
	placing int // requests that were released and are not booked yet
	trial   trial
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
	asked    asked
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
func (p *Picker) admit(ctx context.Context, g *gate, s *scratch, in *asked) (*view, func(), error) {
	v, w, err := p.queue(g, s, in)
	if w == nil {
		return v, nothing, err
	}
	if err := g.wait(ctx, w); err != nil {
		return nil, nil, err
	}
	in.waited = p.now().Sub(w.ticket.Since())
	return p.resume(g, w, s, in)
}

// queue leaves the endpoints that can be chosen in s.candidates and returns the present pool, which the caller must unpin;
// if there is no room, it makes the request wait.
func (p *Picker) queue(g *gate, s *scratch, in *asked) (*view, *waiter, error) {
	v := g.present()
	if v == nil {
		return nil, nil, UnknownModel(s.request.Model)
	}
	now := p.now()
	at := v.place(s.request.Model)
	s.candidates, s.scored = v.eligible(now, &at, in.reach(v), s), false
	spec := &v.spec.Policy.Admission
	if !spec.Queue || in.observed || len(s.candidates) == 0 && !in.mayHold(v) {
		return v, nil, nil
	}
	if spec.Slowdown > 0 {
		return p.queueInTime(v, s, in, now)
	}
	if g.waiting.Load() == 0 && v.goes(now, s, in) {
		return v, nil, nil
	}
	defer v.done()
	w := v.waiter(s, in, now, schedule{})
	g.push(now, v, w)
	g.look()
	return nil, w, nil
}

// reach reports which of a pool's endpoints a request can go to; nil for all.
func (in *asked) reach(v *view) func(*endpoint.Endpoint) bool {
	if !in.remote || !v.sockets {
		return in.allow
	}
	return func(ep *endpoint.Endpoint) bool { return ep.Socket == "" && (in.allow == nil || in.allow(ep)) }
}

// mayHold reports whether a request that no endpoint can take now can wait for one. For a gateway that has given a subset
// it returns false at once where the subset names none of the pool's endpoints, because no other endpoint will ever be in
// it, and where other endpoints of the pool serve, because the gateway might have another subset to try. Otherwise all of
// the pool is starting or restarting, and the request waits as it would without a subset.
func (in *asked) mayHold(v *view) bool {
	if in.allow == nil {
		return true
	}
	named := false
	for i := range v.spec.Endpoints {
		ep := &v.spec.Endpoints[i]
		if ep.Pickable() {
			return false
		}
		named = named || in.allow(ep)
	}
	return named
}

// resume continues with a request that was admitted. The caller must have unpinned the view.
func (p *Picker) resume(g *gate, w *waiter, s *scratch, in *asked) (*view, func(), error) {
	done := false
	booked := func() {
		if done {
			return
		}
		done = true
		g.mu.Lock()
		g.placing--
		g.mu.Unlock()
		g.look()
	}
	goesOn := false
	defer func() {
		if !goesOn { // the pool is gone, or something has panicked: others must not wait for this request
			booked()
		}
	}()
	v := g.present()
	if v == nil {
		return nil, nil, UnknownModel(s.request.Model)
	}
	at := v.place(s.request.Model)
	s.candidates, s.scored = v.eligible(p.now(), &at, in.reach(v), s), false
	in.due = w.schedule.due(in.start)
	if w.placed && len(s.candidates) > 0 {
		now := p.now()
		g.mu.Lock()
		parts := g.parts(now)
		g.mu.Unlock()
		v.matchKeys(s, &in.prompt, false)
		v.inTime(s, in.total(), now.Sub(in.start), w.schedule, parts, 1)
	}
	goesOn = true
	return v, booked, nil
}

func nothing() {}

// wait blocks until the request is let through or refused.
func (g *gate) wait(ctx context.Context, w *waiter) error {
	var again <-chan time.Time
	for {
		select {
		case err := <-w.over:
			return err
		case <-ctx.Done():
			return g.giveUp(w, ctx.Err())
		case <-w.lead:
			ticker := time.NewTicker(lookAgain)
			defer ticker.Stop()
			again = ticker.C
		case <-again:
			g.look()
		}
	}
}

// look admits requests while there is room, and refuses those that have waited too long.
func (g *gate) look() {
	if g.waiting.Load() == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.view.Load()
	if v == nil {
		return // closed, or about to be
	}
	if v.spec.Policy.Admission.waits() && g.placing > 0 {
		return // the next look is when that one is booked
	}
	now := g.now()
	g.scratch.candidates = v.eligible(now, &place{v: v}, nil, &g.scratch)
	open := len(g.scratch.candidates) > 0
	for _, t := range g.queue.Expire(now, open) {
		if open {
			g.stats.Late++
			g.caution.Refused()
			g.end(t, tooLate(v.spec.Name, g.flow.RetryAfter(now, g.queue.Tokens())))
		} else {
			g.stats.Unserved++
			g.end(t, noEndpoint(v.spec.Name))
		}
	}
	if a := &v.spec.Policy.Admission; a.Queue && a.Slowdown > 0 {
		g.place(now, v)
		g.handOver()
		return
	}
	for t := g.next(now, v); t != nil; t = g.next(now, v) {
		g.queue.TakeFor(now, t, g.waiters[t].placement.work.tokens)
		g.flow.Passed(now, t)
		g.placing++
		g.stats.Waited++
		g.stats.WaitedTime += now.Sub(t.Since())
		g.end(t, nil)
	}
	g.handOver()
}

// anywhere reports whether a request can go to any endpoint of its pool.
func (w *waiter) anywhere(v *view) bool { return w.asked.reach(v) == nil && w.model == v.spec.Model }

// eligible are the endpoints that a request can go to, in s.
func (w *waiter) eligible(now time.Time, v *view, s *scratch) []policy.Candidate {
	at := v.place(w.model)
	return v.eligible(now, &at, w.asked.reach(v), s)
}

// push lets a request wait, and refuses those that have no place for it.
func (g *gate) push(now time.Time, v *view, w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiters == nil {
		g.waiters = map[*admission.Ticket]*waiter{}
	}
	g.queue.Limits = v.spec.Policy.Admission.Limits
	g.queue.Limits.CatchUp = catchUp
	g.waiters[&w.ticket] = w
	for _, t := range g.queue.Push(now, &w.ticket) {
		g.stats.Shed++
		g.end(t, queueFull(v.spec.Name, g.flow.RetryAfter(now, g.queue.Tokens())))
	}
	g.handOver()
}

// giveUp removes a request whose client has gone.
func (g *gate) giveUp(w *waiter, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queue.Remove(&w.ticket) {
		g.stats.Gone++
		g.end(&w.ticket, err)
		g.handOver()
	} else if granted := <-w.over; granted == nil { // it has just been let through
		g.placing--
	}
	return err
}

// end sends a waiter its verdict. g.mu is held, and the ticket is out of the queue.
func (g *gate) end(t *admission.Ticket, verdict error) {
	w := g.waiters[t]
	delete(g.waiters, t)
	g.compared -= w.placement.compared
	g.waiting.Store(int64(len(g.waiters)))
	if g.leader == w {
		g.leader = nil
	}
	w.over <- verdict
}

// handOver makes one of those that wait the leader, if there is none. g.mu is held.
func (g *gate) handOver() {
	g.waiting.Store(int64(len(g.waiters)))
	if t := g.queue.Next(); g.leader == nil && t != nil {
		g.leader = g.waiters[t]
		g.leader.lead <- struct{}{}
	}
}

// close refuses all requests that wait for a removed pool.
func (g *gate) close(name string) {
	g.view.Store(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := g.queue.Next(); t != nil; t = g.queue.Next() {
		g.queue.Remove(t)
		g.stats.Unserved++
		g.end(t, noEndpoint(name))
	}
}

// read copies the counters.
func (g *gate) read() AdmissionStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.stats
	s.Waiting, s.WaitingBytes, s.WaitingTokens = g.queue.Len(), g.queue.Bytes(), g.queue.Tokens()
	return s
}

// ticket puts the request into the queue's words.
func (v *view) ticket(s *scratch, in *asked, now time.Time) (admission.Ticket, queuedAs) {
	v.match(s, &in.prompt, false)
	question := v.question(s, in, now)
	known := queuedAs{question: question, others: in.otherTokens(&s.request), chunks: s.keptChunks()}
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
		Level: in.who.level, TTL: in.who.ttl, Tenant: in.who.name, Weight: in.who.class.Weight,
		Tokens: float64(question.PromptTokens - cached), Bytes: int64(len(in.body)),
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
