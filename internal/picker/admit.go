package picker

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// lookAgain is how often the first of those that wait looks whether there is room. Ends of requests tell too; this is
// for what only time brings: prefills that go on, reports of engines, deadlines.
const lookAgain = 5 * time.Millisecond

// catchUp is how far back a tenant has a claim to its share.
const catchUp = 10 * time.Second

// gate keeps a pool's requests back while it is full. Nothing runs for it: one of those that wait, the leader, looks
// after all.
//
// Lock order: a decision's mutex before the gate's.
type gate struct {
	// view is the pool as last applied, nil when it is gone.
	view    atomic.Pointer[view]
	waiting atomic.Int64 // len(waiters), to be read without the lock

	now timeNow

	mu      sync.Mutex
	scratch scratch // of look
	queue   admission.Queue
	flow    admission.Flow
	spread  admission.Spread // of the targets of those who came
	caution admission.Caution
	granted float64 // tokens that were let through and are not booked yet
	placing int     // requests of which the same is so, in pools with a target
	trial   trial
	waiters map[*admission.Ticket]*waiter
	leader  *waiter
	stats   AdmissionStats
}

// waiter is a request that waits.
type waiter struct {
	ticket admission.Ticket
	// over gets the verdict, once: nil to go on.
	over chan error
	lead chan struct{}

	// What is asked, of which model, and when its first token has to come.
	asked    asked
	model    string
	schedule schedule
	placed   bool // it was let through by place
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

// admit waits until the pool has room for the request and leaves the endpoints that may be chosen in s.candidates. It
// gives the pool as it is then, which must be done with, and what to call when the request is booked. It fails with an
// *Error, or with the context's when the client has gone.
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

// queue leaves the endpoints that may be chosen in s.candidates and gives the present pool, which must be done with; or
// it lets the request wait when there is no room.
func (p *Picker) queue(g *gate, s *scratch, in *asked) (*view, *waiter, error) {
	v := g.present()
	if v == nil {
		return nil, nil, unknownModel(s.request.Model)
	}
	now := p.now()
	at := v.place(s.request.Model)
	s.candidates = v.eligible(now, &at, in.allow, s)
	spec := &v.spec.Policy.Admission
	if !spec.Queue || in.preflight || (in.allow != nil && len(s.candidates) == 0) {
		return v, nil, nil
	}
	if spec.Slowdown > 0 {
		return p.queueInTime(v, s, in, now)
	}
	if room := v.room(s); g.waiting.Load() == 0 && room.Within(spec.WaitBudget, 0) {
		return v, nil, nil
	}
	defer v.done()
	w := v.waiter(s, in, now, schedule{})
	g.push(now, v, w)
	g.look()
	return nil, w, nil
}

// resume goes on with a request that has been let through. The pool must be done with.
func (p *Picker) resume(g *gate, w *waiter, s *scratch, in *asked) (*view, func(), error) {
	booked := func() {
		g.mu.Lock()
		if w.placed {
			g.placing--
		} else {
			g.granted -= w.ticket.Cost()
		}
		g.mu.Unlock()
		g.look()
	}
	v := g.present()
	if v == nil {
		booked()
		return nil, nil, unknownModel(s.request.Model)
	}
	at := v.place(s.request.Model)
	s.candidates = v.eligible(p.now(), &at, in.allow, s)
	in.due = w.schedule.due(in.start)
	if w.placed && len(s.candidates) > 0 {
		now := p.now()
		g.mu.Lock()
		parts := g.parts(now)
		g.mu.Unlock()
		v.lookUpFor(s, &in.prompt)
		v.inTime(s, in.tokens, now.Sub(in.start), w.schedule, parts, 1)
	}
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

// look lets through what there is room for, and refuses what has waited too long.
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
	now := g.now()
	g.scratch.candidates = v.eligible(now, &place{v: v}, nil, &g.scratch)
	room := v.room(&g.scratch)
	for _, t := range g.queue.Expire(now, room.Open()) {
		if room.Open() {
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
	for t := g.next(now, v, room); t != nil; t = g.next(now, v, room) {
		g.queue.Take(now, t)
		g.flow.Passed(now, t)
		g.granted += t.Cost()
		g.stats.Waited++
		g.stats.WaitedTime += now.Sub(t.Since())
		g.end(t, nil)
	}
	g.handOver()
}

// next is the first of those that wait for which there is room, nil when there is none. room is that of the whole pool; who
// may not go anywhere, but only to those that a gateway allows or that have an adapter, needs it there, and holds up
// nobody. g.mu is held.
func (g *gate) next(now time.Time, v *view, room admission.Room) *admission.Ticket {
	a := &v.spec.Policy.Admission
	if !a.Queue {
		return g.queue.Next()
	}
	var next *admission.Ticket
	within := room.Within(a.WaitBudget, g.granted)
	g.queue.InTurn(func(t *admission.Ticket) bool {
		there := within
		if w := g.waiters[t]; !w.anywhere(v) {
			if !g.trial.next() {
				return true
			}
			g.scratch.candidates = w.eligible(now, v, &g.scratch)
			its := v.room(&g.scratch)
			there = !its.Open() || its.Within(a.WaitBudget, g.granted) // where there is none any more it is told so
		}
		if there {
			next = t
		}
		return !there
	})
	g.trial.over(next != nil)
	return next
}

// anywhere tells whether a request may go to any endpoint of its pool.
func (w *waiter) anywhere(v *view) bool { return w.asked.allow == nil && w.model == v.spec.Model }

// eligible are the endpoints that a request may go to, in s.
func (w *waiter) eligible(now time.Time, v *view, s *scratch) []policy.Candidate {
	at := v.place(w.model)
	return v.eligible(now, &at, w.asked.allow, s)
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

// giveUp takes out a request whose client has gone.
func (g *gate) giveUp(w *waiter, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queue.Remove(&w.ticket) {
		g.stats.Gone++
		g.end(&w.ticket, err)
		g.handOver()
	} else if granted := <-w.over; granted == nil { // it has just been let through
		if w.placed {
			g.placing--
		} else {
			g.granted -= w.ticket.Cost()
		}
	}
	return err
}

// end tells a waiter its verdict. g.mu is held, and the ticket is out of the queue.
func (g *gate) end(t *admission.Ticket, verdict error) {
	w := g.waiters[t]
	delete(g.waiters, t)
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

// close refuses all that wait for a pool that is gone.
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

// full tells whether an endpoint would let a request wait for longer than it should.
func (a *AdmissionSpec) full(l *load.View) bool {
	return a.Queue && a.Slowdown <= 0 && admission.Wait(l) > a.WaitBudget
}

// room is what the candidates have of it. Engines that are short of KV blocks are candidates only when nobody else is;
// they have none, unless they serve nothing.
func (v *view) room(s *scratch) admission.Room {
	var room admission.Room
	for i := range s.candidates {
		load := s.candidates[i].Load
		room.Add(&load, load.KVUsage > v.spec.Policy.MaxKVUsage && load.InFlight > 0)
	}
	return room
}

// ticket puts the request into the queue's words.
func (v *view) ticket(s *scratch, in *asked, now time.Time) admission.Ticket {
	v.match(s, &in.prompt, !v.trust.lost.Load())
	question := v.question(s, in, now)
	cached := 0
	for i := range s.candidates {
		cached = max(cached, question.MatchTokens(&s.candidates[i]))
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
	return t
}
