package kvindex

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// newFullBed is a bed with all numbers of runs taken, by chains of one block.
func newFullBed(t *testing.T) (b *bed, kept [][]kvblock.Key) {
	b = newBed(t, 600)
	b.ix.runs.limit = 1
	b.store(b.w, b.keys, 0, 300) // two runs
	for i := range runChunkLen - 3 {
		keys := someKeys(uint64(100+i), 1)
		if refused := b.w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys); refused != 0 {
			t.Fatalf("chain %d is refused", i)
		}
		kept = append(kept, keys)
	}
	return b, kept
}

func TestBlocksAreRefusedWhenThereAreNoMoreRuns(t *testing.T) {
	b, kept := newFullBed(t)
	other := someKeys(2, 1)
	if refused := b.w.Store(kvblock.GPU, 0, Parent{}, named(0, other...), other); refused != 1 {
		t.Errorf("%d blocks are refused, want 1", refused)
	}
	if _, ok := b.w.Key(0, named(0, other...)[0]); ok || b.ix.Evicted() != 1 {
		t.Errorf("a refused block is known, or not counted: %d", b.ix.Evicted())
	}
	refused := b.w.Store(kvblock.GPU, 0, Parent{named(0, b.keys[299])[0], true}, named(0, b.keys[300:]...), b.keys[300:])
	if want := 600 - 2*runBlocks; refused != want {
		t.Errorf("%d blocks of a chain are refused, want the %d beyond its last run", refused, want)
	}
	b.want(b.h, b.keys, 2*runBlocks)
	b.ix.Speculate(b.h, other).Withdraw()
	b.ix.Speculate(b.h, b.keys)
	b.want(b.h, b.keys, 2*runBlocks)
	b.ix.check(t)

	b.w.Drop(kvblock.GPU, 0, named(0, kept[0]...))
	if refused := b.w.Store(kvblock.GPU, 0, Parent{}, named(0, other...), other); refused != 0 {
		t.Error("a block is refused though a run has gone")
	}
	b.want(b.h, other, 1)
}

func TestOrphansStayOrphansWhenThereAreNoMoreRuns(t *testing.T) {
	b, kept := newFullBed(t)
	chain := someKeys(2, 3)
	b.store(b.w, chain, 1, 3)
	b.w.Drop(kvblock.GPU, 0, named(0, kept[0]...))
	branch := append(append([]kvblock.Key(nil), chain[:1]...), someKeys(3, 1)...)
	// The parent arrives with another child, which takes the room behind it.
	b.w.Store(kvblock.CPU, 0, Parent{}, named(1, branch...), branch)
	b.store(b.w, chain, 0, 1)
	b.want(b.h, chain, 3)
	if n := len(b.ix.generationOf(b.h).orphans); n != 2 {
		t.Errorf("%d orphans, want 2", n)
	}
	b.w.Drop(kvblock.GPU, 0, named(0, chain...))
	b.want(b.h, chain, 1)
	if n := len(b.ix.generationOf(b.h).orphans); n != 0 {
		t.Errorf("%d orphans remain", n)
	}
}

// TestAChainMayNameABlockTwice stores chains with a repeated hash, also where its block is refused.
func TestAChainMayNameABlockTwice(t *testing.T) {
	b := newBed(t, 3)
	hashes := []kvevent.Hash{1, 2, 1, 3}
	b.w.Store(kvblock.GPU, 0, Parent{}, hashes, []kvblock.Key{b.keys[0], b.keys[1], b.keys[0], b.keys[2]})
	b.want(b.h, b.keys, 3)
	b.w.Drop(kvblock.GPU, 0, hashes[:1])
	b.want(b.h, b.keys, 3)
	b.w.Drop(kvblock.GPU, 0, hashes[:1])
	b.want(b.h, b.keys, 0)

	full, _ := newFullBed(t)
	other := someKeys(2, 1)
	if refused := full.w.Store(kvblock.GPU, 0, Parent{}, []kvevent.Hash{5, 5, 5}, []kvblock.Key{other[0], other[0], other[0]}); refused != 3 {
		t.Errorf("%d of 3 announcements are refused", refused)
	}
	known := full.w.Len()
	full.w.Store(kvblock.GPU, 0, Parent{}, append([]kvevent.Hash{5, 6}, named(0, full.keys[0])...), []kvblock.Key{other[0], other[0] + 2, full.keys[0]})
	if full.w.Len() != known {
		t.Errorf("%d blocks are known, want %d", full.w.Len(), known)
	}
}

// TestABudgetTakesOrphansFirst evicts from a generation with orphans and blocks of several groups and tiers.
func TestABudgetTakesOrphansFirst(t *testing.T) {
	b := newBed(t, 400)
	b.store(b.w, b.keys, 0, 300)
	b.w.Copy(kvblock.CPU, 0, named(0, b.keys[:300]...))
	b.w.Store(kvblock.Disk, 1, Parent{}, named(0, b.keys[:200]...), b.keys[:200])
	b.store(b.w, someKeys(2, 20), 10, 20)
	generation := b.ix.generationOf(b.h)
	if evicted := generation.evict(b.ix, 110); evicted != 110 || len(generation.orphans) != 0 {
		t.Errorf("%d blocks are evicted, %d orphans are left", evicted, len(generation.orphans))
	}
	b.ix.check(t)
	if b.w.Evicted() != 110 || b.ix.Evicted() != 110 {
		t.Errorf("writer and index count %d and %d evicted blocks", b.w.Evicted(), b.ix.Evicted())
	}
	b.want(b.h, b.keys, 200)
	if refused := b.w.Store(kvblock.GPU, 0, Parent{named(0, b.keys[298])[0], true}, named(0, b.keys[299]), b.keys[299:300]); refused != 1 {
		t.Error("a block is taken whose parent was evicted")
	}
	if digest := b.w.Digest(kvblock.Disk, 1); digest.Blocks == 0 {
		t.Error("the other group is gone")
	}
}

func TestEvictionTakesAllCopies(t *testing.T) {
	b := newBed(t, 1)
	for range 300 {
		b.w.Store(kvblock.GPU, 2, Parent{}, named(0, b.keys...), b.keys)
	}
	b.ix.generationOf(b.h).evict(b.ix, 1)
	b.want(b.h, b.keys, 0)
	for range 255 {
		b.w.Store(kvblock.GPU, 2, Parent{}, named(0, b.keys...), b.keys)
	}
	for range 255 {
		b.w.Drop(kvblock.GPU, 2, named(0, b.keys...))
	}
	b.want(b.h, b.keys, 0)
}

func FuzzTheFastIndexAgreesWithThePlainOne(f *testing.F) {
	f.Add(uint64(1), []byte("store and drop and so on, \x00\x01\x02\x03 in some order"))
	f.Add(uint64(2), []byte{0, 10, 255, 3, 200, 7, 9, 250, 4, 4, 100, 90, 80, 1, 2, 3, 128, 64, 32, 16})
	f.Fuzz(func(t *testing.T, seed uint64, ops []byte) {
		fuzzDifferential(t, seed, ops)
	})
}
