package events

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// matching is a mirror that writes to the fast index. match looks up keys in that index.
func matching(t *testing.T) (m *mirror, match func(keys ...kvblock.Key) int) {
	t.Helper()
	m, _ = testMirror(Config{})
	index := kvindex.NewIndex(kvindex.Options{})
	holder := index.Join()
	m.feed.Writer = index.Writer(holder)
	m.writer = m.feed.Writer
	return m, func(keys ...kvblock.Key) int {
		var out [1]kvindex.Match
		index.Match(keys, []kvindex.Holder{holder}, out[:])
		return out[0].Blocks()
	}
}

// windowed makes an event one of group 1, a sliding window that needs two blocks, and of some of the event's blocks only.
func windowed(e kvevent.Event, hashes ...kvevent.Hash) kvevent.Event {
	e.Group, e.Hashes = 1, hashes
	if e.Kind == kvevent.Stored {
		e.Tail = 2*blockTokens - 1
	}
	return e
}

// TestWindowsAreKeyedByTheOtherGroups: an event of a window precedes that of full attention, names blocks with holes
// between them, and its early blocks are evicted first.
func TestWindowsAreKeyedByTheOtherGroups(t *testing.T) {
	m, match := matching(t)
	for i, step := range []struct {
		events []kvevent.Event
		want   int
	}{
		{[]kvevent.Event{windowed(chain(0, 1, 2, 3, 4), 1, 3, 4), chain(0, 1, 2, 3, 4)}, 4},
		{[]kvevent.Event{windowed(removed(), 3)}, 1},                         // block 1 begins the prompt
		{[]kvevent.Event{windowed(chain(2, 3), 3), removed(4)}, 1},           // block 3 would need block 2
		{[]kvevent.Event{windowed(chain(1, 2), 2)}, 3},                       //
		{[]kvevent.Event{chain(3, 4)}, 4},                                    // the window has kept its block
		{[]kvevent.Event{windowed(chain(0, 1, 2, 3, 4), 1, 2, 3, 4)}, 4},     // a report of what is cached
		{[]kvevent.Event{windowed(removed(), 4), windowed(removed(), 1)}, 3}, // adds no copies
		{[]kvevent.Event{{Kind: kvevent.Cleared}}, 0},
	} {
		m.apply(&kvevent.Batch{Events: step.events})
		if got := match(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3), keyOf(1, 2, 3, 4)); got != step.want {
			t.Errorf("step %d: %d blocks match, not %d", i, got, step.want)
		}
	}
}

// TestAModelOfWindowsAlone has no group of full attention: chains are keyed from block to block.
func TestAModelOfWindowsAlone(t *testing.T) {
	m, match := matching(t)
	m.apply(&kvevent.Batch{Events: []kvevent.Event{windowed(chain(0, 1, 2, 3), 1, 2, 3)}})
	m.apply(&kvevent.Batch{Events: []kvevent.Event{windowed(removed(), 1, 2), windowed(chain(3, 4), 4)}})
	if got := match(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3), keyOf(1, 2, 3, 4)); got != 4 {
		t.Errorf("%d blocks match, not 4", got)
	}
	if got := match(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3)); got != 0 {
		t.Errorf("%d blocks match without block 2, not 0", got)
	}
}

// TestAnAdapterThatIsLoadedAgain: the engine gives the same tokens other hashes, because they cover the adapter's path.
func TestAnAdapterThatIsLoadedAgain(t *testing.T) {
	m, match := matching(t)
	adapter := func(name string, e kvevent.Event) kvevent.Event {
		e.Adapter = name
		return e
	}
	rename := func(e kvevent.Event, by kvevent.Hash) kvevent.Event {
		for i := range e.Hashes {
			e.Hashes[i] += by
		}
		if e.HasParent {
			e.Parent += by
		}
		return e
	}
	keys := func(name string) (out []kvblock.Key) {
		parent := seed.Root(name, "")
		e := chain(0, 1, 2, 3)
		return AppendBlockKeys(out, parent, e.Tokens, 0, blockTokens)
	}
	m.apply(&kvevent.Batch{Events: []kvevent.Event{
		adapter("sql", chain(0, 1, 2, 3)), rename(adapter("law", chain(0, 1, 2, 3)), 100), rename(chain(0, 1, 2, 3), 200),
	}})
	if got := match(keys("sql")...); got != 3 {
		t.Fatalf("%d blocks match, not 3", got)
	}
	m.apply(&kvevent.Batch{Events: []kvevent.Event{rename(adapter("sql", chain(0, 1)), 300)}})
	for name, want := range map[string]int{"sql": 1, "law": 3, "m": 3} {
		if got := match(keys(name)...); got != want {
			t.Errorf("%s: %d blocks match, not %d", name, got, want)
		}
	}
	if got := m.stats.Superseded.Load(); got != 3 {
		t.Errorf("%d blocks were superseded, not 3", got)
	}
	m.apply(&kvevent.Batch{Events: []kvevent.Event{removed(1, 2, 3)}}) // as the engine evicts them
	if got := match(keys("sql")...); got != 1 {
		t.Errorf("%d blocks match after the old ones are evicted, not 1", got)
	}
	m.apply(&kvevent.Batch{Events: []kvevent.Event{removed(301, 101, 102, 103)}})
	if n := len(m.adapters.of); n != 0 {
		t.Errorf("%d blocks of adapters are remembered that the engine has lost", n)
	}
}
