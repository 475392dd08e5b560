package cachesync

import (
	"bytes"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// chainEvent stores blocks of four equal tokens below a parent, 0 for none.
func chainEvent(parent kvevent.Hash, hashes ...kvevent.Hash) kvevent.Event {
	e := kvevent.Event{Kind: kvevent.Stored, Hashes: hashes, Parent: parent, HasParent: parent != 0, BlockSize: 4}
	for _, h := range hashes {
		e.Tokens = append(e.Tokens, uint32(h), uint32(h), uint32(h), uint32(h))
	}
	return e
}

func removedEvent(hashes ...kvevent.Hash) kvevent.Event {
	return kvevent.Event{Kind: kvevent.Removed, Hashes: hashes}
}

// keyOf is the key of the last of a chain of such blocks.
func keyOf(root Root, hashes ...kvevent.Hash) kvblock.Key {
	var tokens []uint32
	for _, h := range hashes {
		tokens = append(tokens, uint32(h), uint32(h), uint32(h), uint32(h))
	}
	keys := kvblock.AppendKeys(nil, root.Seed.Root(root.Model, ""), tokens, 4)
	return keys[len(keys)-1]
}

// testMirror has a view of blocks of four tokens.
func testMirror(o Options) (*Mirror, *view, Root) {
	m, root := NewMirror(o, nil), testRoot("a", 4)
	m.Begin(false)
	return m, m.acquire(&root, true), root
}

func apply(m *Mirror, reported ...kvevent.Event) {
	m.Apply(&kvevent.Batch{Events: reported, Rank: -1}, events.Position{})
}

// expect compares a view with keys that must be in the GPU.
func expect(t *testing.T, what string, m *Mirror, v *view, keys ...kvblock.Key) {
	t.Helper()
	checkMirror(t, m)
	got, want := map[place]bool{}, map[place]bool{}
	m.walk(v, func(tier kvblock.Tier, group int, _, key kvblock.Key) { got[place{tier, group, key}] = true })
	for _, key := range keys {
		want[place{kvblock.GPU, 0, key}] = true
	}
	compare(t, what, got, want)
}

func TestOrphansAreGraftedAndBounded(t *testing.T) {
	m, v, root := testMirror(Options{MaxOrphans: 3})
	apply(m, chainEvent(1, 2, 3))
	expect(t, "a chain without its beginning", m, v)
	if s := m.Stats(); s.Orphans != 2 {
		t.Errorf("%d orphans, want 2", s.Orphans)
	}
	apply(m, chainEvent(0, 1))
	expect(t, "its beginning", m, v, keyOf(root, 1), keyOf(root, 1, 2), keyOf(root, 1, 2, 3))
	apply(m, chainEvent(100, 101, 102, 103, 104, 105))
	if s := m.Stats(); s.Orphans != 3 || s.OrphansDropped != 2 {
		t.Errorf("%d orphans, %d dropped, want 3 and 2", s.Orphans, s.OrphansDropped)
	}
	apply(m, removedEvent(103, 104, 105, 101))
	if s := m.Stats(); s.Orphans != 0 || s.RemovedUnknown != 1 {
		t.Errorf("%d orphans, %d unknown removed, want 0 and 1", s.Orphans, s.RemovedUnknown)
	}
	expect(t, "the rest stays", m, v, keyOf(root, 1), keyOf(root, 1, 2), keyOf(root, 1, 2, 3))
}

func TestABlockThatIsItsOwnParentWaitsForEver(t *testing.T) {
	m, v, _ := testMirror(Options{})
	apply(m, chainEvent(7, 7), chainEvent(9, 8), chainEvent(8, 9))
	expect(t, "nonsense", m, v)
	apply(m, removedEvent(7, 8, 9))
	expect(t, "gone", m, v)
	if s := m.Stats(); s.Blocks+s.Orphans+s.Ghosts != 0 || len(m.waiting) != 0 {
		t.Errorf("left: %+v, %d wait", s, len(m.waiting))
	}
}

// A block that is gone is needed as long as others follow it: they could not be keyed by another root without it.
func TestGhostsLetOthersBeKeyedAgain(t *testing.T) {
	m, v, root := testMirror(Options{MaxGhosts: 2})
	apply(m, chainEvent(0, 1, 2, 3, 4), removedEvent(1, 2))
	expect(t, "a hole at the beginning", m, v, keyOf(root, 1, 2, 3), keyOf(root, 1, 2, 3, 4))
	other := testRoot("b", 4)
	expect(t, "with another root", m, m.acquire(&other, true), keyOf(other, 1, 2, 3), keyOf(other, 1, 2, 3, 4))

	apply(m, removedEvent(3)) // one ghost too many: the first block goes
	if s := m.Stats(); s.Ghosts != 2 || s.GhostsDropped != 1 {
		t.Errorf("%d ghosts, %d dropped, want 2 and 1", s.Ghosts, s.GhostsDropped)
	}
	expect(t, "it keeps the key that it has", m, v, keyOf(root, 1, 2, 3, 4))
	m.release(v)
	third := testRoot("c", 4)
	expect(t, "but gets no other", m, m.acquire(&third, true))
	apply(m, chainEvent(0, 1))
	expect(t, "until the beginning comes again", m, m.views[0], keyOf(m.views[0].root, 1), keyOf(m.views[0].root, 1, 2, 3, 4))

	apply(m, removedEvent(4, 1))
	if s := m.Stats(); s.Blocks+s.Orphans+s.Ghosts != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestBlocksBeyondTheLimitAreRefused(t *testing.T) {
	m, v, root := testMirror(Options{MaxBlocks: 2})
	apply(m, chainEvent(0, 1, 2, 3))
	expect(t, "full", m, v, keyOf(root, 1), keyOf(root, 1, 2))
	if d := m.digest(v); d.Refused != 1 || m.Stats().Refused != 1 {
		t.Errorf("%d refused, want 1", d.Refused)
	}
	apply(m, removedEvent(3, 2), chainEvent(1, 4))
	expect(t, "room again", m, v, keyOf(root, 1), keyOf(root, 1, 4))
}

// A ghost that returns is a further block, and a full mirror refuses it too. A saved mirror can be loaded.
func TestGhostsThatComeBackStayWithinTheLimit(t *testing.T) {
	m, v, root := testMirror(Options{MaxBlocks: 2})
	apply(m, chainEvent(0, 1, 2), removedEvent(1), chainEvent(0, 3))
	expect(t, "full", m, v, keyOf(root, 1, 2), keyOf(root, 3))
	apply(m, chainEvent(0, 1))
	expect(t, "refused", m, v, keyOf(root, 1, 2), keyOf(root, 3))
	if got := m.Stats().Refused; got != 1 {
		t.Errorf("%d refused, want 1", got)
	}
	apply(m, kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{1}, Medium: "CPU"})
	expect(t, "refused by its hash", m, v, keyOf(root, 1, 2), keyOf(root, 3))
	var file bytes.Buffer
	if err := m.Save(&file); err != nil {
		t.Fatal(err)
	}
	next := NewMirror(Options{MaxBlocks: 2}, nil)
	if _, err := next.Load(&file); err != nil {
		t.Errorf("loading: %v", err)
	}
	if d := next.digest(next.acquire(&root, true)); d.Refused != 2 { // pickers must not take for all what is not
		t.Errorf("%d refused after loading, want 2", d.Refused)
	}
}

// A ghost that has returned can become one again, and is bounded then as before.
func TestGhostsThatComeAndGo(t *testing.T) {
	m, v, root := testMirror(Options{MaxGhosts: 1})
	apply(m, chainEvent(0, 1, 2), chainEvent(0, 3, 4), chainEvent(0, 5, 6), chainEvent(0, 7, 8))
	apply(m, removedEvent(1), chainEvent(0, 1), removedEvent(3), chainEvent(0, 3))
	apply(m, removedEvent(5, 7)) // one too many: first 1 and 3 are looked at, which are none any more
	apply(m, removedEvent(1))
	apply(m, removedEvent(3))
	expect(t, "in the end", m, v, keyOf(root, 1, 2), keyOf(root, 3, 4), keyOf(root, 5, 6), keyOf(root, 7, 8))
	if got := m.Stats(); got.Ghosts != 1 || got.GhostsDropped != 3 {
		t.Errorf("%d ghosts, %d dropped, want 1 and 3", got.Ghosts, got.GhostsDropped)
	}
}

// Blocks that follow a ghost for which there was no room have no keys in views that begin later. The digest must count them
// as refused, or else pickers would take the rest for all.
func TestBlocksThatCannotBeKeyedAgainAreCounted(t *testing.T) {
	m, v, root := testMirror(Options{MaxGhosts: 1})
	apply(m, chainEvent(0, 1, 2), chainEvent(0, 3, 4), removedEvent(1), removedEvent(3))
	expect(t, "in the view that was there", m, v, keyOf(root, 1, 2), keyOf(root, 3, 4))
	if got := m.Stats(); got.GhostsDropped != 1 || got.Refused != 0 {
		t.Fatalf("%d ghosts dropped, %d refused, want 1 and 0", got.GhostsDropped, got.Refused)
	}
	other := testRoot("b", 4)
	later := m.acquire(&other, true)
	expect(t, "in a later one", m, later, keyOf(other, 3, 4))
	if d := m.digest(later); d.Refused != 1 {
		t.Errorf("%d refused, want 1", d.Refused)
	}
	apply(m, chainEvent(2, 5))
	if d := m.digest(later); d.Refused != 2 {
		t.Errorf("%d refused after one more, want 2", d.Refused)
	}
}

// A part of a key block can be a ghost for which there is no room. The key block has no key until it is back.
func TestBlocksOfSeveralPartsOfWhichOneIsForgotten(t *testing.T) {
	root := testRoot("a", 16)
	m := NewMirror(Options{MaxGhosts: 1}, nil)
	m.Begin(false)
	v := m.acquire(&root, true)
	apply(m, chainEvent(0, 1, 2, 3), chainEvent(0, 7, 8))
	apply(m, removedEvent(1), removedEvent(7)) // and no room for the ghost 1
	if got := m.Stats().GhostsDropped; got != 1 {
		t.Fatalf("%d ghosts dropped, want 1", got)
	}
	apply(m, chainEvent(3, 4))
	expect(t, "without its beginning", m, v)
	if got := m.Stats(); got.Refused != 1 {
		t.Errorf("%d refused, want 1: missing blocks must be counted", got.Refused)
	}
	apply(m, chainEvent(0, 1))
	expect(t, "back", m, v, kvblock.AppendKeys(nil, root.Seed.Root(root.Model, ""), chainEvent(0, 1, 2, 3, 4).Tokens, 16)...)
}

func TestWhatCannotBeIndexedIsCounted(t *testing.T) {
	m, v, root := testMirror(Options{})
	event := func(change func(*kvevent.Event)) kvevent.Event {
		e := chainEvent(0, 1)
		change(&e)
		return e
	}
	apply(m,
		event(func(e *kvevent.Event) { e.Partial = true }),
		event(func(e *kvevent.Event) { e.Unkeyed = true }),
		event(func(e *kvevent.Event) { e.Medium = "tape" }),
		event(func(e *kvevent.Event) { e.BlockSize = 3 }),
		event(func(e *kvevent.Event) { e.Group = maxGroup + 1 }),
		event(func(e *kvevent.Event) { e.BlockSize, e.Tokens = maxBlockSize+1, make([]uint32, maxBlockSize+1) }),
		event(func(e *kvevent.Event) { e.BlockSize, e.Tokens = 0, nil }),
	)
	expect(t, "nothing", m, v)
	s := m.Stats()
	if s.Partial != 2 || s.Unkeyed != 2 || s.UnknownMedium != 1 || s.Misaligned != 1 || s.BlockSizeUnsupported != 1 {
		t.Errorf("%+v", s)
	}
	if d := m.digest(v); d.Unindexable != 7 {
		t.Errorf("%d unindexable, want 7", d.Unindexable)
	}
	// Six tokens are no multiple of four, nor the other way round; the following blocks have no key either.
	odd := kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{1, 2}, Tokens: make([]uint32, 12), BlockSize: 6}
	apply(m, odd, removedEvent(2), chainEvent(1, 3))
	expect(t, "sizes that do not go together", m, v)
	apply(m, chainEvent(0, 4), event(func(e *kvevent.Event) {
		e.Hashes, e.Tokens, e.BlockSize, e.Medium = []kvevent.Hash{4}, nil, 0, "CPU"
	}))
	if d := v.digests[section{kvblock.CPU, 0}]; d == nil || d.Blocks != 1 {
		t.Error("an announcement by hash alone of a block that is known was not taken")
	}
	apply(m, kvevent.Event{Kind: kvevent.Cleared, Medium: "CPU"}, kvevent.Event{Kind: kvevent.Cleared, Medium: "tape"})
	expect(t, "one tier cleared", m, v, keyOf(root, 4))
	apply(m, kvevent.Event{Kind: kvevent.Cleared})
	expect(t, "everything cleared", m, v)
}

func TestMediaComeWithTheRoot(t *testing.T) {
	m := NewMirror(Options{}, nil)
	m.Begin(false)
	root := testRoot("a", 4)
	root.Media = map[string]kvblock.Tier{"tape": kvblock.Remote}
	v := m.acquire(&root, true)
	e := chainEvent(0, 1)
	e.Medium = "TAPE"
	apply(m, e)
	if d := v.digests[section{kvblock.Remote, 0}]; d == nil || d.Blocks != 1 {
		t.Error("the medium was not known")
	}
}

func TestOnlyTwoRootsAreServedAtATime(t *testing.T) {
	m, first, _ := testMirror(Options{})
	apply(m, chainEvent(0, 1))
	second, third, other := testRoot("b", 4), testRoot("c", 4), testRoot("d", 8)
	v := m.acquire(&second, true)
	if v == nil || m.acquire(&third, true) != nil || m.acquire(&other, true) != nil {
		t.Fatal("a third root was served, or the second not")
	}
	again := m.acquire(&second, true)
	if again != v {
		t.Error("the same root has two views")
	}
	m.release(first)
	v3 := m.acquire(&third, true)
	if v3 == nil {
		t.Fatal("a root is not served although another was left")
	}
	expect(t, "the third", m, v3, keyOf(third, 1))
	m.release(v3)
	m.release(v)
	m.release(again)
	if v := m.acquire(&other, true); v == nil || m.blockTokens != 8 {
		t.Error("blocks of another size are not served although the others are no longer used")
	}
	checkMirror(t, m)
}

func TestNoSenderTalksWhileAHistoryIsReadAnew(t *testing.T) {
	w := newWorld(t, 1, faults{})
	for range 20 {
		w.step()
	}
	w.settle(testSettle)
	p := w.pickers[0]
	before := p.receiver.Status()
	w.mirror.Begin(true)
	w.settle(testSettle)
	if s := p.receiver.Status(); s.Messages != before.Messages || s.Held != before.Held {
		t.Errorf("%d messages and %d blocks, before %d and %d", s.Messages, s.Held, before.Messages, before.Held)
	}
	w.mirror.Apply(w.engine.history(), events.Position{})
	w.mirror.Mark(events.Position{}, events.Synced)
	w.settle(testSettle)
	s := p.receiver.Status()
	if !s.Proven || s.Resyncs[Adopted] != 1 || s.RepairedBlocks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAnEngineThatIsAwayIsNotVouchedFor(t *testing.T) {
	w := newWorld(t, 1, faults{})
	w.step()
	w.settle(testSettle)
	p := w.pickers[0]
	if s := p.receiver.Status(); !s.Proven {
		t.Fatalf("%+v", s)
	}
	for _, state := range []events.State{events.Disconnected, events.Degraded, events.Unverified} {
		w.mirror.Mark(events.Position{}, state)
		w.settle(testSettle)
		if s := p.receiver.Status(); s.Proven || s.Divergent != 0 || s.State != states[state] {
			t.Errorf("%v: %+v", state, s)
		}
		w.mirror.Mark(events.Position{}, events.Synced)
		w.settle(testSettle)
		if s := p.receiver.Status(); !s.Proven || s.State != pb.State_STATE_SYNCED {
			t.Errorf("after %v: %+v", state, s)
		}
	}
}
