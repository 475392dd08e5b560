package kvindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// spell is when a holder can have a block: from before the change that adds it until after the one that removes it.
type spell struct{ begins, ends atomic.Int64 }

type racer struct {
	f      *forest
	spells []spell // by node
	fast   Writer
	plain  Writer
	holder Holder
	copies []int // by node, GPU copies
}

func (r *racer) store(path []int) {
	for _, node := range path {
		if r.copies[node]++; r.copies[node] == 1 {
			r.spells[node].begins.Add(1)
		}
	}
	r.both(func(w Writer) { w.Store(kvblock.GPU, 0, r.parentOf(path[0]), hashesOf(path), r.f.keysOf(path)) })
}

func (r *racer) drop(path []int) {
	r.both(func(w Writer) { w.Drop(kvblock.GPU, 0, hashesOf(path)) })
	for _, node := range path {
		if r.copies[node] == 0 {
			continue
		}
		if r.copies[node]--; r.copies[node] == 0 {
			r.spells[node].ends.Add(1)
		}
	}
}

// renew clears the holder, or gives it a shadow's generation with some blocks in it.
func (r *racer) renew(path []int, shadow bool) {
	old := slices.Clone(r.copies)
	clear(r.copies)
	if shadow {
		for _, node := range path {
			r.copies[node]++
			r.spells[node].begins.Add(1)
		}
		r.both(func(w Writer) {
			s := w.Shadow()
			s.Store(kvblock.GPU, 0, r.parentOf(path[0]), hashesOf(path), r.f.keysOf(path))
			s.Commit()
		})
	} else {
		r.both(Writer.Clear)
	}
	for node, n := range old {
		if n > 0 {
			r.spells[node].ends.Add(1)
		}
	}
}

func (r *racer) both(do func(Writer)) {
	do(r.fast)
	do(r.plain)
}

func (r *racer) parentOf(node int) Parent {
	if before := r.f.parent[node]; before >= 0 {
		return Parent{hashOf(before, 0), true}
	}
	return Parent{}
}

func hashesOf(path []int) []kvevent.Hash {
	hashes := make([]kvevent.Hash, len(path))
	for i, node := range path {
		hashes[i] = hashOf(node, 0)
	}
	return hashes
}

// TestReadersNeverSeeWhatWasNotThere runs writers, guesses and readers at the same time. A block in a match must have
// been there, or assumed, at some instant of the lookup; in particular none of a generation that had ended before.
func TestReadersNeverSeeWhatWasNotThere(t *testing.T) {
	steps := 1500
	if testing.Short() {
		steps = 500
	}
	for _, size := range []struct{ blocks, longest int }{{40, 20}, {800, 300}} {
		t.Run(fmt.Sprint(size.blocks, " blocks"), func(t *testing.T) { runRace(t, size.blocks, size.longest, steps) })
	}
}

func runRace(t *testing.T, blocks, longest, steps int) {
	f := newForest(rand.New(rand.NewPCG(5, 5)), blocks, longest)
	ix, plain := NewIndex(Options{}), New()
	racers := make([]*racer, 4)
	holders, plainHolders := make([]Holder, len(racers)), make([]Holder, len(racers))
	for i := range racers {
		holders[i], plainHolders[i] = ix.Join(), plain.Join()
		racers[i] = &racer{f: f, spells: make([]spell, len(f.keys)), holder: holders[i], copies: make([]int, len(f.keys)),
			fast: ix.Writer(holders[i]), plain: plain.Writer(plainHolders[i])}
	}
	var writers, readers sync.WaitGroup
	for i, r := range racers {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 6))
			for range steps {
				path := f.path(rng.IntN(len(f.keys)), 1+rng.IntN(1<<rng.IntN(11)))
				switch op := rng.IntN(100); {
				case op < 50:
					r.store(path)
				case op < 97:
					r.drop(path)
				default:
					r.renew(path, op == 99)
				}
			}
		})
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			for range steps / 4 {
				path := f.path(rng.IntN(len(f.keys)), 1<<20)
				for _, node := range path {
					r.spells[node].begins.Add(1)
				}
				ix.Speculate(r.holder, f.keysOf(path)).Withdraw()
				for _, node := range path {
					r.spells[node].ends.Add(1)
				}
			}
		})
	}
	var done atomic.Bool
	for i := range 2 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 8))
			for !done.Load() && !t.Failed() {
				readOnce(t, ix, f, f.path(rng.IntN(len(f.keys)), 1<<20), racers, holders)
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	ix.check(t)
	a, b := make([]Match, len(racers)), make([]Match, len(racers))
	for node := range f.keys {
		keys := f.keysOf(f.path(node, 1<<20))
		ix.Match(keys, holders, a)
		plain.Match(keys, plainHolders, b)
		if !slices.Equal(a, b) {
			t.Fatalf("in the end the matches of node %d differ: %v, plain %v", node, a, b)
		}
	}
}

func readOnce(t *testing.T, ix *Index, f *forest, path []int, racers []*racer, holders []Holder) {
	type reading struct{ begins, ends int64 }
	before := make([][]reading, len(racers))
	for i, r := range racers {
		for _, node := range path {
			// The end first: a spell that ends and begins between the two readings counts as one that goes on.
			ends := r.spells[node].ends.Load()
			before[i] = append(before[i], reading{r.spells[node].begins.Load(), ends})
		}
	}
	out := make([]Match, len(racers))
	ix.Match(f.keysOf(path), holders, out)
	for i, r := range racers {
		for j, node := range path[:out[i].Blocks()] {
			b := before[i][j]
			if absent := b.begins == b.ends; absent && b.begins == r.spells[node].begins.Load() {
				t.Errorf("holder %d is credited for block %d of %d, which it did not have", i, j, len(path))
				return
			}
		}
	}
}

// TestHoldersMayComeAndGoWhileOthersRead lets slots change hands as fast as they can. Each holder has one block, of its own,
// so that no holder must ever match anything else.
func TestHoldersMayComeAndGoWhileOthersRead(t *testing.T) {
	ix := NewIndex(Options{})
	const chains = 8
	keys := make([][]kvblock.Key, chains)
	rng := rand.New(rand.NewPCG(9, 9))
	for i := range keys {
		for range 3 {
			keys[i] = append(keys[i], kvblock.Key(rng.Uint64()|1))
		}
	}
	var current [chains]atomic.Uint32
	var writers, readers sync.WaitGroup
	for i := range chains {
		writers.Go(func() {
			for range 400 {
				h := ix.Join()
				w := ix.Writer(h)
				w.Store(kvblock.GPU, 0, Parent{}, []kvevent.Hash{1, 2, 3}, keys[i])
				current[i].Store(uint32(h))
				w.Drop(kvblock.GPU, 0, []kvevent.Hash{3})
				ix.Leave(h)
			}
		})
	}
	var done atomic.Bool
	readers.Go(func() {
		holders, out := make([]Holder, chains), make([]Match, chains)
		for n := 0; !done.Load(); n++ {
			for i := range holders {
				holders[i] = Holder(current[i].Load())
			}
			ix.Match(keys[n%chains], holders, out)
			for i := range out {
				if i != n%chains && out[i].Blocks() > 0 {
					t.Errorf("holder %d matches the blocks of holder %d", i, n%chains)
					return
				}
			}
		}
	})
	writers.Wait()
	done.Store(true)
	readers.Wait()
	ix.check(t)
	if distinct, held, speculative := ix.Size(); distinct+held+speculative != 0 {
		t.Errorf("after everyone has left: %d blocks, %d held, %d speculative", distinct, held, speculative)
	}
}
