package kvindex

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/test/race"
)

// forest is the chains that a test speaks of: every key has one parent.
type forest struct {
	keys   []kvblock.Key
	parent []int // -1 for the first block of a chain
	depth  []int
}

// newForest makes a few chains that branch in random places. Some are long enough to need several runs.
func newForest(rng *rand.Rand, blocks, longest int) *forest {
	f := &forest{}
	for len(f.keys) < blocks {
		parent, depth := -1, 0
		if len(f.keys) > 0 && rng.IntN(8) > 0 {
			parent = rng.IntN(len(f.keys))
			depth = f.depth[parent] + 1
		}
		length := 1 + rng.IntN(1+rng.IntN(longest))
		for range length {
			f.keys = append(f.keys, kvblock.Key(rng.Uint64()|1))
			f.parent = append(f.parent, parent)
			f.depth = append(f.depth, depth)
			parent, depth = len(f.keys)-1, depth+1
		}
	}
	return f
}

// path is the chain that ends with a block, at most n blocks of it.
func (f *forest) path(node, n int) []int {
	var path []int
	for ; node >= 0 && len(path) < n; node = f.parent[node] {
		path = append(path, node)
	}
	for i, j := 0, len(path)-1; i < j; i, j = i+1, j-1 {
		path[i], path[j] = path[j], path[i]
	}
	return path
}

func (f *forest) keysOf(path []int) []kvblock.Key {
	keys := make([]kvblock.Key, len(path))
	for i, node := range path {
		keys[i] = f.keys[node]
	}
	return keys
}

// hashOf is what an engine calls a block; engines have several names for a key at times.
func hashOf(node, variant int) kvevent.Hash { return kvevent.Hash(node*4 + variant) }

// wide is the group whose blocks are two keys long.
const wide = 7

// step is one operation, with all its random choices made, so that both indexes get the same.
type step struct {
	op, holder, node, length, guess int
	tier                            kvblock.Tier
	group, variant                  int
	backwards, shadow               bool
}

func randomStep(rng *rand.Rand, f *forest) step {
	s := step{op: rng.IntN(1000), holder: rng.IntN(1 << 20), guess: rng.IntN(1 << 20),
		node: rng.IntN(len(f.keys)), length: 1 + rng.IntN(1+rng.IntN(40)), backwards: rng.IntN(2) == 0,
		shadow: rng.IntN(4) == 0}
	if rng.IntN(3) == 0 {
		s.tier = kvblock.Tier(rng.IntN(kvblock.NumTiers))
	}
	if rng.IntN(4) == 0 {
		s.group, s.variant = []int{0, 1, wide}[rng.IntN(3)], rng.IntN(2)
	}
	if rng.IntN(3) == 0 {
		s.length = 1 << 20
	}
	return s
}

// side is one of the two indexes under the same operations.
type side struct {
	book    Book
	holders []Holder
	writers []Writer
	shadows []Writer // by holder, nil if it has none
	guesses []*Guess
	gone    []kvblock.Key // in the step
}

func (s *side) join() {
	h := s.book.Join()
	s.holders = append(s.holders, h)
	w := s.book.Writer(h)
	w.OnGone(func(key kvblock.Key) { s.gone = append(s.gone, key) })
	s.writers = append(s.writers, w)
	s.shadows = append(s.shadows, nil)
}

// do makes a step and returns what the index answered.
func (s *side) do(f *forest, st step) int {
	s.gone = s.gone[:0]
	h := st.holder % len(s.holders)
	w := s.writers[h]
	if st.shadow && s.shadows[h] != nil {
		w = s.shadows[h]
	}
	path := f.path(st.node, st.length)
	if st.group == wide {
		if f.depth[path[0]]%2 != 0 {
			path = path[1:]
		}
		path = path[:len(path)/2*2]
		if len(path) == 0 {
			return 0
		}
	}
	keys := f.keysOf(path)
	var hashes []kvevent.Hash
	for i, node := range path {
		if st.group != wide || i%2 == 1 {
			hashes = append(hashes, hashOf(node, st.variant))
		}
	}
	switch op := st.op; {
	case op < 420:
		var parent Parent
		if before := f.parent[path[0]]; before >= 0 {
			parent = Parent{hashOf(before, st.variant), true}
		}
		return w.Store(st.tier, st.group, parent, hashes, keys)
	case op < 480:
		return w.Copy(st.tier, st.group, hashes)
	case op < 800:
		if st.backwards {
			for i, j := 0, len(hashes)-1; i < j; i, j = i+1, j-1 {
				hashes[i], hashes[j] = hashes[j], hashes[i]
			}
		}
		return w.Drop(st.tier, st.group, hashes)
	case op < 880:
		s.guesses = append(s.guesses, s.book.Speculate(s.holders[h], f.keysOf(f.path(st.node, 1<<20))))
	case op < 960 && len(s.guesses) > 0:
		i := st.guess % len(s.guesses)
		s.guesses[i].Withdraw()
		s.guesses[i].Withdraw() // once is enough
		s.guesses = append(s.guesses[:i], s.guesses[i+1:]...)
	case op < 965:
		w.Clear()
	case op < 970:
		w.ClearTier(st.tier)
	case op < 985:
		switch {
		case s.shadows[h] == nil:
			s.shadows[h] = s.writers[h].Shadow()
		case st.backwards:
			s.shadows[h].Commit()
			s.shadows[h] = nil
		default:
			s.shadows[h].Discard()
			s.shadows[h] = nil
		}
	case op < 987 && len(s.holders) < 12:
		s.book.Leave(s.holders[h])
		s.join()
	}
	return 0
}

// compare fails the test unless two sides answer alike.
func compare(t *testing.T, f *forest, rng *rand.Rand, at string, plain, fast *side) {
	t.Helper()
	a, b := make([]Match, len(plain.holders)), make([]Match, len(fast.holders))
	for range 3 {
		keys := f.keysOf(f.path(rng.IntN(len(f.keys)), 1<<20))
		if rng.IntN(4) == 0 { // continues with a key that was never stored
			keys = append(keys, kvblock.Key(rng.Uint64()|1))
		}
		plain.book.Match(keys, plain.holders, a)
		fast.book.Match(keys, fast.holders, b)
		if !slices.Equal(a, b) {
			t.Fatalf("%s: matches of %d keys differ (- plain, + fast): %s", at, len(keys), cmp.Diff(a, b))
		}
	}
}

// compareGone compares what a step has taken away.
func compareGone(t *testing.T, at string, plain, fast *side) {
	t.Helper()
	slices.Sort(plain.gone)
	slices.Sort(fast.gone)
	if !slices.Equal(plain.gone, fast.gone) {
		t.Fatalf("%s: gone is %v, fast %v", at, plain.gone, fast.gone)
	}
}

// compareDeeply compares all that can be asked about holders.
func compareDeeply(t *testing.T, f *forest, rng *rand.Rand, at string, plain, fast *side) {
	t.Helper()
	writers := func(s *side) []Writer {
		all := append([]Writer(nil), s.writers...)
		for _, w := range s.shadows {
			if w != nil {
				all = append(all, w)
			}
		}
		return all
	}
	fast.book.(*Index).Settle()
	orphans := false
	for l := range fast.book.(*Index).generations {
		orphans = orphans || len(l.orphans) > 0
	}
	if distinct, held, _ := plain.book.Size(); !orphans && fast.book.(*Index).budget.Load() == 0 { // liars hold some, too
		if d, h, _ := fast.book.Size(); d != distinct || h != held {
			t.Fatalf("%s: %d distinct and %d held blocks, fast %d and %d", at, distinct, held, d, h)
		}
		if a, b := plain.book.Sharing(plain.holders), fast.book.Sharing(fast.holders); !slices.Equal(a, b) {
			t.Fatalf("%s: holders share %v, fast %v", at, a, b)
		}
	}
	for i := range plain.holders {
		l := fast.book.(*Index).generationOf(fast.holders[i])
		if a, b := plain.book.Held(plain.holders[i]), fast.book.Held(fast.holders[i]); a != b && len(l.orphans) == 0 {
			t.Fatalf("%s: holder %d has %d blocks, fast %d", at, i, a, b)
		}
	}
	a, b := writers(plain), writers(fast)
	for i := range a {
		if a[i].Len() != b[i].Len() {
			t.Fatalf("%s: writer %d knows %d blocks, fast %d", at, i, a[i].Len(), b[i].Len())
		}
		blocks := func(w Writer) map[Block]bool {
			all := map[Block]bool{}
			w.Each(func(b Block) bool { all[b] = true; return true })
			return all
		}
		if x, y := blocks(a[i]), blocks(b[i]); !maps.Equal(x, y) {
			t.Fatalf("%s: writer %d knows other blocks: %s", at, i, cmp.Diff(x, y))
		}
		for _, group := range []int{0, 1, wide} {
			for tier := range kvblock.Tier(kvblock.NumTiers) {
				if a[i].Digest(tier, group) != b[i].Digest(tier, group) {
					t.Fatalf("%s: writer %d: digests of tier %v, group %d differ", at, i, tier, group)
				}
			}
			for range 20 {
				node := rng.IntN(len(f.keys))
				keyA, okA := a[i].Key(group, hashOf(node, 0))
				keyB, okB := b[i].Key(group, hashOf(node, 0))
				if keyA != keyB || okA != okB {
					t.Fatalf("%s: writer %d: keys of node %d differ", at, i, node)
				}
				for tier := range kvblock.Tier(kvblock.NumTiers) {
					if x, y := a[i].Copies(tier, group, hashOf(node, 0)), b[i].Copies(tier, group, hashOf(node, 0)); x != y {
						t.Fatalf("%s: writer %d: %d and %d copies of node %d", at, i, x, y, node)
					}
					x, y := a[i].Followed(tier, group, hashOf(node, 0)), b[i].Followed(tier, group, hashOf(node, 0))
					if most := followed(f, a[i], tier, group, node); !orphans && (x && !y || y && !most) {
						t.Fatalf("%s: writer %d: node %d is followed in tier %v, group %d: at least %v, at most %v, fast %v",
							at, i, node, tier, group, x, most, y)
					}
				}
			}
		}
	}
}

// followed reports whether a writer knows a node, and has a copy of a block after it. The plain index can miss that: it knows only
// the parents that its own holder named. The fast one learns parents from all holders.
func followed(f *forest, w Writer, tier kvblock.Tier, group, node int) (is bool) {
	if _, ok := w.Key(group, hashOf(node, 0)); !ok {
		return false
	}
	w.Each(func(b Block) bool {
		if b.Group == group && b.Copies[tier] > 0 {
			after := f.parent[slices.Index(f.keys, b.Key)]
			is = is || after == node
		}
		return !is
	})
	return is
}

// TestTheFastIndexAgreesWithThePlainOne gives both the same random operations: chains that branch, holes, copies,
// tiers, groups, names, blocks before their parents, clears, leaves, shadows and guesses.
func TestTheFastIndexAgreesWithThePlainOne(t *testing.T) {
	sizes := []struct{ blocks, longest, steps int }{{12, 6, 3000}, {60, 20, 2000}, {300, 120, 600}, {2500, 900, 300}}
	seeds := uint64(16)
	if race.Enabled { // each seed has one goroutine
		seeds = 4
	}
	for seed := range seeds {
		size := sizes[seed%4]
		t.Run(fmt.Sprintf("seed %d, %d blocks", seed, size.blocks), func(t *testing.T) {
			t.Parallel()
			runDifferential(t, seed, size.blocks, size.longest, size.steps)
		})
	}
}

// TestHoldersWithinTheirShareLoseNothing gives both the same operations, while others store junk without end in the fast one, which has
// a budget: it still agrees, and keeps within its budget.
func TestHoldersWithinTheirShareLoseNothing(t *testing.T) {
	seeds := uint64(6)
	if race.Enabled { // each seed has one goroutine
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			runDifferentialIn(t, NewIndex(Options{Budget: 3 << 20}), seed, 40, 30, 600)
		})
	}
}

func runDifferential(t *testing.T, seed uint64, blocks, longest, steps int) {
	runDifferentialIn(t, NewIndex(Options{}), seed, blocks, longest, steps)
}

// runDifferentialIn compares an index with the plain one. If it has a budget, it has two liars besides.
func runDifferentialIn(t *testing.T, ix *Index, seed uint64, blocks, longest, steps int) {
	rng := rand.New(rand.NewPCG(seed, 77))
	f := newForest(rng, blocks, longest)
	var liars []*liar
	if ix.budget.Load() > 0 {
		liars = append(liars, newLiar(ix, seed), newLiar(ix, seed+100))
	}
	plain, fast := &side{book: New()}, &side{book: ix}
	for range 4 {
		plain.join()
		fast.join()
	}
	for i := range steps {
		st := randomStep(rng, f)
		at := fmt.Sprintf("step %d", i)
		for _, l := range liars {
			l.lie(300)
		}
		if budget := ix.budget.Load(); budget > 0 && ix.Bytes() > budget {
			t.Fatalf("%s: the index takes %d of %d bytes", at, ix.Bytes(), budget)
		}
		if a, b := plain.do(f, st), fast.do(f, st); a != b {
			t.Fatalf("%s: %+v answers %d, fast %d", at, st, a, b)
		}
		compareGone(t, at, plain, fast)
		compare(t, f, rng, at, plain, fast)
		if i%(steps/20) == 0 {
			ix.check(t)
			compareDeeply(t, f, rng, at, plain, fast)
		}
	}
	if len(liars) > 0 {
		if ix.Evicted() == 0 {
			t.Error("nothing was evicted")
		}
		return
	}
	for i := range plain.holders {
		plain.book.Leave(plain.holders[i])
		fast.book.Leave(fast.holders[i])
		for _, s := range []*side{plain, fast} {
			if s.shadows[i] != nil {
				s.shadows[i].Commit()
			}
		}
	}
	for i := range fast.guesses {
		fast.guesses[i].Withdraw()
	}
	ix.check(t)
	empty := NewIndex(Options{})
	empty.Leave(empty.Join())
	empty.Settle()
	if extra := ix.Bytes() - empty.Bytes(); extra > 32<<10 {
		t.Errorf("after everyone has left the index takes %d bytes more than an empty one", extra)
	}
	if distinct, held, speculative := ix.Size(); distinct+held+speculative != 0 {
		t.Errorf("after everyone has left: %d blocks, %d held, %d speculative", distinct, held, speculative)
	}
}

// fuzzDifferential makes steps from bytes, on a small forest.
func fuzzDifferential(t *testing.T, seed uint64, ops []byte) {
	rng := rand.New(rand.NewPCG(seed, 78))
	f := newForest(rng, 40, 30)
	// Another holder stores junk beyond the budget.
	ix := NewIndex(Options{Budget: 4 << 20})
	junk := newLiar(ix, seed)
	plain, fast := &side{book: New()}, &side{book: ix}
	for range 3 {
		plain.join()
		fast.join()
	}
	for i := 0; i+4 <= len(ops) && i < 4*400; i += 4 {
		a, b, c, d := int(ops[i]), int(ops[i+1]), int(ops[i+2]), int(ops[i+3])
		st := step{op: a * 4, holder: b & 3, tier: kvblock.Tier(b >> 2 & 3), variant: b >> 4 & 1, backwards: b&32 != 0,
			shadow: b&64 != 0, node: c % len(f.keys), length: 1 + d&31, guess: d, group: []int{0, 0, 0, 0, 0, 0, 1, wide}[d>>5]}
		at := fmt.Sprintf("step %d", i/4)
		junk.lie(500)
		if x, y := plain.do(f, st), fast.do(f, st); x != y {
			t.Fatalf("%s: %+v answers %d, fast %d", at, st, x, y)
		}
		compareGone(t, at, plain, fast)
		compare(t, f, rng, at, plain, fast)
	}
	compareDeeply(t, f, rng, "in the end", plain, fast)
	ix.check(t)
}
