package events

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestReplaySocketThatFails(t *testing.T) {
	failing := true
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.mu.Lock()
		w.replayFails = func(int) (int, bool) { return 0, failing }
		w.mu.Unlock()
		w.publish(encode(chain(0, 1)), 1)
		w.publish(encode(chain(0, 2)), 0)
		w.publish(encode(chain(0, 3)), 1)
		time.Sleep(time.Second)
		w.check("a gap that cannot be filled", Degraded, gpu(keyOf(1), keyOf(3)))
		w.publish(encode(chain(0, 4)), 1)
		w.check("live events are applied all the same", Degraded, gpu(keyOf(1), keyOf(3), keyOf(4)))
		if got := w.stats().Missing.Load(); got != 1 {
			t.Errorf("%d missing, want 1", got)
		}
		time.Sleep(10 * time.Minute)
		w.check("blocks stay while the replay fails", Degraded, gpu(keyOf(1), keyOf(3), keyOf(4)))
		w.mu.Lock()
		failing = false
		w.mu.Unlock()
		time.Sleep(2 * DefaultMaxResync)
		w.check("healed without a further event", Synced, gpu(keyOf(1), keyOf(2), keyOf(3), keyOf(4)))
		resyncs := w.stats().Resyncs[Retry].Load()
		settle()
		if w.stats().Resyncs[Retry].Load() != resyncs {
			t.Error("a healed stream replays on")
		}
	})
}

func TestReplaySocketThatFailsFromTheStart(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.mu.Lock()
		before := w.replays
		w.replayFails = func(n int) (int, bool) { return 0, n <= before+2 }
		w.mu.Unlock()
		w.cut()
		time.Sleep(time.Second)
		w.check("nothing replayed", Unverified, gpu())
		w.publish(encode(chain(0, 2)), 1)
		w.check("live", Unverified, gpu(keyOf(2)))
		settle()
		w.check("replayed later", Synced, gpu(keyOf(1), keyOf(2)))
	})
}

// An engine that has said nothing has nothing to replay, also where the first replay has failed.
func TestReplaySocketThatFailsBeforeTheEngineHasSpoken(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.mu.Lock()
		before := w.replays
		w.replayFails = func(n int) (int, bool) { return 0, n <= before+2 }
		w.mu.Unlock()
		w.cut()
		time.Sleep(time.Second)
		w.check("not replayed", Unverified, gpu())
		settle()
		w.check("replayed", Synced, gpu())
		w.publish(encode(chain(0, 1)), 1)
		w.check("live", Synced, gpu(keyOf(1)))
	})
}
