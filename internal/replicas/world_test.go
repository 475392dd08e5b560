package replicas

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// world is pickers that exchange over bad links in virtual time.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Time
	queue   events
	n       int // of events so far
	pickers []*node
	lives   uint64
	// loss, twice and delay are of the links: messages can overtake each other.
	loss, twice float64
	delay       func() time.Duration
	streamed    bool // all answers are
	sent        int
	homes       int // sent
}

type timed struct {
	at time.Time
	n  int // keeps the order of what happens at the same time
	do func()
}

type events []timed

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].n < q[j].n
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(timed)) }
func (q *events) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func newWorld(t testing.TB, seed uint64, pickers, endpoints int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.delay = func() time.Duration { return time.Millisecond }
	for range pickers {
		n := &node{w: w, endpoints: endpoints}
		w.pickers = append(w.pickers, n)
		n.start()
	}
	return w
}

func (w *world) after(d time.Duration, do func()) {
	w.n++
	heap.Push(&w.queue, timed{w.now.Add(d), w.n, do})
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.queue) > 0 && !w.queue[0].at.After(end) {
		e := heap.Pop(&w.queue).(timed)
		w.now = e.at
		e.do()
	}
	w.now = end
}

// node is a picker, in one life after the other.
type node struct {
	w         *world
	endpoints int
	life      *life
}

type life struct {
	w        *world
	dead     bool
	outbox   *Outbox
	inbox    *Inbox
	trackers []*load.Tracker
	index    *kvindex.Table
	holders  []kvindex.Holder
	open     []*request
	streams  map[*node]*stream
	sessions *routinghistory.Sessions
	routed   []*Routed
}

// request is one that a picker has given an endpoint.
type request struct {
	booking *load.Booking
	guess   *Assumption
}

// stream carries updates from a life of a node to another one.
type stream struct {
	sender   *Sender
	receiver *Receiver
	broken   bool
	turn     int // counts the waits
}

const pool = "default/m"

func id(i int) endpoint.ID { return endpoint.ID{Pod: fmt.Sprint("pod-", i)} }

// start begins a life.
func (n *node) start() {
	w := n.w
	w.lives++
	l := &life{w: w, outbox: NewOutbox(w.lives), index: kvindex.New(), streams: map[*node]*stream{}}
	l.sessions = routinghistory.NewSessions(1000, time.Hour)
	l.inbox = NewInbox(l, w.lives)
	for range n.endpoints {
		l.trackers = append(l.trackers, &load.Tracker{})
		l.holders = append(l.holders, l.index.Join())
	}
	n.life = l
	var expire func()
	expire = func() {
		if !l.dead {
			l.inbox.Expire(w.now)
			w.after(500*time.Millisecond, expire)
		}
	}
	expire()
	for _, other := range w.pickers {
		if other != n {
			w.connect(n, other)
			w.connect(other, n)
		}
	}
}

// kill ends a life without a word.
func (n *node) kill() {
	n.life.dead = true
	for _, s := range n.life.streams {
		n.w.cut(s)
	}
	for _, other := range n.w.pickers {
		if s := other.life.streams[n]; s != nil {
			n.w.cut(s)
		}
	}
}

// cut breaks a stream. Messages on the way can still arrive.
func (w *world) cut(s *stream) {
	s.broken = true
	s.sender.Close()
	if s.receiver != nil {
		s.receiver.Lost()
	}
}

// connect opens a stream by which one node sends updates to another.
func (w *world) connect(from, to *node) {
	if before := from.life.streams[to]; before != nil {
		w.cut(before)
	}
	s := &stream{sender: NewSender(from.life.outbox, from.life.each)}
	s.sender.SendHomes(func(f func(string, *routinghistory.Sessions)) { f(pool, from.life.sessions) })
	from.life.streams[to] = s
	w.pump(s, to.life)
}

// pump polls the sender for messages: at once, at the time that it returned, and when the bell has rung.
func (w *world) pump(s *stream, to *life) {
	select {
	case <-s.sender.Bell():
	default:
	}
	for !s.broken {
		m, wake := s.sender.Next(w.now)
		if m != nil {
			w.sent++
			for _, h := range m.GetUpdate().GetHomes() {
				w.homes += len(h.GetSessions())
			}
			w.carry(s, m, to)
			continue
		}
		s.turn++
		turn := s.turn
		w.after(wake.Sub(w.now), func() {
			if s.turn == turn { // the bell has not rung before
				w.pump(s, to)
			}
		})
		return
	}
}

// ring looks which bells have rung.
func (l *life) ring() {
	for _, to := range l.w.pickers {
		if s := l.streams[to]; s != nil && len(s.sender.Bell()) > 0 {
			l.w.pump(s, to.life)
		}
	}
}

// carry lets a message arrive later, perhaps never, or twice.
func (w *world) carry(s *stream, m *pb.PeerMessage, to *life) {
	wire, err := proto.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	copies := 1
	if w.rng.Float64() < w.twice {
		copies++
	}
	for range copies {
		if m.GetHello() == nil && w.rng.Float64() < w.loss {
			continue
		}
		w.after(w.delay(), func() {
			var got pb.PeerMessage
			if err := proto.Unmarshal(wire, &got); err != nil {
				w.t.Fatal(err)
			}
			w.arrive(s, &got, to)
		})
	}
}

func (w *world) arrive(s *stream, m *pb.PeerMessage, to *life) {
	if to.dead {
		return
	}
	if m.GetHello() != nil {
		if s.receiver == nil && !s.broken {
			r, err := to.inbox.Open(w.now, m)
			if err != nil {
				w.t.Fatal(err)
			}
			s.receiver = r
		}
		return
	}
	if s.receiver == nil {
		return // overtook the hello
	}
	if err := s.receiver.Handle(w.now, m); err != nil && !errors.Is(err, ErrClosed) {
		w.t.Fatal(err)
	}
}

// each implements Loads.
func (l *life) each(f func(string, endpoint.ID, *load.Tracker)) {
	for i, t := range l.trackers {
		f(pool, id(i), t)
	}
}

// Tracker implements Pools.
func (l *life) Tracker(name string, ep endpoint.ID) *load.Tracker {
	for i := range l.trackers {
		if name == pool && ep == id(i) {
			return l.trackers[i]
		}
	}
	return nil
}

// Routed implements Pools.
func (l *life) Routed(x *Routed) { l.routed = append(l.routed, x) }

// Sessions implements Pools.
func (l *life) Sessions(name string) *routinghistory.Sessions {
	if name != pool {
		return nil
	}
	return l.sessions
}

// Assume implements Pools.
func (l *life) Assume(a *Assumption) (*kvindex.Guess, Refusal) {
	for i := range l.trackers {
		if a.Pool == pool && a.Endpoint == id(i) {
			if a.KeyID != "root" {
				return nil, OtherKeys
			}
			return l.index.Speculate(l.holders[i], a.Keys), Taken
		}
	}
	return nil, Unknown
}

// pick books a request on an endpoint and speculates there.
func (l *life) pick(i, tokens int, streamed bool, keys []kvblock.Key, lives time.Duration) *request {
	r := &request{
		booking: l.trackers[i].Book(l.w.now, load.WorkOf(tokens, 0), streamed),
		guess:   &Assumption{Pool: pool, Endpoint: id(i), KeyID: "root", Keys: keys, Until: l.w.now.Add(lives)},
	}
	l.outbox.Changed()
	l.outbox.Assume(r.guess)
	l.open = append(l.open, r)
	l.ring()
	return r
}

// firstToken ends the prefill of a request.
func (l *life) firstToken(r *request) {
	r.booking.FirstToken(l.w.now)
	l.outbox.Changed()
	l.outbox.Withdraw(r.guess)
	l.ring()
}

// end takes a request off.
func (l *life) end(r *request) {
	r.booking.Release(l.w.now)
	l.outbox.Changed()
	l.outbox.Withdraw(r.guess)
	l.ring()
}

func (l *life) view(i int) load.View { return l.trackers[i].View(l.w.now) }
