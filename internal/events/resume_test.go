package events

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

func TestEngineThatIsTheSameStillKeepsItsBlocks(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.check("live", Synced, gpu(keyOf(1)))
		clears := w.x.clears
		w.mu.Lock()
		w.down = true
		w.mu.Unlock()
		w.cut()
		w.publish(encode(chain(0, 2)), 1)
		w.publish(encode(removed(1)), 1)
		w.check("away", Disconnected, gpu(keyOf(1)))
		w.mu.Lock()
		w.down = false
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.check("back", Synced, gpu(keyOf(2)))
		if w.x.clears != clears || w.stats().Resumes.Load() != 1 {
			t.Errorf("cleared %d times, resumed %d times", w.x.clears-clears, w.stats().Resumes.Load())
		}
	})
}

func TestEngineThatHasOvertakenItsFormerSelfIsAnother(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.publish(encode(chain(0, 2)), 1)
		w.check("live", Synced, gpu(keyOf(1), keyOf(2)))
		w.restart()
		for i := range kvevent.Hash(5) { // further than before
			w.publish(encode(chain(0, 10+i)), 0)
		}
		w.cut()
		time.Sleep(time.Minute)
		w.check("another life", Synced, gpu(keyOf(10), keyOf(11), keyOf(12), keyOf(13), keyOf(14)))
	})
}

// The end of a connection can be noticed late: a replay meanwhile is from another life already, and must not be mixed with
// the present blocks, nor with messages still on the way.
func TestAReplayByAnotherLifeIsNoticedBeforeTheConnectionsEnd(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.publish(encode(chain(0, 2)), 1)
		w.check("live", Synced, gpu(keyOf(1), keyOf(2)))
		w.restart()
		var keys []kvblock.Key
		for i := range kvevent.Hash(5) { // further than before
			w.publish(encode(chain(0, 10+i)), 0)
			keys = append(keys, keyOf(10+i))
		}
		w.mu.Lock()
		w.deliver(5, encode(chain(0, 3))) // of the life before, after a gap
		w.mu.Unlock()
		w.check("another life", Synced, gpu(keys...))
		w.mu.Lock()
		w.deliver(9, encode(chain(0, 4)))
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.check("what the life before has left", Synced, gpu(keys...))
		w.mu.Lock()
		w.replayFails = func(int) (int, bool) { return 0, true }
		w.deliver(9, encode(chain(0, 4)))
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.check("while replays fail", Degraded, gpu(keys...))
		w.mu.Lock()
		w.replayFails = nil
		w.mu.Unlock()
		settle()
		w.check("told again", Synced, gpu(keys...))
		w.publish(encode(chain(0, 20)), 1)
		w.check("which goes on", Synced, gpu(append(keys, keyOf(20))...))
		if got := w.stats().Resyncs[FellBack].Load(); got != 1 {
			t.Errorf("%d new lives, want 1", got)
		}
	})
}

// A history that begins after the batch applied last does not show which life it is of. The message with which the gap was
// noticed does.
func TestALaterHistoryShowsItsLifeByTheMessageThatCame(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.mu.Lock()
		w.keep = 2
		w.mu.Unlock()
		w.publish(encode(chain(0, 1)), 1)
		w.check("live", Synced, gpu(keyOf(1)))
		w.publish(encode(chain(0, 2)), 0)
		w.publish(encode(chain(0, 3)), 0)
		w.publish(encode(chain(0, 4)), 1)
		w.check("the same life", Unverified, gpu(keyOf(3), keyOf(4)))
		if got := w.stats().Resyncs[FellBack].Load(); got != 0 {
			t.Errorf("%d new lives, want none", got)
		}
		w.restart() // the connection's end is not noticed
		for i := range kvevent.Hash(9) {
			w.publish(encode(chain(0, 10+i)), 0)
		}
		w.mu.Lock()
		w.deliver(8, encode(chain(0, 5))) // of the life before, after a gap
		w.mu.Unlock()
		w.check("another life", Unverified, gpu(keyOf(17), keyOf(18)))
		w.mu.Lock()
		w.deliver(9, encode(chain(0, 6)))
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.check("what the life before has left", Unverified, gpu(keyOf(17), keyOf(18)))
		if got := w.stats().Resyncs[FellBack].Load(); got != 1 {
			t.Errorf("%d new lives, want 1", got)
		}
		w.publish(encode(chain(0, 19)), 1)
		w.check("which goes on", Unverified, gpu(keyOf(17), keyOf(18), keyOf(19)))
		asked := w.stats().Replays.Load()
		w.publish(encode(chain(0, 20)), 1)
		w.check("over the same connection", Unverified, gpu(keyOf(17), keyOf(18), keyOf(19), keyOf(20)))
		if got := w.stats().Replays.Load() - asked; got != 0 {
			t.Errorf("%d replays for a message of the life that is followed", got)
		}
	})
}

// A replay of everything that ends before what was applied is another life's, even if the engine ended only after it had
// answered the question for the batch applied last: what the connection still brings is not mixed with it.
func TestAShorterHistoryIsAnotherLifes(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		for i := range kvevent.Hash(5) {
			w.publish(encode(chain(0, 1+i)), 1)
		}
		w.check("live", Synced, gpu(keyOf(1), keyOf(2), keyOf(3), keyOf(4), keyOf(5)))
		w.mu.Lock()
		w.replaying = func(int) { // with the answer
			w.mu.Lock()
			w.replaying = nil
			w.mu.Unlock()
			w.restart()
			w.publish(encode(chain(0, 10)), 0)
		}
		w.mu.Unlock()
		for _, r := range w.m.streams["p"] {
			overflow(r)
		}
		w.check("another life", Synced, gpu(keyOf(10)))
		for _, seq := range []uint64{9, 1} { // far ahead, and just where this life goes on
			w.mu.Lock()
			w.deliver(seq, encode(chain(0, 7)))
			w.mu.Unlock()
			time.Sleep(time.Second)
			w.check("what the life before has left", Synced, gpu(keyOf(10)))
		}
		w.publish(encode(chain(0, 11)), 1)
		w.check("which goes on", Synced, gpu(keyOf(10), keyOf(11)))
		if got := w.stats().Resyncs[FellBack].Load(); got != 1 {
			t.Errorf("%d new lives, want 1", got)
		}
	})
}

// While the engine does not answer which life it is in, nothing is replayed: it would be applied in the wrong life. Once it
// answers, the other life is followed, and its batches arrive after a Begin that announces it.
func TestNothingIsReplayedWhileTheLifeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := newFakeEngine(), &log{}
		feed := testFeed(nil)
		feed.Writer, feed.Sink = nil, l
		m := New(testConfig(e))
		defer m.Close()
		m.Set("p", []Feed{feed})
		synctest.Wait()
		e.publish(encode(chain(0, 1)), 1)
		e.publish(encode(chain(0, 2)), 1)
		l.take()
		e.restart()
		for i := range kvevent.Hash(5) { // further than before
			e.publish(encode(chain(0, 10+i)), 0)
		}
		e.mu.Lock()
		e.deaf = func(from uint64) bool { return from > 0 } // only a replay of everything would succeed
		e.mu.Unlock()
		overflow(m.streams["p"][feed.Endpoint.Epoch()])
		time.Sleep(time.Minute)
		if lines := l.take(); len(lines) != 0 || only(t, m).State != Degraded {
			t.Errorf("while the life is unknown: %q, %v", lines, only(t, m).State)
		}
		e.mu.Lock()
		e.deaf = nil
		e.mu.Unlock()
		settle()
		if lines := l.take(); len(lines) != 6 || lines[0] != "begin false" || only(t, m).State != Synced {
			t.Errorf("once it is known: %q, %v", lines, only(t, m).State)
		}
	})
}

func TestAResyncByAnotherLifeIsANewLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := newFakeEngine(), &log{}
		feed := testFeed(nil)
		feed.Writer, feed.Sink = nil, l
		m := New(testConfig(e))
		defer m.Close()
		m.Set("p", []Feed{feed})
		synctest.Wait()
		e.publish(encode(chain(0, 1)), 1)
		e.publish(encode(chain(0, 2)), 1)
		l.take()
		for _, lives := range []int{1, 5} { // it has not published so many, or has overtaken itself
			e.restart()
			for i := range lives {
				e.publish(encode(chain(0, kvevent.Hash(10+i))), 0)
			}
			overflow(m.streams["p"][feed.Endpoint.Epoch()])
			if lines := l.take(); len(lines) != 1+lives || lines[0] != "begin false" {
				t.Errorf("after %d batches of another life: %q", lives, lines)
			}
		}
	})
}

func TestMessagesLostLastAreFoundByAsking(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 0)
		time.Sleep(DefaultMinQuiet)
		w.check("the very first", Synced, gpu(keyOf(1)))
		w.publish(encode(chain(0, 2)), 1)
		w.publish(encode(chain(0, 3)), 0)
		w.publish(encode(chain(0, 4)), 0)
		w.check("lost", Synced, gpu(keyOf(1), keyOf(2)))
		time.Sleep(2 * DefaultMinQuiet)
		w.check("found", Synced, gpu(keyOf(1), keyOf(2), keyOf(3), keyOf(4)))
		if got := w.stats().TailLosses.Load(); got != 3 {
			t.Errorf("%d tail losses, want 3", got)
		}
		before := w.asked()
		time.Sleep(10 * DefaultMaxQuiet)
		if n := w.asked() - before; n > 16 {
			t.Errorf("%d questions while nothing happens", n)
		}
	})
}

// overflow makes a stream replay everything, as if its queue had overflowed.
func overflow(r *run) {
	r.queue.mu.Lock()
	r.queue.overflow(arrival{})
	r.queue.mu.Unlock()
	r.queue.signal()
}

func TestSinksGoOnWhereTheyWere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := newFakeEngine(), &log{}
		feed := testFeed(nil)
		feed.Writer, feed.Sink = nil, l
		want := func(what string, lines ...string) {
			t.Helper()
			if diff := cmp.Diff(lines, l.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		run := func(f Feed, during func()) {
			m := New(testConfig(e))
			m.Set("p", []Feed{f})
			synctest.Wait()
			during()
			m.Close()
		}
		run(feed, func() {
			e.publish(encode(chain(0, 1)), 1)
			e.publish(encode(chain(0, 2)), 1)
			want("from the beginning", "begin false", "1 [1]", "1 [2]")
			if l.at.Next != 2 || !l.at.Known || l.at.Proof == 0 {
				t.Errorf("position %+v", l.at)
			}
		})
		e.publish(encode(removed(1)), 0)
		feed.Resume = l.at
		run(feed, func() {
			want("the same life", "2 [1]")
			e.publish(encode(chain(0, 3)), 1)
			want("live", "1 [3]")
		})
		feed.Resume = l.at
		e.restart()
		for range 6 {
			e.publish(encode(chain(0, 7)), 0)
		}
		run(feed, func() {
			want("another life", append([]string{"begin false"}, slices.Repeat([]string{"1 [7]"}, 6)...)...)
		})
		if last := l.states[len(l.states)-1]; last != Synced {
			t.Errorf("states %v", l.states)
		}
	})
}

// A batch that arrives spoilt makes the endpoint degraded, and is replayed. One that the engine itself has spoilt stays
// so, and is not asked for over and over.
func TestABatchThatCannotBeReadIsReplayed(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		good := encode(chain(0, 2))
		w.mu.Lock()
		w.history = append(w.history, good)
		w.next++
		w.deliver(w.next-1, good[:len(good)/2])
		w.mu.Unlock()
		w.publish(encode(chain(0, 3)), 1)
		w.check("spoilt on the way", Degraded, gpu(keyOf(1), keyOf(3)))
		time.Sleep(DefaultMinResync)
		w.check("replayed", Synced, gpu(keyOf(1), keyOf(2), keyOf(3)))

		w.publish([]byte("garbage"), 1)
		w.publish(encode(chain(0, 4)), 1)
		time.Sleep(DefaultMinResync)
		w.check("spoilt by the engine", Degraded, gpu(keyOf(1), keyOf(2), keyOf(3), keyOf(4)))
		resyncs := w.stats().Resyncs[Retry].Load()
		settle()
		if got := w.stats().Resyncs[Retry].Load(); got != resyncs {
			t.Errorf("replayed %d times more", got-resyncs)
		}
	})
}

// A process that ends in the middle of a replay leaves a part of what the engine holds. A process that continues from there
// must not take it for all.
func TestNobodyGoesOnFromTheMiddleOfAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine()
		for h := range kvevent.Hash(4) {
			e.publish(encode(chain(0, 1+h)), 1)
		}
		var middle []Position
		feed := testFeed(nil)
		feed.Writer = nil
		feed.Sink = sinkFunc(func(at Position) { middle = append(middle, at) })
		m := New(testConfig(e))
		m.Set("p", []Feed{feed})
		synctest.Wait()
		e.mu.Lock()
		e.keep, e.history, e.base = 2, e.history[2:], 2
		e.mu.Unlock()
		middle = nil
		e.publish(encode(chain(0, 5)), 0)
		e.publish(encode(chain(0, 6)), 0)
		e.publish(encode(chain(0, 7)), 1) // a gap that no history fills any more
		synctest.Wait()
		m.Close()
		if len(middle) != 2 {
			t.Fatalf("%d batches replayed, want 2", len(middle))
		}
		l := &log{}
		feed.Sink, feed.Resume = l, middle[0]
		m = New(testConfig(e))
		m.Set("p", []Feed{feed})
		synctest.Wait()
		defer m.Close()
		if diff := cmp.Diff([]string{"begin false", "1 [6]", "1 [7]"}, l.take()); diff != "" {
			t.Errorf("from the middle of a replay (-want +got):\n%s", diff)
		}
		if got := only(t, m).State; got != Unverified {
			t.Errorf("state %v, want Unverified", got)
		}
	})
}

// A replay of everything can end at the position before it. The sink is notified all the same, because it waits for that.
func TestTheEndOfAReplayIsAlwaysTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine()
		l := &log{}
		feed := testFeed(nil)
		feed.Writer, feed.Sink = nil, l
		m := New(testConfig(e))
		defer m.Close()
		m.Set("p", []Feed{feed})
		synctest.Wait()
		e.publish(encode(chain(0, 1)), 1)
		synctest.Wait()
		l.marks = 0
		overflow(m.streams["p"][feed.Endpoint.Epoch()])
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if last := l.lines[len(l.lines)-2]; last != "begin true" || l.marks != 1 {
			t.Errorf("told %q and where things stand %d times, want once", l.lines, l.marks)
		}
	})
}

// sinkFunc receives positions.
type sinkFunc func(at Position)

func (f sinkFunc) Revert() bool                        { return false }
func (f sinkFunc) Begin(bool)                          {}
func (f sinkFunc) Apply(_ *kvevent.Batch, at Position) { f(at) }
func (f sinkFunc) Mark(Position, State)                {}

// What an earlier process could not verify is verified as soon as the history reaches back, and kept while it does not.
func TestUnverifiedBlocksOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := newFakeEngine(), &log{}
		e.publish(encode(chain(0, 1)), 1)
		last := encode(chain(0, 2))
		e.publish(last, 1)
		feed := testFeed(nil)
		feed.Writer, feed.Sink = nil, l
		feed.Resume = Position{Next: 2, Known: true, Proof: proofOf(last), State: Unverified}
		run := func() State {
			m := New(testConfig(e))
			defer m.Close()
			m.Set("p", []Feed{feed})
			settle()
			return only(t, m).State
		}
		if got, lines := run(), l.take(); got != Synced || !slices.Equal(lines, []string{"begin true", "1 [1]", "1 [2]"}) {
			t.Errorf("state %v after %q, want all replayed", got, lines)
		}
		e.history, e.base = e.history[1:], 1
		if got, lines := run(), l.take(); got != Unverified || len(lines) != 0 {
			t.Errorf("state %v after %q, want what was held to stay", got, lines)
		}
	})
}

// An engine that was restarted behind a connection that has not been lost yet, and that has published more than ever
// before, is another one: its batches in a gap are not the missed ones.
func TestAGapIsNotFilledByAnotherLife(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.publish(encode(chain(0, 2)), 1)
		w.check("live", Synced, gpu(keyOf(1), keyOf(2)))
		w.restart()
		for i := range kvevent.Hash(5) {
			w.publish(encode(chain(0, 10+i)), int(i)/4) // only the last one arrives
		}
		w.check("another life", Synced, gpu(keyOf(10), keyOf(11), keyOf(12), keyOf(13), keyOf(14)))
		if got := w.stats().Resyncs[FellBack].Load(); got != 1 {
			t.Errorf("%d lives begun", got)
		}
		w.publish(encode(chain(0, 20)), 1)
		w.check("live again", Synced, gpu(keyOf(10), keyOf(11), keyOf(12), keyOf(13), keyOf(14), keyOf(20)))
	})
}
