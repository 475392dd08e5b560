package load

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/test/wallclock"
)

// pickers are trackers of one endpoint, each of another picker.
type pickers struct {
	trackers []*Tracker
	peers    [][]*Peer // peers[i][j] is j as i knows it
}

func newPickers(n int) *pickers {
	p := &pickers{}
	for range n {
		p.trackers = append(p.trackers, &Tracker{})
		list := make([]*Peer, n)
		for j := range list {
			list[j] = &Peer{}
		}
		p.peers = append(p.peers, list)
	}
	return p
}

// exchange sends the counters of every picker to all others at once.
func (p *pickers) exchange(now time.Time) {
	for j, from := range p.trackers {
		share, _ := from.Share(now)
		for i, to := range p.trackers {
			if i != j {
				p.peers[i][j].Receive(now)
				to.Merge(p.peers[i][j], share)
			}
		}
	}
}

// TestPickersThatTellSeeOneQueue plays random requests on one tracker, and the same ones shared out among three that send
// each other updates: all four see the same load, except for what they have learned.
func TestPickersThatTellSeeOneQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var alone Tracker
	p := newPickers(3)
	for _, tracker := range append(p.trackers, &alone) {
		tracker.rate = known(2000)
	}
	type pair struct{ one, shared *Booking }
	var open []pair
	for step := range 3000 {
		now := at(float64(step) * 0.01)
		switch op := rng.IntN(4); {
		case op == 0 || len(open) == 0:
			tokens := rng.IntN(3000)
			open = append(open, pair{alone.Book(now, WorkOf(tokens, 0), true), p.trackers[rng.IntN(3)].Book(now, WorkOf(tokens, 0), true)})
		case op < 3:
			i := rng.IntN(len(open))
			open[i].one.EndPrefill(now)
			open[i].shared.EndPrefill(now)
		default:
			i := rng.IntN(len(open))
			open[i].one.Release(now)
			open[i].shared.Release(now)
			open = append(open[:i], open[i+1:]...)
		}
		p.exchange(now)
		later := now.Add(5 * time.Millisecond)
		want := alone.View(later)
		own := PeerView{}
		for i, tracker := range p.trackers {
			v := tracker.View(later)
			if v.InFlight != want.InFlight || v.Decoding != want.Decoding || v.PendingTokens != want.PendingTokens ||
				v.PendingPairs != want.PendingPairs || v.PendingContext != want.PendingContext || v.DecodingTokens != want.DecodingTokens {
				t.Fatalf("step %d: picker %d sees %+v, one picker would see %+v", step, i, v, want)
			}
			own.InFlight += v.InFlight - v.Peers.InFlight
			own.Decoding += v.Decoding - v.Peers.Decoding
			own.PendingTokens += v.PendingTokens - v.Peers.PendingTokens
		}
		if own.InFlight != want.InFlight || own.Decoding != want.Decoding || math.Abs(own.PendingTokens-want.PendingTokens) > 1e-6 {
			t.Fatalf("step %d: the parts are %+v, the whole is %+v", step, own, want)
		}
	}
}

// The engine computes one prefill at a time, whichever picker has sent it.
func TestWorkThatIsDoneCountsOnce(t *testing.T) {
	p := newPickers(2)
	for _, tracker := range p.trackers {
		tracker.rate = known(1000)
	}
	p.trackers[0].Book(start, WorkOf(1000, 0), true)
	p.trackers[1].Book(at(0.1), WorkOf(1000, 0), true)
	p.exchange(at(0.1))
	for i, tracker := range p.trackers {
		if v := tracker.View(at(0.5)); math.Abs(v.PendingTokens-1500) > 1 {
			t.Errorf("picker %d sees %.0f tokens pending after half a second at 1000 tokens/s, of 2000", i, v.PendingTokens)
		}
		if v := tracker.View(at(1.5)); math.Abs(v.PendingTokens-1000) > 1 {
			t.Errorf("picker %d sees %.0f tokens pending though no picker has reported the end of the first prefill", i, v.PendingTokens)
		}
	}
}

func TestAPeerThatIsNotHeardDoesNotCount(t *testing.T) {
	var tracker Tracker
	peer, other := &Peer{}, &Peer{}
	peer.Receive(start)
	other.Receive(start)
	tracker.Merge(peer, Share{InFlight: 3, Decoding: 1, PendingTokens: 500})
	tracker.Merge(other, Share{InFlight: 1, Decoding: 1})
	tracker.Merge(peer, Share{InFlight: 2, Decoding: 1, PendingTokens: 400}) // in place of the other
	if v := tracker.View(at(1)); v.InFlight != 3 || v.Decoding != 2 || v.PendingTokens != 400 || v.Peers.InFlight != 3 {
		t.Errorf("two peers: %+v", v)
	}
	other.Receive(at(1))
	if v := tracker.View(start.Add(PeerFresh + time.Millisecond)); v.InFlight != 1 || v.PendingTokens != 0 {
		t.Errorf("one peer is silent: %+v", v)
	}
	peer.Receive(at(3)) // and again: nothing has changed meanwhile
	if v := tracker.View(at(3)); v.InFlight != 3 {
		t.Errorf("it reports again: %+v", v)
	}
	tracker.Merge(peer, Share{})
	tracker.Merge(other, Share{})
	tracker.Merge(other, Share{})
	if v := tracker.View(at(3)); v.InFlight != 0 || len(tracker.peers) != 0 {
		t.Errorf("both are idle: %+v, %d shares", v, len(tracker.peers))
	}
}

// TestTheRateDoesNotDependOnTheNumberOfPickers lets two pickers fill one engine, which prefills in order of arrival. The
// requests that wait before another one are from both, so that a picker which knows its own half only learns half the rate.
func TestTheRateDoesNotDependOnTheNumberOfPickers(t *testing.T) {
	const rate, overhead = 20_000.0, 0.02
	learned := func(tell bool) float64 {
		rng := rand.New(rand.NewPCG(4, 4))
		p := newPickers(2)
		type job struct {
			b    *Booking
			done float64
		}
		var jobs []job
		clock, free := 0.0, 0.0
		for range 2000 {
			clock += rng.ExpFloat64() * 0.27
			for len(jobs) > 0 && jobs[0].done <= clock {
				jobs[0].b.FirstToken(at(jobs[0].done))
				jobs[0].b.Release(at(jobs[0].done + 0.01))
				if tell {
					p.exchange(at(jobs[0].done))
				}
				jobs = jobs[1:]
			}
			tokens := 200 + rng.IntN(10_000)
			b := p.trackers[rng.IntN(2)].Book(at(clock), WorkOf(tokens, 0), true)
			if tell {
				p.exchange(at(clock))
			}
			free = math.Max(free, clock) + float64(tokens)/rate
			jobs = append(jobs, job{b, free + overhead})
		}
		v, w := p.trackers[0].View(at(clock)), WorkOf(5000, 0) // tokens and pairs are in a fixed ratio: only their sum is known
		return w.Tokens / (w.Tokens/v.Rate + w.Pairs*v.PairSeconds)
	}
	if r := learned(true); r < 0.85*rate || r > 1.15*rate {
		t.Errorf("two pickers that tell each other learn %.0f tokens/s, the engine does %.0f", r, rate)
	}
	if r := learned(false); r > 0.85*rate {
		t.Errorf("two pickers that do not tell learn %.0f tokens/s of %.0f: this test shows nothing", r, rate)
	}
}

// TestTheTimeWithoutProgressIsThatOfAllPickers: what an endpoint does for peers is progress, and when it has stopped, a
// picker without requests of its own there sees that too.
func TestTheTimeWithoutProgressIsThatOfAllPickers(t *testing.T) {
	p := newPickers(2)
	mine, theirs := p.trackers[0], p.trackers[1]
	long := mine.Book(start, WorkOf(100, 0), true)
	long.FirstToken(at(1))
	for second := 10.0; second < 60; second += 10 {
		b := theirs.Book(at(second), WorkOf(100, 0), true)
		p.exchange(at(second))
		b.FirstToken(at(second + 1))
		p.exchange(at(second + 1))
		if got := mine.View(at(second + 2)).Stuck; got != time.Second {
			t.Fatalf("a second after a peer's first token the endpoint has made no progress for %v", got)
		}
		b.Release(at(second + 5))
		p.exchange(at(second + 5))
		if got := mine.View(at(second + 7)).Stuck; got != 2*time.Second {
			t.Fatalf("two seconds after the end of a peer's answer the endpoint has made no progress for %v", got)
		}
	}
	long.Release(at(60))
	p.exchange(at(60))
	if got := mine.View(at(70)).Stuck; got != 0 {
		t.Errorf("with nothing in flight: %v", got)
	}
	theirs.Book(at(100), WorkOf(100, 0), true)
	for second := 100.0; second <= 108; second++ {
		p.exchange(at(second))
	}
	if got := mine.View(at(108)).Stuck; got != 8*time.Second {
		t.Errorf("a picker without requests at an endpoint that has stopped sees no progress for %v", got)
	}
	mine.Book(at(108), WorkOf(100, 0), true)
	p.exchange(at(109))
	for i, tracker := range p.trackers {
		if got := tracker.View(at(110)).Stuck; got != 10*time.Second {
			t.Errorf("picker %d: ten seconds after a prefill began that does not end: %v", i, got)
		}
	}
}

// TestALongAnswerAloneIsNoLackOfProgress: a prefill that begins beside it has to end in its own time.
func TestALongAnswerAloneIsNoLackOfProgress(t *testing.T) {
	var tracker Tracker
	tracker.Book(start, WorkOf(100, 0), true).FirstToken(at(1))
	tracker.Book(at(60), WorkOf(100, 0), true)
	if got := tracker.View(at(60.5)).Stuck; got != 500*time.Millisecond {
		t.Errorf("half a second after the prefill began: %v", got)
	}
	tracker.Book(at(62), WorkOf(100, 0), true)
	if got := tracker.View(at(63)).Stuck; got != 3*time.Second {
		t.Errorf("a prefill behind it counts as progress: %v", got)
	}
}

// TestPeersEndByTheMonotonicClock: a wall clock that is set back does not make a peer that is gone count for as long, and one that
// jumps forward does not make those that are there end.
func TestPeersEndByTheMonotonicClock(t *testing.T) {
	for _, set := range []time.Duration{time.Hour, -time.Hour} {
		var p Peer
		if p.Fresh(time.Now()) {
			t.Error("a peer from which nothing was received is fresh")
		}
		now := time.Now()
		p.Receive(now)
		if at := wallclock.Set(now.Add(PeerFresh), set); !p.Fresh(at) {
			t.Errorf("clock set by %s: a peer that was just received from has ended", set)
		}
		if at := wallclock.Set(now.Add(PeerFresh+1), set); p.Fresh(at) {
			t.Errorf("clock set by %s: a silent peer has not ended", set)
		}
	}
}
