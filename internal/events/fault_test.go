package events

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// poisoned is a decoder with a fault that one payload shows.
type poisoned struct{ jsonDecoder }

func (d poisoned) Decode(payload []byte, into *kvevent.Batch) error {
	if string(payload) == "poison" {
		panic("a fault of the decoder")
	}
	return d.jsonDecoder.Decode(payload, into)
}

// lines are those of a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) write(_, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, text)
}

func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// TestAPanicConcernsItsBatchOnly: a batch that a decoder panics on is skipped and named, and the stream continues,
// degraded. A repeated panic is logged once a minute.
func TestAPanicConcernsItsBatchOnly(t *testing.T) {
	for name, replay := range map[string]bool{"with replays": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			var log lines
			inWorld(t, replay, func(c *Config) {
				c.NewDecoder = func(string) Decoder { return poisoned{} }
				c.Log = funcr.New(log.write, funcr.Options{})
			}, func(w *world) {
				synctest.Wait()
				w.publish(encode(chain(0, 1)), 1)
				synctest.Wait()
				for range 20 {
					w.publish([]byte("poison"), 1)
				}
				synctest.Wait()
				if n := len(log.with("panicked")); n != 1 {
					t.Errorf("%d lines of 20 panics:\n%s", n, strings.Join(log.all, "\n"))
				}
				line := strings.Join(log.with("panicked"), "")
				for _, want := range []string{`"pod/0"`, `"batch"=1`, `"bytes"=6`, `"checksum"=`, "a fault of the decoder", "poisoned"} {
					if !strings.Contains(line, want) {
						t.Errorf("the log has no %s: %s", want, line)
					}
				}
				w.publish(encode(chain(0, 2)), 1)
				w.check("the next batch", Degraded, gpu(keyOf(1), keyOf(2)))
				if n := w.stats().Panics.Load(); n < 20 {
					t.Errorf("%d panics counted", n)
				}
				time.Sleep(time.Hour)
				if n := w.asked(); n > 200 {
					t.Errorf("%d replays in an hour", n)
				}
				w.restart()
				w.cut()
				time.Sleep(time.Minute)
				w.publish(encode(chain(0, 4)), 1)
				w.check("another life", Synced, gpu(keyOf(4)))
			})
		})
	}
}

// TestAPanicLeavesOtherStreamsAlone: the streams of other endpoints stay complete and go on.
func TestAPanicLeavesOtherStreamsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		publishers := bySocket{"faulty:5557": newFakeEngine(), "sound:5557": newFakeEngine()}
		c := testConfig(publishers)
		c.NewDecoder = func(string) Decoder { return poisoned{} }
		m := New(c)
		defer m.Close()
		index := newFakeIndex()
		sound, faulty := testFeed(index), testFeed(newFakeIndex())
		sound.Endpoint.ID.Pod, sound.Endpoint.EventsAddress, sound.Endpoint.ReplayAddress = "sound", "sound:5557", "sound:5557"
		faulty.Endpoint.ID.Pod, faulty.Endpoint.EventsAddress, faulty.Endpoint.ReplayAddress = "faulty", "faulty:5557", "faulty:5557"
		m.Set("p", []Feed{faulty, sound})
		synctest.Wait()
		publishers["sound:5557"].publish(encode(chain(0, 1)), 1)
		for range 3 {
			publishers["faulty:5557"].publish([]byte("poison"), 1)
		}
		synctest.Wait()
		publishers["sound:5557"].publish(encode(chain(0, 2)), 1)
		settle()
		for _, s := range m.Status("p") {
			want, panics := Synced, s.Stats.Panics.Load() > 0
			if s.Endpoint.ID.Pod == "faulty" {
				want = Degraded
			}
			if s.State != want || panics != (want == Degraded) {
				t.Errorf("the stream of %s is %v, with panics: %v", s.Endpoint.ID.Pod, s.State, panics)
			}
		}
		if diff := cmp.Diff(gpu(keyOf(1), keyOf(2)), index.snapshot()); diff != "" {
			t.Errorf("blocks of the sound endpoint (-want +index):\n%s", diff)
		}
	})
}

// bySocket are publishers by the addresses of their sockets.
type bySocket map[string]*fakeEngine

func (b bySocket) Subscribe(ctx context.Context, addr string, up func(), each func([][]byte) error) error {
	return b[addr].Subscribe(ctx, addr, up, each)
}

func (b bySocket) Replay(ctx context.Context, addr string, from uint64, each func(uint64, []byte) error) error {
	return b[addr].Replay(ctx, addr, from, each)
}

// TestBlocksAreForgottenAfterAPanicInTheMiddleOfABatch: what a batch has changed before the panic is not certain. The blocks
// go at once, and are replayed.
func TestBlocksAreForgottenAfterAPanicInTheMiddleOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newFakeEngine(), newFakeIndex()
		m := New(testConfig(e))
		defer m.Close()
		f := testFeed(x)
		faulty := true
		f.OnStored = func(keys []kvblock.Key) {
			if faulty && keys[0] == keyOf(2) {
				faulty = false
				panic("a fault behind the index")
			}
		}
		m.Set("p", []Feed{f})
		synctest.Wait()
		e.publish(encode(chain(0, 1)), 1)
		e.publish(encode(chain(0, 2), chain(0, 3)), 1)
		synctest.Wait()
		if got := x.snapshot(); len(got) != 0 || only(t, m).State != Degraded {
			t.Errorf("after the panic %v is held, and the stream is %v", got, only(t, m).State)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := x.snapshot(); len(got) != 3 || only(t, m).State != Synced {
			t.Errorf("a minute later %v is held, and the stream is %v", got, only(t, m).State)
		}
	})
}

// TestAPanicOfAConnectionEndsIt: the stream connects again.
func TestAPanicOfAConnectionEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newFakeEngine(), newFakeIndex()
		m := New(testConfig(&faultySource{fakeEngine: e}))
		defer m.Close()
		m.Set("p", []Feed{testFeed(x)})
		e.publish(encode(chain(0, 1)), 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := only(t, m); s.State != Synced || s.Stats.Panics.Load() != 2 || len(x.snapshot()) != 1 {
			t.Errorf("%v with %d panics, %v held", s.State, s.Stats.Panics.Load(), x.snapshot())
		}
	})
}

// faultySource panics in its first connection and in its first replay.
type faultySource struct {
	*fakeEngine
	subscribed, replayed sync.Once
}

func (s *faultySource) Subscribe(ctx context.Context, addr string, up func(), each func([][]byte) error) error {
	s.subscribed.Do(func() { panic("a fault of the transport") })
	return s.fakeEngine.Subscribe(ctx, addr, up, each)
}

func (s *faultySource) Replay(ctx context.Context, addr string, from uint64, each func(uint64, []byte) error) error {
	s.replayed.Do(func() { panic("a fault of the transport") })
	return s.fakeEngine.Replay(ctx, addr, from, each)
}
