package replicas

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// TestSessionsAreWhereTheLastRequestWent: while pickers are killed and start again, every picker that has been connected for a
// moment knows the same home of each session, also those of sessions whose picker has gone.
func TestSessionsAreWhereTheLastRequestWent(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(t, seed, 2+int(seed%3), 1)
		homes := map[uint64]uint64{}
		for round := range 5 {
			for range 200 {
				session, endpoint := w.rng.Uint64N(60), 1+w.rng.Uint64N(9)
				n := w.pickers[w.rng.IntN(len(w.pickers))]
				homes[session] = endpoint
				n.life.sessions.Put(session, endpoint, w.now)
				n.life.outbox.Changed()
				w.run(time.Duration(1+w.rng.IntN(5)) * time.Millisecond)
			}
			w.run(time.Second)
			for p, n := range w.pickers {
				for session, want := range homes {
					if got := n.life.sessions.Get(session, w.now); got != want {
						t.Fatalf("seed %d, round %d: session %d is at %d for picker %d, want %d", seed, round, session, got, p, want)
					}
				}
			}
			n := w.pickers[w.rng.IntN(len(w.pickers))]
			n.kill()
			n.start()
			w.run(time.Second)
		}
	}
}

// TestHomesAreNotSentForever: what a picker has put is sent to each peer, and repeated with at most two full updates. What it has
// learned it does not send back.
func TestHomesAreNotSentForever(t *testing.T) {
	const pickers, sessions = 3, 50
	w := newWorld(t, 1, pickers, 1)
	w.run(5 * time.Second)
	for session := range uint64(sessions) {
		w.pickers[0].life.sessions.Put(session, 7, w.now)
		w.pickers[0].life.outbox.Changed()
		w.run(time.Millisecond)
	}
	w.run(5 * time.Second)
	if least, most := sessions*(pickers-1), 3*sessions*(pickers-1); w.homes < least || w.homes > most {
		t.Errorf("%d homes were sent, want %d to %d", w.homes, least, most)
	}
}

// TestHomesThatNoPickerSends are refused, and unknown pools passed over.
func TestHomesThatNoPickerSends(t *testing.T) {
	many := make([]uint64, maxHomes)
	for i := range many {
		many[i] = rand.Uint64()
	}
	ages := make([]uint32, maxHomes)
	some := func(n int, of string) *pb.Homes {
		return &pb.Homes{Pool: of, Sessions: many[:n], Endpoints: many[:n], IdleMilliseconds: ages[:n]}
	}
	for name, c := range map[string]struct {
		homes []*pb.Homes
		ok    bool
	}{
		"unequal lists":     {[]*pb.Homes{{Pool: pool, Sessions: many[:2], Endpoints: many[:1], IdleMilliseconds: ages[:2]}}, false},
		"no ages":           {[]*pb.Homes{{Pool: pool, Sessions: many[:1], Endpoints: many[:1]}}, false},
		"a long name":       {[]*pb.Homes{{Pool: string(make([]byte, maxName+1))}}, false},
		"too many":          {[]*pb.Homes{some(maxHomes, pool), some(1, "b/c")}, false},
		"an unknown pool":   {[]*pb.Homes{some(1, "b/c")}, true},
		"as many as can be": {[]*pb.Homes{some(maxHomes, pool)}, true},
	} {
		l := newWorld(t, 1, 1, 1).pickers[0].life
		r, err := l.inbox.Open(l.w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: 99}}})
		if err != nil {
			t.Fatal(err)
		}
		err = r.Handle(l.w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: &pb.Update{Seq: 1, Homes: c.homes}}})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRoutedTextsReachPeersOnce, as they were cut; and not a peer that starts later.
func TestRoutedTextsReachPeersOnce(t *testing.T) {
	w := newWorld(t, 1, 3, 1)
	w.run(time.Second)
	sent := &Routed{Pool: pool, Endpoint: id(0), KeyID: "root", ChunkBytes: 64, MostChunks: 256, Chunks: []routinghistory.Chunk{5, 6, 7}}
	w.pickers[0].life.outbox.Route(sent)
	w.run(5 * time.Second)
	for p, n := range w.pickers[1:] {
		if got := n.life.routed; len(got) != 1 || !reflect.DeepEqual(got[0], sent) {
			t.Errorf("picker %d received %+v, want %+v once", p+1, got, sent)
		}
	}
	if o := w.pickers[0].life.outbox; len(w.pickers[0].life.routed) > 0 || len(o.events) > 0 || o.bytes != 0 {
		t.Errorf("%d texts came back, %d events of %d bytes are kept", len(w.pickers[0].life.routed), len(o.events), o.bytes)
	}
	long := &Routed{Pool: pool, Chunks: make([]routinghistory.Chunk, 2*MaxKeys)}
	w.pickers[0].life.outbox.Route(long)
	w.run(time.Second)
	if got := w.pickers[1].life.routed; len(got) != 2 || len(got[1].Chunks) != MaxKeys {
		t.Errorf("of a text of %d chunks, %d requests arrived: want the first %d chunks", 2*MaxKeys, len(got)-1, MaxKeys)
	}
}

// TestPickersAgreeOnHomesWhateverTheLinksDo: sessions whose requests meet several pickers at once, over links that lose, double and
// reorder messages; between these times pickers are killed and start again. Once the links are good again, all pickers have the
// same home of each session, and it is where the last request went.
func TestPickersAgreeOnHomesWhateverTheLinksDo(t *testing.T) {
	const sessions = 40
	for seed := range uint64(60) {
		w := newWorld(t, seed, 2+int(seed%3), 1)
		for round := range 4 {
			w.loss, w.twice = 0.3*w.rng.Float64(), 0.2
			w.delay = func() time.Duration { return time.Duration(w.rng.IntN(40_000)) * time.Microsecond }
			for range 200 {
				w.put(w.rng.IntN(len(w.pickers)), w.rng.Uint64N(sessions), 1+w.rng.Uint64N(9))
				w.run(time.Duration(w.rng.IntN(3000)) * time.Microsecond)
			}
			w.loss, w.twice = 0, 0
			w.delay = func() time.Duration { return time.Millisecond }
			w.run(3 * Beat)
			for session := range uint64(sessions) {
				w.expectOneHome(seed, round, session)
			}
			last := map[uint64]uint64{}
			for range 50 {
				session, endpoint := w.rng.Uint64N(sessions), 1+w.rng.Uint64N(9)
				w.put(w.rng.IntN(len(w.pickers)), session, endpoint)
				last[session] = endpoint
				w.run(2 * Gather)
			}
			for session, want := range last {
				if got := w.expectOneHome(seed, round, session); got != want {
					t.Fatalf("seed %d, round %d: session %d is at %d, its last request went to %d", seed, round, session, got, want)
				}
			}
			n := w.pickers[w.rng.IntN(len(w.pickers))]
			n.kill()
			n.start()
			w.run(time.Second)
		}
	}
}

// put sends a session's request to an endpoint, by a picker.
func (w *world) put(picker int, session, endpoint uint64) {
	l := w.pickers[picker].life
	l.sessions.Put(session, endpoint, w.now)
	l.outbox.Changed()
	l.ring()
}

// expectOneHome expects all pickers to have the same home of a session, and returns it.
func (w *world) expectOneHome(seed uint64, round int, session uint64) uint64 {
	w.t.Helper()
	first := w.pickers[0].life.sessions.Get(session, w.now)
	for p, n := range w.pickers {
		if got := n.life.sessions.Get(session, w.now); got != first {
			w.t.Fatalf("seed %d, round %d: session %d is at %d for picker 0 and at %d for picker %d", seed, round, session, first, got, p)
		}
	}
	return first
}

// TestAQuietSessionReachesAPickerThatStarts, though others have had many more requests since than homes are remembered.
func TestAQuietSessionReachesAPickerThatStarts(t *testing.T) {
	w := newWorld(t, 1, 2, 1)
	w.run(time.Second)
	w.put(0, 1, 5)
	for i := range uint64(5000) {
		w.put(0, 2+i%10, 6)
		w.run(100 * time.Microsecond)
	}
	w.pickers[1].kill()
	w.pickers[1].start()
	w.run(time.Second)
	if got := w.pickers[1].life.sessions.Get(1, w.now); got != 5 {
		t.Errorf("the quiet session is at %d, want 5", got)
	}
}
