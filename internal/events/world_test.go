package events

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// chain is a Stored event of one-token-valued blocks below a parent, 0 for none.
func chain(parent kvevent.Hash, hashes ...kvevent.Hash) kvevent.Event {
	e := kvevent.Event{Kind: kvevent.Stored, Hashes: hashes, Parent: parent, HasParent: parent != 0, BlockSize: blockTokens}
	for _, h := range hashes {
		for range blockTokens {
			e.Tokens = append(e.Tokens, uint32(h))
		}
	}
	return e
}

func removed(hashes ...kvevent.Hash) kvevent.Event {
	return kvevent.Event{Kind: kvevent.Removed, Hashes: hashes}
}

// keyOf is the key of the last of a chain of such blocks from the root.
func keyOf(hashes ...kvevent.Hash) kvblock.Key {
	key := seed.Root("m", "")
	for _, h := range hashes {
		key = kvblock.Next(key, slices.Repeat([]uint32{uint32(h)}, blockTokens), 0)
	}
	return key
}

// gpu is an index content: one copy of each.
func gpu(keys ...kvblock.Key) map[place]int {
	out := map[place]int{}
	for _, k := range keys {
		out[place{kvblock.GPU, k}] = 1
	}
	return out
}

// world is one engine, its index and its stream.
type world struct {
	*fakeEngine
	t *testing.T
	x *fakeIndex
	m *Manager
}

func (w *world) check(what string, state State, index map[place]int) {
	w.t.Helper()
	synctest.Wait()
	if got := only(w.t, w.m).State; got != state {
		w.t.Errorf("%s: state %v, want %v", what, got, state)
	}
	if diff := cmp.Diff(index, w.x.snapshot()); diff != "" {
		w.t.Errorf("%s: index (-want +got):\n%s", what, diff)
	}
}

func (w *world) stats() *Stats { return only(w.t, w.m).Stats }

func inWorld(t *testing.T, replay bool, change func(*Config), play func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newFakeEngine(), newFakeIndex()
		cfg := testConfig(e)
		if change != nil {
			change(&cfg)
		}
		f := testFeed(x)
		if !replay {
			f.Endpoint.ReplayAddress = ""
		}
		w := &world{fakeEngine: e, t: t, x: x, m: New(cfg)}
		defer w.m.Close()
		w.m.Set("p", []Feed{f})
		play(w)
	})
}
