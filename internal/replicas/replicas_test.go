package replicas

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

func keys(first, n int) []kvblock.Key {
	out := make([]kvblock.Key, n)
	for i := range out {
		out[i] = kvblock.Key(first + i)
	}
	return out
}

// expectAgreement expects every picker to see of every endpoint what all pickers together have assigned to it. Peers
// receive prefills whose end is predicted only with the next full update.
func (w *world) expectAgreement(why string) {
	w.t.Helper()
	for i := range w.pickers[0].endpoints {
		var inFlight, decoding int
		for _, n := range w.pickers {
			if !n.life.dead {
				v := n.life.view(i)
				inFlight += v.InFlight - v.Peers.InFlight
				decoding += v.Decoding - v.Peers.Decoding
			}
		}
		for p, n := range w.pickers {
			if v := n.life.view(i); !n.life.dead && (v.InFlight != inFlight || v.Decoding != decoding && w.streamed) {
				w.t.Fatalf("%s: picker %d sees %d requests at endpoint %d, %d of them decoding; there are %d and %d",
					why, p, v.InFlight, i, v.Decoding, inFlight, decoding)
			}
		}
	}
}

// expectNothing expects that nothing is left of requests that have ended.
func (w *world) expectNothing(why string) {
	w.t.Helper()
	for p, n := range w.pickers {
		for i := range n.life.trackers {
			if v := n.life.view(i); v.InFlight != 0 || v.Decoding != 0 || v.PendingTokens != 0 || v.Peers != (load.PeerView{}) {
				w.t.Fatalf("%s: picker %d sees %+v at endpoint %d", why, p, v, i)
			}
		}
		if _, _, guesses := n.life.index.Size(); guesses != 0 {
			w.t.Fatalf("%s: picker %d assumes %d blocks", why, p, guesses)
		}
		s := n.life.inbox.Stats(w.now)
		if s.Guesses != 0 || s.Bytes != 0 {
			w.t.Fatalf("%s: picker %d has %d guesses of %d bytes", why, p, s.Guesses, s.Bytes)
		}
		if o := n.life.outbox; len(o.events) != 0 || o.bytes != 0 {
			w.t.Fatalf("%s: picker %d still has %d events of %d bytes to tell", why, p, len(o.events), o.bytes)
		}
		for _, r := range n.life.inbox.peers {
			if len(r.named) != 0 {
				w.t.Fatalf("%s: picker %d remembers %d endpoints of a peer", why, p, len(r.named))
			}
		}
	}
}

// TestNothingIsLeftAfterChaos kills and restarts pickers, breaks links, and loses, doubles and reorders messages, while
// requests begin and end. When it is quiet all agree; when all requests have ended nothing is left.
func TestNothingIsLeftAfterChaos(t *testing.T) {
	for seed := range uint64(100) {
		w := newWorld(t, seed, 2+int(seed%3), 5)
		w.loss, w.twice, w.streamed = 0.2*w.rng.Float64(), 0.2, seed%2 == 0
		w.delay = func() time.Duration { return time.Duration(w.rng.IntN(20)) * time.Millisecond }
		for round := range 4 {
			for range 150 {
				w.step()
				w.run(time.Duration(w.rng.IntN(8)) * time.Millisecond)
			}
			if round%2 == 1 { // longer than anything takes to be sent, or forgotten
				loss := w.loss
				w.loss = 0
				w.run(Beat + 50*time.Millisecond + load.PeerFresh)
				w.expectAgreement("after quiet")
				w.loss = loss
			}
		}
		w.loss = 0
		for _, n := range w.pickers {
			for _, r := range n.life.open {
				n.life.end(r)
			}
			n.life.open = nil
		}
		w.run(Beat + 50*time.Millisecond + load.PeerFresh)
		w.expectNothing("after all requests have ended")
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}
}

// step does one thing at random.
func (w *world) step() {
	n := w.pickers[w.rng.IntN(len(w.pickers))]
	l := n.life
	some := func() (r *request) {
		if len(l.open) > 0 {
			r = l.open[w.rng.IntN(len(l.open))]
		}
		return r
	}
	switch op := w.rng.IntN(100); {
	case op < 45:
		lives := time.Duration(w.rng.IntN(2000)) * time.Millisecond
		l.pick(w.rng.IntN(n.endpoints), w.rng.IntN(4000), w.streamed || w.rng.IntN(2) == 0, keys(1+w.rng.IntN(50), 1+w.rng.IntN(20)), lives)
	case op < 70:
		if r := some(); r != nil {
			l.firstToken(r)
		}
	case op < 94:
		if r := some(); r != nil { // some end twice
			l.end(r)
		}
	case op < 96:
		n.kill()
		n.start()
	case op < 98: // the stream breaks and is made again
		other := w.pickers[w.rng.IntN(len(w.pickers))]
		if other != n {
			w.connect(n, other)
		}
	default: // the pod was removed, and another has taken its place
		i := w.rng.IntN(n.endpoints)
		l.index.Leave(l.holders[i])
		l.holders[i], l.trackers[i] = l.index.Join(), &load.Tracker{}
	}
}

func TestAChangeIsToldAtOnceAndManyAreGathered(t *testing.T) {
	w := newWorld(t, 1, 2, 4)
	w.run(100 * time.Millisecond)
	a, b := w.pickers[0].life, w.pickers[1].life
	a.pick(0, 1000, true, keys(1, 4), time.Minute)
	w.run(3 * time.Millisecond) // a poll of the bell, and the link
	if v := b.view(0); v.InFlight != 1 || v.PendingTokens != 1000 {
		t.Errorf("3 ms after a pick the peer sees %+v", v)
	}
	if _, _, guesses := b.index.Size(); guesses != 4 {
		t.Errorf("the peer assumes %d blocks, want 4", guesses)
	}
	w.run(100 * time.Millisecond)
	before := w.sent
	for range 1000 { // in one second
		a.pick(w.rng.IntN(4), 100, true, keys(1, 1), time.Minute)
		w.run(time.Millisecond)
	}
	if n := w.sent - before; n > int(time.Second/Gather)+10 {
		t.Errorf("%d messages for 1000 picks in a second", n)
	}
	w.run(2 * Gather)
	w.expectAgreement("after 1000 picks")
}

func TestAPickerThatDiesIsGoneInTwoSeconds(t *testing.T) {
	w := newWorld(t, 1, 3, 2)
	w.run(100 * time.Millisecond)
	dead, other := w.pickers[0], w.pickers[1].life
	for range 10 {
		dead.life.pick(1, 500, true, keys(1, 8), time.Hour)
	}
	w.run(100 * time.Millisecond)
	if v := other.view(1); v.Peers.InFlight != 10 {
		t.Fatalf("the others see %+v before", v)
	}
	dead.kill()
	w.run(load.PeerFresh - Beat)
	if v := other.view(1); v.Peers.InFlight != 10 {
		t.Errorf("a peer that may only be slow has lost its counters: %+v", v)
	}
	w.run(Beat + 10*time.Millisecond)
	if v := other.view(1); v.InFlight != 0 || v.PendingTokens != 0 {
		t.Errorf("two seconds after the death of a picker the others see %+v", v)
	}
	w.run(expireTicks)
	if s := other.inbox.Stats(w.now); s.Guesses != 0 || s.Expired != 1 || len(other.inbox.peers) != 1 {
		t.Errorf("of the dead picker is left: %+v, %d peers", s, len(other.inbox.peers))
	}
}

// expireTicks is how soon the world's pickers look for peers to forget.
const expireTicks = 500 * time.Millisecond

// A picker that ends in order takes its counters with it at once.
func TestWhoTakesLeaveIsGoneAtOnce(t *testing.T) {
	w := newWorld(t, 1, 2, 1)
	w.run(100 * time.Millisecond)
	w.pickers[0].life.pick(0, 500, true, keys(1, 8), time.Hour)
	w.run(100 * time.Millisecond)
	other := w.pickers[1].life
	w.pickers[0].life.streams[w.pickers[1]].receiver.Close()
	if v := other.view(0); v.InFlight != 0 {
		t.Errorf("the peer still counts: %+v", v)
	}
	if _, _, guesses := other.index.Size(); guesses != 0 {
		t.Errorf("%d blocks are still assumed", guesses)
	}
}

// Assumptions end when their time is over even if they are never withdrawn.
func TestAssumptionsEnd(t *testing.T) {
	w := newWorld(t, 1, 2, 1)
	w.run(100 * time.Millisecond)
	w.pickers[0].life.pick(0, 500, true, keys(1, 8), time.Second)
	w.run(50 * time.Millisecond)
	other := w.pickers[1].life
	if _, _, guesses := other.index.Size(); guesses != 8 {
		t.Fatalf("%d blocks are assumed, want 8", guesses)
	}
	w.run(time.Second + expireTicks + Beat)
	if _, _, guesses := other.index.Size(); guesses != 0 {
		t.Errorf("%d blocks are assumed after their time", guesses)
	}
}

func TestAssumptionsOfOtherKeysAreNotTakenAndCountersAre(t *testing.T) {
	w := newWorld(t, 1, 2, 1)
	w.run(100 * time.Millisecond)
	a, b := w.pickers[0].life, w.pickers[1].life
	a.trackers[0].Book(w.now, load.WorkOf(100, 0), true)
	a.outbox.Assume(&Assumption{Pool: pool, Endpoint: id(0), KeyID: "another", Keys: keys(1, 8), Until: w.now.Add(time.Minute)})
	a.outbox.Assume(&Assumption{Pool: "other/m", Endpoint: id(0), KeyID: "root", Keys: keys(1, 8), Until: w.now.Add(time.Minute)})
	a.ring()
	w.run(50 * time.Millisecond)
	if v := b.view(0); v.InFlight != 1 {
		t.Errorf("the peer sees %+v", v)
	}
	s := b.inbox.Stats(w.now)
	if s.Assumptions[OtherKeys] != 1 || s.Assumptions[Unknown] != 1 || s.Guesses != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOnlyPeersAreHeard(t *testing.T) {
	w := newWorld(t, 1, 1, 1)
	b := w.pickers[0].life.inbox
	open := func(protocol uint32, incarnation uint64) error {
		_, err := b.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: protocol, Incarnation: incarnation}}})
		return err
	}
	if err := open(Protocol, b.self); !errors.Is(err, ErrSelf) {
		t.Errorf("the picker itself: %v", err)
	}
	if err := open(Protocol+1, 9); err == nil {
		t.Error("another version was taken")
	}
	if err := open(Protocol, 0); err == nil {
		t.Error("no incarnation was taken")
	}
	if _, err := b.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: &pb.Update{}}}); err == nil {
		t.Error("an update was taken for a hello")
	}
	for i := range uint64(MaxPeers) {
		if err := open(Protocol, 100+i); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(Protocol, 99); !errors.Is(err, ErrTooMany) {
		t.Errorf("one too many: %v", err)
	}
	if err := open(Protocol, 100); err != nil {
		t.Errorf("one that comes back: %v", err)
	}
	for _, r := range b.peers {
		r.Lost()
	}
	w.now = w.now.Add(load.PeerFresh + time.Millisecond)
	if err := open(Protocol, 99); err != nil {
		t.Errorf("when the others are gone: %v", err)
	}
}

// TestReplicasHavePlacesOfTheirOwn: those that hear each other divide the range from 0 to 1 among them, in the order of their
// incarnations. One that has gone leaves its place.
func TestReplicasHavePlacesOfTheirOwn(t *testing.T) {
	now := time.Unix(1e6, 0)
	expect := func(o *Outbox, want float64, when string) {
		t.Helper()
		if got := o.Place(); got != want {
			t.Errorf("%s: place %v, want %v", when, got, want)
		}
	}
	outbox := NewOutbox(20)
	inbox := NewInbox(nil, 20)
	inbox.UpdatePlaceOf(outbox)
	expect(outbox, 0, "alone")
	open := func(incarnation uint64) *Receiver {
		r, err := inbox.Open(now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: incarnation}}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	open(30)
	expect(outbox, 0, "before the other")
	open(10)
	expect(outbox, 1.0/3, "between two")
	open(10)
	expect(outbox, 1.0/3, "when one has connected again")
	open(10).Lost()
	now = now.Add(load.PeerFresh + time.Millisecond)
	open(30)
	expect(outbox, 0, "when the first has gone")
	var none *Outbox
	expect(none, 0, "without peers")
}

func TestNonsenseIsRefused(t *testing.T) {
	w := newWorld(t, 1, 1, 1)
	l := w.pickers[0].life
	r, err := l.inbox.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: 99}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*pb.PeerMessage{
		"nothing":                {},
		"a second hello":         {Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: 99}}},
		"more decode than are":   update(&pb.Load{Pool: pool, Pod: "pod-0", InFlight: 1, Decoding: 2}),
		"a head beyond all":      update(&pb.Load{Pool: pool, Pod: "pod-0", InFlight: 1, PendingTokens: 1, HeadTokens: 2}),
		"too many requests":      update(&pb.Load{Pool: pool, Pod: "pod-0", InFlight: maxRequests + 1}),
		"too many tokens":        update(&pb.Load{Pool: pool, Pod: "pod-0", PendingTokens: maxTokens + 1}),
		"too much work":          update(&pb.Load{Pool: pool, Pod: "pod-0", Pending: &pb.Work{Tokens: maxTokens + 1}}),
		"less pairs than none":   update(&pb.Load{Pool: pool, Pod: "pod-0", Pending: &pb.Work{Pairs: -1}}),
		"pairs that no peer has": update(&pb.Load{Pool: pool, Pod: "pod-0", Head: &pb.Work{Pairs: math.NaN()}}),
		"too much context":       update(&pb.Load{Pool: pool, Pod: "pod-0", Head: &pb.Work{Context: maxTokens + 1}}),
		"too much decoded":       update(&pb.Load{Pool: pool, Pod: "pod-0", DecodingTokens: maxTokens + 1}),
		"no such rank":           update(&pb.Load{Pool: pool, Pod: "pod-0", Rank: maxRank + 1}),
		"a long name":            update(&pb.Load{Pool: string(make([]byte, maxName+1))}),
		"too many keys":          {Kind: &pb.PeerMessage_Update{Update: &pb.Update{Seq: 1, Assumptions: []*pb.Assumption{{Id: 1, Keys: make([]uint64, MaxKeys+1)}}}}},
		"too many levels": {Kind: &pb.PeerMessage_Update{Update: &pb.Update{Seq: 1, Usages: []*pb.Usage{
			{Pool: pool, Tenant: "t", Queued: make([]*pb.Queued, tenant.MaxQueued+1)}}}}},
		"an assumption of none": {Kind: &pb.PeerMessage_Update{Update: &pb.Update{Seq: 1, Assumptions: []*pb.Assumption{{}}}}},
	} {
		if err := r.Handle(w.now, m); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	w.expectNothing("after nonsense")
}

func update(l *pb.Load) *pb.PeerMessage {
	return &pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: &pb.Update{Seq: 1, Loads: []*pb.Load{l}}}}
}

// A nil outbox and one without peers keep nothing.
func TestWithoutPeersNothingIsKept(t *testing.T) {
	var none *Outbox
	a := &Assumption{Keys: keys(1, 3)}
	none.Changed()
	none.Assume(a)
	none.Withdraw(a)
	o := NewOutbox(1)
	o.Changed()
	o.Assume(a)
	o.Withdraw(a)
	if len(o.events) != 0 || !o.Alone() || !none.Alone() {
		t.Errorf("%d events are kept without a peer", len(o.events))
	}
	s := NewSender(o, func(func(string, endpoint.ID, *load.Tracker)) {})
	o.Assume(a)
	s.Close()
	s.Close()
	if len(o.events) != 0 || o.bytes != 0 || !o.Alone() {
		t.Errorf("%d events of %d bytes are kept for a peer that has gone", len(o.events), o.bytes)
	}
}

// An update that arrives late, or again, changes nothing: not even what only a later one could repair.
func TestLateUpdatesArePassedOver(t *testing.T) {
	w := newWorld(t, 1, 1, 1)
	l := w.pickers[0].life
	r, err := l.inbox.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: 99}}})
	if err != nil {
		t.Fatal(err)
	}
	first := &pb.Update{Seq: 1, Loads: []*pb.Load{{Pool: pool, Pod: "pod-0", InFlight: 5}},
		Assumptions: []*pb.Assumption{{Id: 1, Pool: pool, Pod: "pod-0", KeyId: "root", Keys: []uint64{1}, LifeMilliseconds: 1000}}}
	second := &pb.Update{Seq: 2, Loads: []*pb.Load{{Pool: pool, Pod: "pod-0", InFlight: 1}}, Withdrawn: []uint64{1}}
	for _, u := range []*pb.Update{second, first, second, first} {
		if err := r.Handle(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: u}}); err != nil {
			t.Fatal(err)
		}
		if v := l.view(0); v.InFlight != 1 {
			t.Errorf("after update %d there are %d requests, want 1", u.GetSeq(), v.InFlight)
		}
	}
	if s := l.inbox.Stats(w.now); s.PassedOver != 3 || s.Guesses != 0 {
		t.Errorf("%+v", s)
	}
}

// In a fleet without requests only heartbeats are sent; and the end of a request is sent at once.
func TestIdleEndpointsAreNotTold(t *testing.T) {
	o := NewOutbox(1)
	trackers := make([]load.Tracker, 100)
	s := NewSender(o, func(f func(string, endpoint.ID, *load.Tracker)) {
		for i := range trackers {
			f(pool, id(i), &trackers[i])
		}
	})
	defer s.Close()
	now := time.Unix(1000, 0)
	s.Next(now)
	b := trackers[7].Book(now, load.WorkOf(100, 0), true)
	b.Release(now)
	for range 3 {
		m, wake := s.Next(now)
		if u := m.GetUpdate(); !u.GetFull() || len(u.GetLoads()) != 0 || wake.Sub(now) != Beat {
			t.Fatalf("%v, next after %v", m, wake.Sub(now))
		}
		if m, _ := s.Next(now.Add(Beat - 1)); m != nil {
			t.Fatalf("between two full updates: %v", m)
		}
		now = now.Add(Beat)
	}
	s.Next(now)
	b = trackers[7].Book(now, load.WorkOf(100, 0), true)
	for _, want := range []uint32{1, 0} {
		now = now.Add(Gather)
		o.Changed()
		m, _ := s.Next(now)
		if loads := m.GetUpdate().GetLoads(); len(loads) != 1 || loads[0].GetPod() != "pod-7" || loads[0].GetInFlight() != want {
			t.Errorf("told %v, want %d requests at pod-7", loads, want)
		}
		b.Release(now)
	}
}

func TestWhatIsWithdrawnEndsAtOnce(t *testing.T) {
	w := newWorld(t, 1, 2, 1)
	w.run(100 * time.Millisecond)
	a, b := w.pickers[0].life, w.pickers[1].life
	r := a.pick(0, 100, true, keys(1, 8), time.Hour)
	w.run(2 * Gather)
	if _, _, n := b.index.Size(); n != 8 {
		t.Fatalf("%d blocks are assumed, want 8", n)
	}
	a.firstToken(r)
	w.run(2 * Gather)
	if _, _, n := b.index.Size(); n != 0 {
		t.Errorf("%d blocks are still assumed", n)
	}
}

// TestOneOldestRequestIsNoMoreThanAllWork: a peer that reports more of its oldest request than of all its requests must not make the
// work of others look done.
func TestOneOldestRequestIsNoMoreThanAllWork(t *testing.T) {
	now := time.Now()
	s := shareOf(now, &pb.Load{Pending: &pb.Work{Tokens: 10, Pairs: 5, Context: 20}, Head: &pb.Work{Tokens: maxTokens, Pairs: maxPairs, Context: 3}})
	if want := (load.Work{Tokens: 10, Pairs: 5, Context: 3}); s.Head != want || s.Pending.Tokens != 10 {
		t.Errorf("the oldest is %+v of %+v, want %+v", s.Head, s.Pending, want)
	}
	if s := shareOf(now, &pb.Load{PendingTokens: 7, HeadTokens: 3}); s.HeadTokens != 3 || s.Head != (load.Work{}) {
		t.Errorf("an older peer: %+v", s)
	}
}
