package events

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// Every bubble below fails if a goroutine is left after Close.

func TestSetKeepsWhatStaysAndStopsWhatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine()
		m := New(testConfig(e))
		defer m.Close()
		feed := func(pod, address string) Feed {
			f := testFeed(newFakeIndex())
			f.Endpoint = endpoint.Endpoint{ID: endpoint.ID{Pod: pod}, EventsAddress: address}
			return f
		}
		dialed := func() []string {
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			out := slices.Sorted(slices.Values(e.dials))
			e.dials = nil
			return out
		}
		a, b, mute := feed("a", "a:1"), feed("b", "b:1"), feed("c", "")
		m.Set("p", []Feed{a, b, mute, a})
		if diff := cmp.Diff([]string{"a:1", "b:1"}, dialed()); diff != "" {
			t.Errorf("dialed at first (-want +got):\n%s", diff)
		}

		moved := feed("b", "b:2") // a new life of the pod
		m.Set("p", []Feed{a, moved})
		if diff := cmp.Diff([]string{"b:2"}, dialed()); diff != "" {
			t.Errorf("dialed after a move (-want +got):\n%s", diff)
		}
		old := b.Writer.(*fakeIndex)
		before := old.writes
		e.publish(encode(chain(0, 1)), 1)
		synctest.Wait()
		if old.writes != before {
			t.Error("a stopped stream wrote to the index")
		}
		for _, f := range []Feed{a, moved} {
			if diff := cmp.Diff(gpu(keyOf(1)), f.Writer.(*fakeIndex).snapshot()); diff != "" {
				t.Errorf("index of %s (-want +got):\n%s", f.Endpoint.EventsAddress, diff)
			}
		}

		for name, change := range map[string]func(f *Feed){
			"another writer":        func(f *Feed) { f.Writer = newFakeIndex() },
			"another model":         func(f *Feed) { f.Keys.Model = "n" },
			"another block size":    func(f *Feed) { f.Keys.BlockTokens = 8 },
			"another engine":        func(f *Feed) { f.Engine = "SGLang" },
			"another replay socket": func(f *Feed) { f.Endpoint.ReplayAddress = "a:2" },
		} {
			change(&a)
			m.Set("p", []Feed{a, moved})
			if diff := cmp.Diff([]string{"a:1"}, dialed()); diff != "" {
				t.Errorf("dialed for %s (-want +got):\n%s", name, diff)
			}
		}

		m.Set("q", []Feed{feed("x", "x:1")})
		if pools := slices.Sorted(slices.Values(m.Pools())); !slices.Equal(pools, []string{"p", "q"}) {
			t.Errorf("pools %v", pools)
		}
		m.Set("p", nil)
		dialed()
		if got := e.subscribers(); got != 1 {
			t.Errorf("%d subscribers after a pool went, want 1", got)
		}
		if n := len(m.Status("p")); n != 0 {
			t.Errorf("%d streams of a pool that went", n)
		}
		m.Close()
		if got := e.subscribers(); got != 0 {
			t.Errorf("%d subscribers after Close", got)
		}
	})
}

// However busy the engine is, and wherever the stream waits, Set and Close return, and nothing is written afterwards.
func TestStoppingDoesNotWaitForTheEngine(t *testing.T) {
	for name, prepare := range map[string]func(e *fakeEngine){
		"not reachable":    func(e *fakeEngine) { e.down = true },
		"replay that ails": func(e *fakeEngine) { e.replayFails = func(int) (int, bool) { return 0, true } },
		"busy":             func(*fakeEngine) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, x := newFakeEngine(), newFakeIndex()
				prepare(e)
				m := New(testConfig(e))
				m.Set("p", []Feed{testFeed(x)})
				time.Sleep(time.Second)
				for range 1000 {
					e.publish(encode(chain(0, 1)), 0)
					e.publish(encode(chain(0, 1)), 1)
				}
				began := time.Now()
				m.Close()
				if took := time.Since(began); took > 0 {
					t.Errorf("Close took %v", took)
				}
				writes := x.writes
				settle()
				if x.writes != writes {
					t.Error("written after Close")
				}
			})
		})
	}
}

// Holders of an index that has gone are never written to: the index ignores them, and streams are stopped besides.
func TestStreamWritesToItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, table := newFakeEngine(), kvindex.New()
		m := New(testConfig(e))
		defer m.Close()
		other, holder := table.Join(), table.Join()
		f := testFeed(nil)
		f.Writer = table.Writer(holder)
		m.Set("p", []Feed{f})
		synctest.Wait()
		e.publish(encode(chain(0, 1, 2)), 1)
		synctest.Wait()
		if table.Held(holder) != 2 || table.Held(other) != 0 {
			t.Errorf("holders have %d and %d blocks, want 2 and 0", table.Held(holder), table.Held(other))
		}
		m.Set("p", nil)
		table.Leave(holder)
		if _, held, _ := table.Size(); held != 0 {
			t.Errorf("%d blocks left", held)
		}
	})
}
