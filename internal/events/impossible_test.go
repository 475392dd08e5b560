package events

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// TestMoreBlocksThanTheEngineHasAreNotBelieved: an engine that announces more than twice its own number loses those on its GPU, and only
// those. So it never has more in the index, however many it announces.
func TestMoreBlocksThanTheEngineHasAreNotBelieved(t *testing.T) {
	const blocks = 64
	m, x := testMirror(Config{})
	m.feed.Capacity = func() int { return blocks }
	offloaded := chain(0, 1, 2, 3)
	offloaded.Medium = "CPU"
	m.apply(&kvevent.Batch{Events: []kvevent.Event{offloaded}})
	times := 0
	for h := range kvevent.Hash(20 * blocks) {
		m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(0, 100+h)}})
		if n := len(x.snapshot()); n > 2*blocks+blocks/16+4 {
			t.Fatalf("%d blocks are held of an engine that has %d", n, blocks)
		}
		if m.Impossible() {
			times++
			if n := len(x.snapshot()); n != 3 {
				t.Fatalf("%d blocks are left, want the 3 that are offloaded", n)
			}
		}
		check(t, m, x)
	}
	if times < 5 {
		t.Errorf("the blocks were forgotten %d times", times)
	}
}

// TestWhatAnEngineCanHaveIsBelieved: as many blocks on the GPU as it has, second copies, offloaded ones without number, removals that come
// late, and any number where its own is not known.
func TestWhatAnEngineCanHaveIsBelieved(t *testing.T) {
	const blocks = 64
	for name, tc := range map[string]struct {
		capacity int
		medium   string
		late     int // removals come so many blocks late
		all      int
	}{
		"full":          {blocks, "", 0, blocks},
		"in turn":       {blocks, "", 0, 10 * blocks},
		"late removals": {blocks, "", blocks / 2, 10 * blocks},
		"offloaded":     {blocks, "CPU", 10 * blocks, 10 * blocks},
		"no number":     {0, "", 10 * blocks, 10 * blocks},
	} {
		t.Run(name, func(t *testing.T) {
			m, x := testMirror(Config{})
			m.feed.Capacity = func() int { return tc.capacity }
			for h := range kvevent.Hash(tc.all) {
				e := chain(0, 1+h)
				e.Medium = tc.medium
				batch := kvevent.Batch{Events: []kvevent.Event{e}}
				if old := int(h) - blocks - tc.late; old >= 0 {
					batch.Events = append(batch.Events, removed(kvevent.Hash(1+old)))
				}
				m.apply(&batch)
			}
			want := min(tc.all, blocks+tc.late)
			if n := len(x.snapshot()); n != want || m.Impossible() {
				t.Errorf("%d blocks are held, want %d", n, want)
			}
		})
	}
}

// TestImpossibleBlocksAreReplayed: the stream says that it does not know what the engine has, and asks for all of it.
func TestImpossibleBlocksAreReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newFakeEngine(), newFakeIndex()
		f := testFeed(x)
		f.Capacity = func() int { return 2 }
		w := &world{fakeEngine: e, t: t, x: x, m: New(testConfig(e))}
		defer w.m.Close()
		w.m.Set("p", []Feed{f})
		synctest.Wait()
		w.publish(encode(chain(0, 1), chain(0, 2), chain(0, 3), chain(0, 4)), 1)
		w.check("twice as many as it has", Synced, gpu(keyOf(1), keyOf(2), keyOf(3), keyOf(4)))
		w.publish(encode(chain(0, 5)), 1)
		w.check("more", Degraded, gpu())
		time.Sleep(DefaultMinResync)
		synctest.Wait()
		if n := w.stats().Resyncs[Retry].Load(); n != 1 {
			t.Errorf("everything was replayed %d times, want once", n)
		}
	})
}
