package cachesync

import (
	"fmt"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// Without a reporter, the index holds what the engine does, whatever the size of its blocks, at every moment; while
// everything is replayed it holds what it did before.
func TestWithoutAReporterPartsAreJoinedToo(t *testing.T) {
	for _, size := range []int{1, 2, 4, 8, 16} {
		for seed := range seedsOf(4) {
			t.Run(fmt.Sprintf("engine %d ours 8 seed %d", size, seed), func(t *testing.T) { testLocal(t, seed, size) })
		}
	}
}

func testLocal(t *testing.T, seed uint64, size int) {
	var book kvindex.Book = kvindex.New()
	if seed%2 == 0 {
		book = kvindex.NewIndex(kvindex.Options{})
	}
	root, e := testRoot("a", 8), newTruth(seed, size)
	var stats events.Stats
	stored := 0
	f := events.Feed{
		Keys:     events.Keys{Model: root.Model, Seed: root.Seed, BlockTokens: root.BlockTokens},
		Writer:   book.Writer(book.Join()),
		OnStored: func(keys []kvblock.Key) { stored += len(keys) },
	}
	s := Join(&f, &stats, nil)
	check := func(what string, want map[place]bool) { compare(t, what, heldBy(f.Writer), want) }
	s.Begin(false)
	for i := range 300 {
		s.Apply(e.step(), events.Position{})
		s.Mark(events.Position{}, events.Synced)
		held := e.keys(root)
		check(fmt.Sprintf("step %d", i), held)
		switch {
		case i%40 == 20:
			s.Begin(true)
			check("told again, nothing yet", held)
			s.Apply(e.history(), events.Position{})
			check("told again, not to the end", held)
			s.Mark(events.Position{}, events.Synced)
			check("told again", held)
		case i%100 == 99:
			e = newTruth(seed+uint64(i), size)
			s.Begin(false)
			check("another life", nil)
		}
	}
	if stored == 0 || stats.Batches.Load() < 300 || stats.BlockSizeUnsupported.Load() > 0 || stats.Blocks.Load() != int64(len(e.order)) {
		t.Errorf("%d keys stored, %d batches, %d unsupported, %d blocks of %d", stored, stats.Batches.Load(),
			stats.BlockSizeUnsupported.Load(), stats.Blocks.Load(), len(e.order))
	}
}
