package events

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/budget"
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

// TestImpossibleBlocksAreReplayed: the stream says that it does not know what the engine has, and asks for all of it. A replay that is as
// impossible changes nothing about that. An engine that goes on so is replayed ever more seldom, and fills no log.
func TestImpossibleBlocksAreReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newFakeEngine(), newFakeIndex()
		f := testFeed(x)
		f.Capacity = func() int { return 2 }
		config, lines := testConfig(e), 0
		config.Log = funcr.New(func(_, text string) {
			if strings.Contains(text, "twice as many blocks") {
				lines++
			}
		}, funcr.Options{})
		w := &world{fakeEngine: e, t: t, x: x, m: New(config)}
		defer w.m.Close()
		w.m.Set("p", []Feed{f})
		synctest.Wait()
		w.publish(encode(chain(0, 1), chain(0, 2), chain(0, 3), chain(0, 4)), 1)
		w.check("twice as many as it has", Synced, gpu(keyOf(1), keyOf(2), keyOf(3), keyOf(4)))
		w.publish(encode(chain(0, 5)), 1)
		w.check("more", Degraded, gpu())
		time.Sleep(DefaultMinResync)
		w.check("a replay of the same", Degraded, gpu())
		if n := w.stats().Resyncs[Retry].Load(); n != 1 {
			t.Errorf("everything was replayed %d times, want once", n)
		}
		const steps = 24
		for i := range steps {
			for j := range 5 {
				w.publish(encode(chain(0, kvevent.Hash(100+5*i+j))), 1)
			}
			time.Sleep(DefaultMinResync)
			synctest.Wait()
			if got := only(t, w.m).State; got == Synced {
				t.Fatalf("the stream of an engine that is not believed is %v", got)
			}
		}
		if n := w.stats().Resyncs[Retry].Load(); n > steps/4 {
			t.Errorf("everything was replayed %d times in %d steps", n, steps)
		}
		if minutes := int(steps*DefaultMinResync/time.Minute) + 1; lines > minutes {
			t.Errorf("%d lines were logged in %d minutes", lines, minutes)
		}
	})
}

// TestReportsWithoutRoomAreNotImpossible: what an engine announces twice in reports, and no room is left to remember, is no reason to
// forget its blocks.
func TestReportsWithoutRoomAreNotImpossible(t *testing.T) {
	m, x := testMirror(Config{})
	m.feed.Capacity = func() int { return 4000 }
	room := budget.NewRoom(256 << 10)
	if !room.Take(128<<10, 0) {
		t.Fatal("there is no room for others")
	}
	m.share = room.Share(ownBytes)
	m.facts = newFacts(m.share)
	var hashes []kvevent.Hash
	for h := range kvevent.Hash(2000) {
		hashes = append(hashes, h+1)
	}
	for i := range 12 {
		m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(0, hashes...)}})
		if m.Impossible() || len(x.snapshot()) < len(hashes) {
			t.Fatalf("%d blocks are left after %d reports", len(x.snapshot()), i+1)
		}
	}
}
