package events

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// watchReplays notes what readers see before each reply of a replay.
func (w *world) watchReplays() *[]map[place]int {
	var seen []map[place]int
	w.mu.Lock()
	w.replaying = func(int) { seen = append(seen, w.x.snapshot()) }
	w.mu.Unlock()
	return &seen
}

func TestReadersSeeWhatWasHeldWhileEverythingIsReplayed(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.mu.Lock()
		w.keep = 3
		w.mu.Unlock()
		w.publish(encode(chain(0, 1)), 1)
		w.publish(encode(chain(0, 2)), 1)
		w.check("live", Synced, gpu(keyOf(1), keyOf(2)))
		seen := w.watchReplays()
		w.publish(encode(removed(1)), 0)
		w.publish(encode(chain(0, 3)), 0)
		w.publish(encode(chain(0, 4)), 0)
		w.publish(encode(chain(0, 5)), 1) // the removal is not kept any more
		w.check("replayed", Unverified, gpu(keyOf(3), keyOf(4), keyOf(5)))
		for i, held := range *seen {
			if diff := cmp.Diff(gpu(keyOf(1), keyOf(2)), held); diff != "" {
				t.Errorf("at reply %d (-want +got):\n%s", i, diff)
			}
		}
		if w.x.shadows != 1 || w.x.commits != 1 || len(*seen) < 3 {
			t.Errorf("%d shadows, %d commits, %d replies", w.x.shadows, w.x.commits, len(*seen))
		}
		w.publish(encode(removed(3)), 1)
		w.check("live afterwards", Unverified, gpu(keyOf(4), keyOf(5)))
	})
}

func TestAReplayThatBreaksOffChangesNothing(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.publish(encode(chain(0, 2)), 1)
		w.publish(encode(removed(9)), 0)
		w.check("live", Synced, gpu(keyOf(1), keyOf(2)))
		broken := true
		w.mu.Lock()
		before := w.replays
		w.replayFails = func(n int) (int, bool) {
			if n <= before+DefaultReplayAttempts {
				return 0, true // the gap is not filled
			}
			return 2, broken // the replay from the start is aborted
		}
		w.mu.Unlock()
		w.publish(encode(chain(9, 3)), 0)
		w.publish(encode(chain(0, 4)), 1)
		time.Sleep(time.Minute)
		for seq := range uint64(2) {
			w.publish(encode(chain(0, 5)), 1+int(seq))
		}
		synctest.Wait()
		if state := only(t, w.m).State; state != Degraded {
			t.Errorf("after a failed replay: state %v", state)
		}
		got := w.x.snapshot()
		delete(got, place{Key: keyOf(5)})
		if diff := cmp.Diff(gpu(keyOf(1), keyOf(2), keyOf(4)), got); diff != "" {
			t.Errorf("after a failed replay (-want +got):\n%s", diff)
		}
		if w.x.commits != 0 || w.x.shadows == 0 {
			t.Errorf("%d shadows, %d commits", w.x.shadows, w.x.commits)
		}
		w.mu.Lock()
		broken = false
		w.mu.Unlock()
		settle()
		w.check("at last", Synced, gpu(keyOf(1), keyOf(2), keyOf(4), keyOf(5)))
		if got := w.stats().Orphans.Load(); got != 1 {
			t.Errorf("%d orphans, want the one of the new life", got)
		}
	})
}

// A new life of the engine is no resync: what the old one held goes at once.
func TestAnotherLifeBeginsWithNothingAtOnce(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.check("live", Synced, gpu(keyOf(1)))
		w.restart()
		w.publish(encode(chain(0, 2)), 0)
		w.publish(encode(chain(0, 3)), 0)
		w.mu.Lock()
		seen := []int{}
		w.replaying = func(n int) {
			seen = append(seen, len(w.x.snapshot()))
		}
		w.mu.Unlock()
		w.cut()
		time.Sleep(time.Minute)
		w.check("another life", Synced, gpu(keyOf(2), keyOf(3)))
		if w.x.shadows != 0 || !slices.Equal(seen[:3], []int{1, 0, 1}) { // the first one is of the question whether it is the same life

			t.Errorf("%d shadows; blocks held at replies: %v", w.x.shadows, seen)
		}
	})
}

func TestClearedWhileEverythingIsReplayed(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.mu.Lock()
		w.keep = 3
		w.mu.Unlock()
		seen := w.watchReplays()
		w.publish(encode(chain(0, 2)), 0)
		w.publish(encode(chain(0, 3)), 0)
		w.publish(encode(kvevent.Event{Kind: kvevent.Cleared}), 0)
		w.publish(encode(chain(0, 4)), 0)
		w.publish(encode(chain(0, 5)), 1)
		w.check("replayed", Synced, gpu(keyOf(4), keyOf(5))) // what is missing before does not matter
		for i, held := range *seen {
			if diff := cmp.Diff(gpu(keyOf(1)), held); diff != "" {
				t.Errorf("at reply %d (-want +got):\n%s", i, diff)
			}
		}
	})
}
