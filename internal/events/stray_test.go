package events

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// stray delivers a batch under a number that is not the engine's.
func (w *world) stray(seq uint64, payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliver(seq, payload)
}

// One number from far ahead, which any client might have sent, changes nothing but a counter.
func TestANumberFromFarAheadIsNoGap(t *testing.T) {
	for name, replay := range map[string]bool{"with a replay socket": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, replay, nil, func(w *world) {
				synctest.Wait()
				w.publish(encode(chain(0, 1)), 1)
				w.check("live", Synced, gpu(keyOf(1)))
				strays := []uint64{math.MaxUint64, math.MaxUint64 - 8, 1 << 63, 1<<32 + 2}
				for i, seq := range strays {
					w.stray(seq, encode(chain(0, 99)))
					w.check("a number from far ahead", Synced, gpu(keyOf(1)))
					if got := w.stats().Malformed.Load(); got != uint64(i)+1 {
						t.Errorf("%d malformed, want %d", got, i+1)
					}
				}
				w.publish(encode(chain(0, 2)), 1)
				w.check("the next real one", Synced, gpu(keyOf(1), keyOf(2)))
				if gaps, missing := w.stats().Gaps.Load(), w.stats().Missing.Load(); gaps != 0 || missing != 0 {
					t.Errorf("%d gaps with %d missing, want none", gaps, missing)
				}
			})
		})
	}
}

// An engine that goes on from far ahead is believed with its second message, and nothing absurd is counted.
func TestAnEngineThatCountsFromFarAheadIsFollowed(t *testing.T) {
	for name, tc := range map[string]struct {
		replay bool
		want   State
	}{"with a replay socket that has nothing": {true, Degraded}, "without one": {false, Unverified}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tc.replay, nil, func(w *world) {
				synctest.Wait()
				w.publish(encode(chain(0, 1)), 1)
				synctest.Wait()
				w.restart()
				w.stray(1<<40, encode(chain(0, 2)))
				w.stray(1<<40+1, encode(chain(0, 3)))
				w.stray(1<<40+2, encode(chain(0, 4)))
				time.Sleep(time.Second) // in the bubble: the replay socket is asked some times
				w.check("followed", tc.want, gpu(keyOf(3), keyOf(4)))
				if got := w.stats().Missing.Load(); got != 0 {
					t.Errorf("%d missing, want 0: the number is unknown", got)
				}
			})
		})
	}
}

// farReplay replays one batch and then one with a number from far ahead.
type farReplay struct{ Source }

func (farReplay) Replay(_ context.Context, _ string, _ uint64, each func(uint64, []byte) error) error {
	if err := each(0, encode(chain(0, 1))); err != nil {
		return err
	}
	return each(1<<50, encode(chain(0, 99)))
}

func TestAReplayWithANumberFromFarAheadHasFailed(t *testing.T) {
	far := func(c *Config) { c.Source = farReplay{c.Source} }
	inWorld(t, true, far, func(w *world) {
		w.check("what came before it", Unverified, gpu(keyOf(1)))
		if failures, missing := w.stats().ReplayFailures.Load(), w.stats().Missing.Load(); failures == 0 || missing != 0 {
			t.Errorf("%d failures and %d missing, want some and 0", failures, missing)
		}
	})
}
