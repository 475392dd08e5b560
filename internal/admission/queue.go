package admission

import (
	"container/heap"
	"container/list"
	"slices"
	"time"
)

// Limits bound a queue.
type Limits struct {
	// Requests and Bytes (of their bodies) that can wait at once.
	Requests int
	Bytes    int64
	// TTL is how long a request can wait for a full pool, Hold for a pool that no endpoint serves.
	TTL, Hold time.Duration
	// NewestFirst sheds the newest requests. Otherwise requests of new sessions are shed before those of running sessions.
	NewestFirst bool
	// CatchUp is how far back a tenant can claim work that it did not request at the time: a tenant whose requests seldom
	// wait for long would otherwise lose its turn whenever none waits.
	CatchUp time.Duration
}

// Ticket is a request that waits.
type Ticket struct {
	// Level of its priority: higher levels are served first.
	Level int
	// Tenant of the request, and its weight, at least 1.
	Tenant string
	Weight int
	// Tokens that it will cost: the tokens of its prompt that no endpoint has cached.
	Tokens float64
	// Bytes that it keeps in memory.
	Bytes int64
	// Running: it belongs to a conversation that has already received an answer.
	Running bool
	// TTL of its own; 0 for the queue's.
	TTL time.Duration

	flow      *flow
	pushed    time.Time
	deadline  time.Time
	all, news *list.Element // in the flow's lists
	index     int           // in the queue's deadlines
}

// Cost is what the tenant is charged for the ticket, in tokens. It is at least 1: if requests that are cached were free, one
// tenant's could delay all others without end.
func (t *Ticket) Cost() float64 { return max(1, t.Tokens) }

// Since is when the ticket began to wait.
func (t *Ticket) Since() time.Time { return t.pushed }

// flow is the queue of one tenant at one level.
type flow struct {
	tenant string
	weight float64
	level  *level
	// virtual is the work that the tenant has received, divided by its weight, in the level's virtual time.
	virtual float64
	tokens  float64    // that wait
	all     *list.List // of *Ticket, in order of arrival
	news    *list.List // those of new sessions
	since   time.Time  // when it last began to wait
	claim   claim
	index   int // in level.active, -1 while nothing waits
	// elsewhere: the flow is in level.elsewhere. reported is when its requests were last reported to wait at other replicas; zero if none do.
	elsewhere bool
	reported  time.Time
}

// backlog is the waiting work, divided by the flow's weight.
func (f *flow) backlog() float64 { return f.tokens / f.weight }

// level is the queues of one priority. Their tenants share it by weight (start-time fair queueing).
type level struct {
	number int
	// flows by tenant; empty ones are kept as long as they are ahead of the clock.
	flows  map[string]*flow
	active flows
	// clock is the virtual time: the highest that any flow had when it was served.
	clock  float64
	recent recent
	// claimants are the flows with a claim, and some whose claim has expired.
	claimants []*flow
	elsewhere []*flow // whose requests wait at other replicas, and some whose requests no longer do
}

// Queue holds the requests that wait for one pool. The zero value with its Limits set is ready. It is not safe for concurrent use.
type Queue struct {
	Limits Limits

	levels    []*level // with waiting requests, the highest first
	idle      []*level // without, in the order in which they became empty
	deadlines deadlines
	bytes     int64
	tokens    float64
	opened    time.Time // when the pool was served again
	refused   time.Time // when a request was last refused because it had waited too long
	closed    bool
}

// Waits reports whether requests of a tenant wait at a level.
func (q *Queue) Waits(number int, tenant string) bool {
	l := q.find(number)
	return l != nil && l.flows[tenant] != nil && l.flows[tenant].index >= 0
}

// Len is the number of waiting requests.
func (q *Queue) Len() int { return len(q.deadlines) }

// Bytes is the memory that their bodies take.
func (q *Queue) Bytes() int64 { return q.bytes }

// Tokens is the sum of their costs.
func (q *Queue) Tokens() float64 { return q.tokens }

// Push adds a ticket. If the queue is then over its limits, it removes and returns tickets (see victim), perhaps t itself.
func (q *Queue) Push(now time.Time, t *Ticket) (shed []*Ticket) {
	if q.Limits.Requests < 1 || t.Bytes > q.Limits.Bytes {
		return []*Ticket{t}
	}
	if t.TTL <= 0 {
		t.TTL = q.Limits.TTL
	}
	t.pushed, t.deadline = now, now.Add(t.TTL)
	q.enter(t)
	for len(q.deadlines) > q.Limits.Requests || q.bytes > q.Limits.Bytes {
		victim := q.victim()
		q.Remove(victim)
		shed = append(shed, victim)
	}
	return shed
}

// Next returns the next ticket to serve, nil when none waits. It stays in the queue.
func (q *Queue) Next() *Ticket {
	if len(q.levels) == 0 {
		return nil
	}
	return q.levels[0].active[0].all.Front().Value.(*Ticket)
}

// Pop removes the next ticket and charges its tenant; nil when none waits.
func (q *Queue) Pop(now time.Time) *Ticket {
	t := q.Next()
	if t != nil {
		q.Take(now, t)
	}
	return t
}

// Take removes a waiting ticket, whether it is next or not, and charges its tenant.
func (q *Queue) Take(now time.Time, t *Ticket) { q.TakeFor(now, t, t.Tokens) }

// TakeFor is Take for a ticket whose cost has changed since it was pushed.
func (q *Queue) TakeFor(now time.Time, t *Ticket, tokens float64) {
	f := t.flow
	f.charge(now, max(1, tokens), q.Limits.CatchUp)
	q.leave(t)
}

// Charge counts work that a tenant received without waiting. It counts against the tenant when its next requests wait.
func (q *Queue) Charge(now time.Time, t *Ticket) {
	l := q.level(t.Level)
	f := l.flow(t)
	f.begin(now, q.Limits.CatchUp)
	f.charge(now, t.Cost(), q.Limits.CatchUp)
	if f.index >= 0 {
		heap.Fix(&l.active, f.index)
	}
	q.rest(l)
}

// begin raises the virtual time of an empty flow to the earliest from which it can start: that of CatchUp ago.
func (f *flow) begin(now time.Time, catchUp time.Duration) {
	if f.index < 0 && f.reported.IsZero() {
		f.virtual = max(f.virtual, f.level.recent.ago(now, catchUp, f.level.clock))
	}
}

// charge counts work that a flow receives.
func (f *flow) charge(now time.Time, tokens float64, catchUp time.Duration) {
	l := f.level
	l.clock = max(l.clock, f.virtual)
	l.recent.note(now, l.clock, catchUp)
	f.virtual += tokens / f.weight
	f.claim.since = time.Time{}
}

// Remove removes a ticket without charging for it, and reports whether it was waiting.
func (q *Queue) Remove(t *Ticket) bool {
	if t.flow == nil {
		return false
	}
	q.leave(t)
	return true
}

// Expire removes and returns the tickets that have waited too long. open is false while no endpoint serves the pool. Then
// tickets wait up to Limits.Hold, and once the pool is served again, each has its whole TTL again.
func (q *Queue) Expire(now time.Time, open bool) (late []*Ticket) {
	if open && q.closed {
		q.opened = now
	}
	q.closed = !open
	if !open {
		for _, t := range slices.Clone(q.deadlines) {
			if now.Sub(t.pushed) >= q.Limits.Hold {
				late = append(late, t)
			}
		}
		for _, t := range late {
			q.leave(t)
		}
		return late
	}
	for len(q.deadlines) > 0 && !now.Before(q.deadlines[0].deadline) {
		t := q.deadlines[0]
		if again := q.opened.Add(t.TTL); now.Before(again) {
			t.deadline = again
			heap.Fix(&q.deadlines, 0)
			continue
		}
		q.refused = now
		t.flow.refuse(now)
		q.leave(t)
		late = append(late, t)
	}
	return late
}

// victim is the ticket that is refused first if there is no room. It is of the lowest level, of a tenant whose backlog is the
// mean or more, of a new session if there is one, and the newest of these.
func (q *Queue) victim() *Ticket {
	lowest := q.levels[len(q.levels)-1]
	share := 0.0
	for _, f := range lowest.active {
		share += f.backlog() / float64(len(lowest.active))
	}
	share *= 1 - 1e-9 // however the sum was rounded, some tenant has this share
	var chosen *flow
	better := func(f *flow) bool {
		if chosen == nil {
			return true
		}
		if a, b := q.shedsNew(f), q.shedsNew(chosen); a != b {
			return a
		}
		if f.backlog() != chosen.backlog() {
			return f.backlog() > chosen.backlog()
		}
		return f.tenant < chosen.tenant // any order that is the same each time
	}
	for _, f := range lowest.active {
		if f.backlog() >= share && better(f) {
			chosen = f
		}
	}
	if q.shedsNew(chosen) {
		return chosen.news.Back().Value.(*Ticket)
	}
	return chosen.all.Back().Value.(*Ticket)
}

// shedsNew reports whether a flow would give up a request of a new session.
func (q *Queue) shedsNew(f *flow) bool { return !q.Limits.NewestFirst && f.news.Len() > 0 }

// enter puts a ticket into its flow.
func (q *Queue) enter(t *Ticket) {
	l := q.level(t.Level)
	f := l.flow(t)
	t.flow = f
	t.all = f.all.PushBack(t)
	if !t.Running {
		t.news = f.news.PushBack(t)
	}
	if f.index < 0 {
		f.begin(t.pushed, q.Limits.CatchUp)
		f.since = t.pushed
		heap.Push(&l.active, f)
	}
	f.tokens += t.Cost()
	q.tokens += t.Cost()
	q.bytes += t.Bytes
	heap.Push(&q.deadlines, t)
}

// leave takes a ticket out of everything.
func (q *Queue) leave(t *Ticket) {
	f := t.flow
	l := f.level
	t.flow = nil
	f.all.Remove(t.all)
	if t.news != nil {
		f.news.Remove(t.news)
	}
	t.all, t.news = nil, nil
	f.tokens -= t.Cost()
	q.tokens -= t.Cost()
	q.bytes -= t.Bytes
	heap.Remove(&q.deadlines, t.index)
	if f.all.Len() > 0 {
		heap.Fix(&l.active, f.index)
		return
	}
	f.tokens = 0
	heap.Remove(&l.active, f.index)
	q.rest(l)
	if len(q.levels) == 0 {
		q.tokens = 0 // whatever rounding has left
	}
}

// maxIdle levels are remembered: as many as a policy can have.
const maxIdle = 16

// rest puts a level in which nothing waits aside. What its tenants have had is remembered.
func (q *Queue) rest(l *level) {
	if len(l.active) > 0 {
		return
	}
	i := slices.Index(q.levels, l)
	q.levels = slices.Delete(q.levels, i, i+1)
	if q.idle = append(q.idle, l); len(q.idle) > maxIdle {
		q.idle = slices.Delete(q.idle, 0, 1)
	}
}

// level finds or makes a level among those in which something waits.
func (q *Queue) level(number int) *level {
	i, found := slices.BinarySearchFunc(q.levels, number, func(l *level, n int) int { return n - l.number })
	if found {
		return q.levels[i]
	}
	l := &level{number: number, flows: map[string]*flow{}}
	if j := q.atRest(number); j >= 0 {
		l = q.idle[j]
		q.idle = slices.Delete(q.idle, j, j+1)
	}
	q.levels = slices.Insert(q.levels, i, l)
	return l
}

// atRest is the place of a level among those in which nothing waits, -1 if it is not there.
func (q *Queue) atRest(number int) int {
	return slices.IndexFunc(q.idle, func(l *level) bool { return l.number == number })
}

// flow finds or makes the flow of a ticket's tenant. Its weight is that of the latest ticket.
func (l *level) flow(t *Ticket) *flow {
	f := l.flows[t.Tenant]
	if f == nil {
		l.forget()
		f = &flow{tenant: t.Tenant, level: l, all: list.New(), news: list.New(), index: -1}
		l.flows[t.Tenant] = f
	}
	f.weight = float64(max(1, t.Weight))
	return f
}

// forget drops flows that are empty, when there are many: those that are not ahead of the others, and if these are too
// few, all.
func (l *level) forget() {
	const most = 1024
	for _, all := range []bool{false, true} {
		if len(l.flows) < 2*(len(l.active)+len(l.elsewhere))+most {
			return
		}
		for tenant, f := range l.flows {
			if f.index < 0 && !f.elsewhere && (all || f.virtual <= l.clock) {
				delete(l.flows, tenant)
			}
		}
	}
}

// flows is a heap of flows, the one that has had the least first.
type flows []*flow

func (h flows) Len() int { return len(h) }
func (h flows) Less(i, j int) bool {
	if h[i].virtual != h[j].virtual {
		return h[i].virtual < h[j].virtual
	}
	return h[i].since.Before(h[j].since)
}
func (h flows) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is for container/heap.
func (h *flows) Push(x any) {
	f := x.(*flow)
	f.index = len(*h)
	*h = append(*h, f)
}

// Pop is for container/heap.
func (h *flows) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	f.index = -1
	return f
}

// deadlines is a heap of tickets, the one that must leave first at its top.
type deadlines []*Ticket

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is for container/heap.
func (h *deadlines) Push(x any) {
	t := x.(*Ticket)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop is for container/heap.
func (h *deadlines) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
