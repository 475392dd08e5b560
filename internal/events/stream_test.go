package events

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// settle lets the streams do all that they have to do, including what they have put off.
func settle() {
	time.Sleep(10 * time.Minute)
	synctest.Wait()
}

// With a replay socket that keeps everything, the index ends up as what the engine holds, whatever is lost, repeated,
// cut or restarted on the way.
func TestIndexEndsUpTrueUnderLossRepetitionAndRestart(t *testing.T) {
	for n := range uint64(40) {
		t.Run(fmt.Sprintf("seed %d", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testTruth(t, rand.New(rand.NewPCG(n, 1)), 0) })
		})
	}
}

// TestEveryChangeOfAStreamsStateIsReported: Changed is called after each change of State, so that its callers always end up
// with the last one. State also depends on the connection, and on whether the connection's replay has ended.
func TestEveryChangeOfAStreamsStateIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine()
		var stream atomic.Pointer[Stream]
		var reported atomic.Int32
		cfg := testConfig(e)
		cfg.Changed = func() {
			if s := stream.Load(); s != nil {
				reported.Store(int32(s.State()))
			}
		}
		m := New(cfg)
		defer m.Close()
		e.down = true
		feed := testFeed(newFakeIndex())
		m.Set("p", []Feed{feed})
		stream.Store(m.streams["p"][feed.Endpoint.Epoch()].Stream)
		check := func(when string, want State) {
			t.Helper()
			synctest.Wait()
			if now, last := only(t, m).State, State(reported.Load()); now != want || last != now {
				t.Errorf("%s the stream is %v (want %v), and was reported as %v", when, now, want, last)
			}
		}
		check("before the engine is there,", Disconnected)
		online := func(yes bool) {
			e.mu.Lock()
			e.down = !yes
			e.mu.Unlock()
			if !yes {
				e.cut()
			}
			time.Sleep(time.Minute)
		}
		for range 3 {
			online(true)
			check("with the engine,", Synced)
			e.publish(encode(), 0)
			e.publish(encode(), 1)
			check("after a gap that the replay fills,", Synced)
			online(false)
			check("without the engine,", Disconnected)
		}
	})
}

// TestADiscardedCacheMakesLostHistoryIrrelevant: a stream that began too late, or has a gap, is complete with the event that
// says that everything is gone, live or replayed.
func TestADiscardedCacheMakesLostHistoryIrrelevant(t *testing.T) {
	cleared := encode(kvevent.Event{Kind: kvevent.Cleared})
	part := encode(kvevent.Event{Kind: kvevent.Cleared, Medium: "CPU"})
	for name, tc := range map[string]struct {
		late, gap bool
		event     []byte
		want      State
	}{
		"began too late, live":             {late: true, event: cleared, want: Synced},
		"a gap, live":                      {gap: true, event: cleared, want: Synced},
		"only one tier is gone":            {late: true, event: part, want: Unverified},
		"began too late, without an event": {late: true, event: encode(), want: Unverified},
	} {
		for _, replayed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, replayed %v", name, replayed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e, x, w := newFakeEngine(), newFakeIndex(), newTruth(rand.New(rand.NewPCG(1, 7)))
					e.keep = 3
					follow := func() *Manager {
						m := New(testConfig(e))
						m.Set("p", []Feed{testFeed(x)})
						time.Sleep(time.Second)
						synctest.Wait()
						return m
					}
					if tc.late {
						for range 10 {
							e.publish(encode(w.store()), 1)
						}
					}
					var m *Manager
					if !replayed {
						m = follow()
					}
					if tc.gap {
						for range 10 {
							e.publish(encode(w.store()), 0)
						}
					}
					if tc.want == Synced {
						w.clear()
					}
					e.publish(tc.event, 1)
					e.publish(encode(w.store()), 1)
					if replayed {
						m = follow()
					}
					defer m.Close()
					synctest.Wait()
					if got := only(t, m).State; got != tc.want {
						t.Errorf("the stream is %v, want %v", got, tc.want)
					}
					if tc.want == Synced {
						if diff := cmp.Diff(w.places(), x.snapshot()); diff != "" {
							t.Errorf("index (-engine +index):\n%s", diff)
						}
					}
				})
			})
		}
	}
}

// With a replay socket that forgets, the index never ends up with blocks that the engine does not hold, and Synced
// still means equal.
func TestIndexNeverClaimsTooMuchWithAShortHistory(t *testing.T) {
	for n := range uint64(40) {
		t.Run(fmt.Sprintf("seed %d", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testTruth(t, rand.New(rand.NewPCG(n, 2)), 12) })
		})
	}
}

func testTruth(t *testing.T, rng *rand.Rand, keep int) {
	e, x, w := newFakeEngine(), newFakeIndex(), newTruth(rng)
	e.keep = keep
	fails := rand.New(rand.NewPCG(rng.Uint64(), 3)) // used by the stream's goroutine
	e.replayFails = func(int) (int, bool) { return fails.IntN(5), fails.IntN(5) == 0 }
	cfg := testConfig(e)
	cfg.QueueBytes = 1 << 20
	m := New(cfg)
	defer m.Close()
	m.Set("p", []Feed{testFeed(x)})
	for range 400 {
		switch n := rng.IntN(200); {
		case n < 30:
			e.publish(encode(w.act()...), 0) // lost
		case n < 36:
			e.publish(encode(w.act()...), 2)
		case n < 40:
			e.repeat(e.next - min(e.next, 1+rng.Uint64N(5)))
		case n < 44:
			e.cut()
		case n < 46:
			w.clear()
			e.restart()
			e.cut()
		case n < 48:
			// A restart that shows only in the numbers, which is only so when they are seen to fall.
			if synctest.Wait(); e.subscribers() == 1 && e.next > 2 {
				e.publish(encode(), 1)
				synctest.Wait()
				w.clear()
				e.restart()
				e.publish(encode(w.act()...), 1)
			}
		case n < 60:
			time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second))))
		case n < 62:
			e.mu.Lock()
			e.down = !e.down
			e.mu.Unlock()
		case n < 80:
			synctest.Wait()
		default:
			e.publish(encode(w.act()...), 1)
		}
	}
	e.mu.Lock()
	e.down, e.replayFails = false, nil
	e.mu.Unlock()
	settle()
	e.publish(encode(), 1) // shows what was lost at the end
	settle()

	status := only(t, m)
	want, got := w.places(), x.snapshot()
	switch {
	case status.State == Synced:
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("index (-engine +index):\n%s", diff)
		}
	case status.State == Unverified && keep > 0:
		for p, n := range got {
			if n > want[p] {
				t.Errorf("index claims %d of %v, the engine holds %d", n, p, want[p])
			}
		}
	default:
		t.Errorf("state %v in the end", status.State)
	}
	for _, wrong := range x.wrong {
		t.Error(wrong)
	}
}

func TestStatesWithAReplaySocket(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		w.check("an engine that has said nothing", Synced, gpu())
		w.publish(encode(chain(0, 1, 2)), 1)
		w.check("live", Synced, gpu(keyOf(1), keyOf(1, 2)))
		w.publish(encode(chain(2, 3)), 0)
		w.publish(encode(chain(3, 4)), 1)
		w.check("a gap that a replay fills", Synced, gpu(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3), keyOf(1, 2, 3, 4)))
		if got := w.stats().Gaps.Load(); got != 1 {
			t.Errorf("%d gaps, want 1", got)
		}

		w.mu.Lock()
		w.down = true
		w.mu.Unlock()
		w.cut()
		w.check("a connection lost keeps its blocks", Disconnected, gpu(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3), keyOf(1, 2, 3, 4)))
		w.restart()
		w.publish(encode(chain(0, 9)), 1)
		w.mu.Lock()
		w.down = false
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.check("a new connection is a new life", Synced, gpu(keyOf(9)))
	})
}

func TestHistoryThatDoesNotReachBack(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.mu.Lock()
		w.keep = 2
		w.mu.Unlock()
		w.publish(encode(chain(0, 1)), 1)
		w.publish(encode(chain(0, 2)), 1)
		w.check("live", Synced, gpu(keyOf(1), keyOf(2)))
		w.publish(encode(removed(1)), 0)
		w.publish(encode(chain(0, 3)), 0)
		w.publish(encode(chain(0, 4)), 1)
		w.check("a gap whose beginning is gone", Unverified, gpu(keyOf(3), keyOf(4)))
		if got := w.stats().Resyncs[ShortGap].Load(); got != 1 {
			t.Errorf("%d resyncs, want 1", got)
		}
		w.cut()
		time.Sleep(time.Minute)
		w.check("a new connection", Unverified, gpu(keyOf(3), keyOf(4)))
	})
}

// A router drops replies that do not fit its queue, and says nothing.
func TestAReplayWithAHoleIsAskedForAgain(t *testing.T) {
	for _, lossy := range []int{1, 3, math.MaxInt} { // so many replays
		published := func(c *Config) { // before anybody listens
			e := c.Source.(*fakeEngine)
			e.drops = func(n int, seq uint64) bool { return seq == 1 && n <= lossy }
			e.publish(encode(chain(0, 1)), 0)
			e.publish(encode(removed(1)), 0)
			e.publish(encode(chain(0, 2)), 0)
		}
		inWorld(t, true, published, func(w *world) {
			w.check("a hole", Degraded, gpu(keyOf(1), keyOf(2)))
			settle()
			if lossy == math.MaxInt {
				w.check("a hole every time", Degraded, gpu(keyOf(1), keyOf(2)))
				return
			}
			w.check("no hole any more", Synced, gpu(keyOf(2)))
		})
	}
}

func TestStatesWithoutAReplaySocket(t *testing.T) {
	inWorld(t, false, nil, func(w *world) {
		w.check("connected", Unverified, gpu())
		w.publish(encode(chain(0, 1)), 1)
		w.check("the very first batch was seen", Synced, gpu(keyOf(1)))
		w.publish(encode(chain(0, 2)), 0)
		w.publish(encode(chain(0, 3)), 1)
		w.check("a gap", Degraded, gpu(keyOf(1), keyOf(3)))
		w.cut()
		time.Sleep(time.Minute)
		w.check("a new connection", Unverified, gpu())
		w.publish(encode(chain(0, 4)), 1)
		w.check("from the middle", Unverified, gpu(keyOf(4)))
		w.restart()
		w.publish(encode(chain(0, 5)), 1)
		w.check("numbers that fall back", Synced, gpu(keyOf(5)))
		if got := w.stats().Resyncs[FellBack].Load(); got != 1 {
			t.Errorf("%d new lives by number, want 1", got)
		}
		if w.replays != 0 {
			t.Errorf("%d replays without a socket", w.replays)
		}
	})
}

func TestWhatCannotBeReadIsCountedAndPassedOver(t *testing.T) {
	inWorld(t, false, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.mu.Lock()
		w.raw()
		w.raw([]byte("alone"))
		w.raw([]byte("topic"), []byte("1234567"), encode(chain(0, 9)))
		w.mu.Unlock()
		w.check("messages without a number", Synced, gpu(keyOf(1)))
		if got := w.stats().Malformed.Load(); got != 3 {
			t.Errorf("%d malformed, want 3", got)
		}
		w.publish([]byte("garbage"), 1)
		w.publish(encode(chain(0, 2)), 1)
		w.check("a batch that is none", Degraded, gpu(keyOf(1), keyOf(2)))
		if got := w.stats().DecodeErrors.Load(); got != 1 {
			t.Errorf("%d decode errors, want 1", got)
		}
	})
}

// Hashes that cover the tokens after a block are reported to the feed, with each batch that has one.
func TestLookaheadIsReported(t *testing.T) {
	inWorld(t, false, nil, func(w *world) {
		f, n := testFeed(w.x), 0
		f.Endpoint.ReplayAddress, f.OnLookahead = "", func() { n++ }
		w.m.Set("p", nil)
		w.m.Set("p", []Feed{f})
		synctest.Wait()
		for i, step := range []struct {
			event kvevent.Event
			want  int
		}{
			{chain(0, 1), 0},
			{with(chain(1, 2), func(e *kvevent.Event) { e.Lookahead = true }), 1},
			{with(removed(2), func(e *kvevent.Event) { e.Lookahead = true }), 1},
			{chain(0, 3), 1},
		} {
			w.publish(encode(step.event), 1)
			if synctest.Wait(); n != step.want {
				t.Errorf("step %d: reported %d times, not %d", i, n, step.want)
			}
		}
	})
}

// An event of a known kind that cannot be decoded reports a change that is lost: like the rest of its batch, the state of
// the endpoint is not verified.
func TestAnEventThatCannotBeReadIsNotVouchedFor(t *testing.T) {
	for _, replay := range []bool{false, true} {
		inWorld(t, replay, nil, func(w *world) {
			synctest.Wait()
			w.publish(encode(chain(0, 1)), 1)
			w.check("all was read", Synced, gpu(keyOf(1)))
			part, err := json.Marshal(kvevent.Batch{Time: float64(clock.Add(1)), Rank: -1, Skipped: 1, Unread: 1, Events: []kvevent.Event{chain(0, 2)}})
			if err != nil {
				t.Fatal(err)
			}
			w.publish(part, 1)
			w.check("one event was not", Degraded, gpu(keyOf(1), keyOf(2)))
			if !w.stats().Unreadable.Load() || w.stats().UnknownLayouts.Load() != 1 {
				t.Errorf("unreadable %v, %d unknown layouts, want true and 1", w.stats().Unreadable.Load(), w.stats().UnknownLayouts.Load())
			}
			w.publish(encode(chain(0, 3)), 1)
			w.check("the next were", Degraded, gpu(keyOf(1), keyOf(2), keyOf(3)))
			if w.stats().Unreadable.Load() {
				t.Error("still unreadable")
			}
			time.Sleep(time.Hour)
			w.check("replays tell the same", Degraded, gpu(keyOf(1), keyOf(2), keyOf(3)))
			if n := w.asked(); n > 200 {
				t.Errorf("%d replays in an hour", n)
			}
			w.restart()
			w.publish(encode(chain(0, 4)), 1)
			w.check("another life", Synced, gpu(keyOf(4)))
		})
	}
}

func TestConnectingAgainBacksOff(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.mu.Lock()
		w.down = true
		w.dials = nil
		w.mu.Unlock()
		w.cut()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		// At most one dial in 2.5 s and at least one in 5 s, after the first few.
		if n := len(w.dials); n < 10*60/5 || n > 10*60/2+10 {
			t.Errorf("%d dials in 10 minutes", n)
		}
		w.mu.Lock()
		w.down = false
		w.mu.Unlock()
		time.Sleep(2 * DefaultMaxBackoff)
		synctest.Wait()
		w.mu.Lock()
		w.dials = nil
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.cut()
		time.Sleep(DefaultMinBackoff)
		synctest.Wait()
		if len(w.dials) != 1 {
			t.Errorf("%d dials within the shortest pause after a good connection, want 1", len(w.dials))
		}
	})
}

func TestStoredKeysAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newFakeEngine(), newFakeIndex()
		m := New(testConfig(e))
		defer m.Close()
		var got []kvblock.Key
		f := testFeed(x)
		f.OnStored = func(keys []kvblock.Key) {
			for _, k := range keys {
				if k != keyOf(7) && x.snapshot()[place{kvblock.GPU, k}] == 0 {
					t.Errorf("%v reported before it was in the index", k)
				}
			}
			got = append(got, keys...)
		}
		m.Set("p", []Feed{f})
		synctest.Wait()
		e.publish(encode(chain(2, 3)), 1)             // waits for its parent
		e.publish(encode(chain(0, 7), removed(7)), 1) // computed and gone in one step
		e.publish(encode(chain(0, 1, 2)), 1)
		synctest.Wait()
		want := []kvblock.Key{keyOf(7), keyOf(1), keyOf(1, 2), keyOf(1, 2, 3)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
	})
}
