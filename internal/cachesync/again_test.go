package cachesync

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// TestReportsOfCachedBlocksPlantNone: what a client has the engine announce again goes when the engine removes it once.
func TestReportsOfCachedBlocksPlantNone(t *testing.T) {
	m, v, root := testMirror(Options{})
	m.SetCapacity(9)
	apply(m, chainEvent(0, 1, 2, 3, 4))
	for range 20 {
		apply(m, chainEvent(0, 1, 2, 3, 4)) // reports
	}
	apply(m, chainEvent(0, 11, 12, 13, 14)) // the engine is full
	expect(t, "full", m, v, keyOf(root, 1), keyOf(root, 1, 2), keyOf(root, 1, 2, 3), keyOf(root, 1, 2, 3, 4),
		keyOf(root, 11), keyOf(root, 11, 12), keyOf(root, 11, 12, 13), keyOf(root, 11, 12, 13, 14))
	apply(m, removedEvent(4, 3), chainEvent(12, 23, 24))
	expect(t, "evicted", m, v, keyOf(root, 1), keyOf(root, 1, 2),
		keyOf(root, 11), keyOf(root, 11, 12), keyOf(root, 11, 12, 13), keyOf(root, 11, 12, 13, 14),
		keyOf(root, 11, 12, 23), keyOf(root, 11, 12, 23, 24))
	if m.Stats().Struck == 0 {
		t.Error("no copies were struck off")
	}
}

// TestABlockWithTooFewCopiesStaysWhileOthersFollowIt: a second copy is real, is struck off, and is the first to go.
func TestABlockWithTooFewCopiesStaysWhileOthersFollowIt(t *testing.T) {
	m, v, root := testMirror(Options{})
	m.SetCapacity(5)
	apply(m, chainEvent(0, 1, 2), chainEvent(0, 1), chainEvent(0, 1), chainEvent(2, 3))
	if m.Stats().Struck != 2 {
		t.Fatalf("%d copies were struck off, not 2", m.Stats().Struck)
	}
	apply(m, removedEvent(1))
	expect(t, "a copy goes", m, v, keyOf(root, 1), keyOf(root, 1, 2), keyOf(root, 1, 2, 3))
	apply(m, removedEvent(3, 2, 1))
	expect(t, "all go", m, v)
}

// TestAnAdapterThatIsLoadedAgain loses its old blocks once its first block has another hash.
func TestAnAdapterThatIsLoadedAgain(t *testing.T) {
	m, v, root := testMirror(Options{})
	adapter := func(e kvevent.Event) kvevent.Event {
		e.Adapter = "sql"
		return e
	}
	again := adapter(chainEvent(0, 1))
	again.Hashes = []kvevent.Hash{101}
	apply(m, chainEvent(0, 7, 8), adapter(chainEvent(0, 1, 2, 3)))
	apply(m, again)
	sql := kvblock.Next(root.Seed.Root("sql", ""), []uint32{1, 1, 1, 1}, 0)
	expect(t, "loaded again", m, v, keyOf(root, 7), keyOf(root, 7, 8), sql)
	if got := m.Stats().Superseded; got != 3 {
		t.Errorf("%d blocks were superseded, not 3", got)
	}
	apply(m, removedEvent(3, 2, 1))
	expect(t, "evicted", m, v, keyOf(root, 7), keyOf(root, 7, 8), sql)
}

// TestTheSumOfCopiesIsRight under random events, removals of what waits for its parent, and clears included.
func TestTheSumOfCopiesIsRight(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	m, _, _ := testMirror(Options{MaxOrphans: 3, MaxGhosts: 3})
	for step := range 3000 {
		h := kvevent.Hash(1 + rng.IntN(30))
		switch n := rng.IntN(100); {
		case n < 50:
			apply(m, chainEvent(kvevent.Hash(rng.IntN(8)), h, h+1))
		case n < 98:
			apply(m, removedEvent(h))
		default:
			apply(m, kvevent.Event{Kind: kvevent.Cleared})
		}
		sum := 0
		m.arena.each(func(_ id, r *record) { sum += int(r.copies[kvblock.GPU]) })
		if m.again.copies != sum {
			t.Fatalf("step %d: the sum is %d, and the blocks have %d copies", step, m.again.copies, sum)
		}
	}
}

// TestMoreBlocksThanTheEngineHasAreNotReported: of an engine that announces more than twice its own number none on its GPU counts. Offloaded
// ones do, without number.
func TestMoreBlocksThanTheEngineHasAreNotReported(t *testing.T) {
	const blocks = 16
	m, _, _ := testMirror(Options{})
	m.SetCapacity(blocks)
	times := 0
	for h := range kvevent.Hash(20 * blocks) {
		offloaded := chainEvent(0, 1000+h)
		offloaded.Medium = "CPU"
		apply(m, chainEvent(0, 1+h), offloaded)
		onGPU := 0
		m.arena.each(func(_ id, r *record) { onGPU += int(r.copies[kvblock.GPU]) })
		if onGPU > 2*blocks+blocks/16 {
			t.Fatalf("%d blocks count of an engine that has %d", onGPU, blocks)
		}
		if m.Impossible() {
			if times++; onGPU != 0 || m.Stats().Blocks != int(h)+1 {
				t.Fatalf("%d blocks are left on the GPU, and %d in all, want 0 and %d", onGPU, m.Stats().Blocks, h+1)
			}
		}
	}
	if times < 5 {
		t.Errorf("the blocks were forgotten %d times", times)
	}
}
