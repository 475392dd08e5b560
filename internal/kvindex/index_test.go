package kvindex

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// bed is an index with one holder and a chain, for tests of single cases.
type bed struct {
	*testing.T
	ix   *Index
	h    Holder
	w    Writer
	keys []kvblock.Key
}

func newBed(t *testing.T, chain int) *bed {
	b := &bed{T: t, ix: NewIndex(Options{})}
	b.h = b.ix.Join()
	b.w = b.ix.Writer(b.h)
	b.keys = someKeys(1, chain)
	t.Cleanup(func() { b.ix.check(t) })
	return b
}

// someKeys is one of many chains.
func someKeys(chain uint64, n int) []kvblock.Key {
	rng := rand.New(rand.NewPCG(chain, 3))
	keys := make([]kvblock.Key, n)
	for i := range keys {
		keys[i] = kvblock.Key(rng.Uint64() | 1)
	}
	return keys
}

// named are hashes of keys, by variant.
func named(variant int, keys ...kvblock.Key) []kvevent.Hash {
	hashes := make([]kvevent.Hash, len(keys))
	for i, key := range keys {
		hashes[i] = kvevent.Hash(key) + kvevent.Hash(variant)<<1
	}
	return hashes
}

// store stores blocks [from, to) of a chain.
func (b *bed) store(w Writer, keys []kvblock.Key, from, to int) {
	var parent Parent
	if from > 0 {
		parent = Parent{named(0, keys[from-1])[0], true}
	}
	w.Store(kvblock.GPU, 0, parent, named(0, keys[from:to]...), keys[from:to])
}

func (b *bed) blocks(h Holder, keys []kvblock.Key) int {
	out := make([]Match, 1)
	b.ix.Match(keys, []Holder{h}, out)
	return out[0].Blocks()
}

// want fails the test unless a holder matches so many blocks of a chain.
func (b *bed) want(h Holder, keys []kvblock.Key, want int) {
	b.Helper()
	if got := b.blocks(h, keys); got != want {
		b.Errorf("match is %d blocks, want %d", got, want)
	}
}

// TestALookupNeverSeesOtherKeysBehindAPosition stops a lookup between finding a run and reading its holders, while the end
// of the run is dropped and other keys take its place.
func TestALookupNeverSeesOtherKeysBehindAPosition(t *testing.T) {
	for name, room := range map[string]int{"in the room there is": 8, "in more room": 20, "in less room": 6} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, 8)
			other := append(append([]kvblock.Key(nil), b.keys[:5]...), someKeys(2, room-5)...)
			b.store(b.w, b.keys, 0, 8)
			out := make([]Match, 1)
			l := &lookup{}
			l.begin(b.ix, []Holder{b.h})
			r, n := b.ix.step(b.keys)
			b.w.Drop(kvblock.GPU, 0, named(0, b.keys[5:]...))
			b.store(b.w, other, 5, room)
			l.credit(r, 0, uint32(n), out)
			if got := out[0].Blocks(); got != 5 {
				t.Errorf("the lookup credits %d blocks, want the 5 that stayed", got)
			}
			b.want(b.h, other, room)
			b.want(b.h, b.keys, 5)
		})
	}
}

// TestALookupNeverSeesAnotherHoldersSlot stops a lookup at its beginning, while its holder is cleared, or leaves, and
// another one takes over the slot.
func TestALookupNeverSeesAnotherHoldersSlot(t *testing.T) {
	for name, end := range map[string]func(*bed){
		"cleared": func(b *bed) { b.w.Clear() },
		"left":    func(b *bed) { b.ix.Leave(b.h) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, 8)
			out := make([]Match, 1)
			l := &lookup{}
			l.begin(b.ix, []Holder{b.h})
			end(b)
			b.ix.Settle()
			b.store(b.ix.Writer(b.ix.Join()), b.keys, 0, 8)
			l.walk(b.ix, b.keys, out)
			l.end(b.ix, out)
			if got := out[0].Blocks(); got != 0 {
				t.Errorf("the lookup credits %d blocks of the slot's next owner", got)
			}
		})
	}
}

// TestALookupNoticesASlotThatCameBack lets the slot of a lookup's holder be another's while it is read, and the first
// holder's again before the lookup ends.
func TestALookupNoticesASlotThatCameBack(t *testing.T) {
	b := newBed(t, 8)
	slot := b.ix.generationOf(b.h).slot
	out := make([]Match, 1)
	l := &lookup{}
	l.begin(b.ix, []Holder{b.h})
	b.w.Clear()
	b.ix.Settle()
	other := b.ix.Join()
	b.store(b.ix.Writer(other), b.keys, 0, 8)
	l.walk(b.ix, b.keys, out)
	b.ix.Leave(other)
	b.ix.Settle()
	b.w.Clear()
	if again := b.ix.generationOf(b.h).slot; again != slot {
		t.Fatalf("the slot was %d and is %d now", slot, again)
	}
	l.end(b.ix, out)
	if got := out[0].Blocks(); got != 0 {
		t.Errorf("the lookup credits %d blocks of another holder", got)
	}
}

// TestALookupSeesTheBlocksOfAnEndingLife lets a generation end while it is being looked up, before its slot is used again.
func TestALookupSeesTheBlocksOfAnEndingLife(t *testing.T) {
	b := newBed(t, 8)
	b.store(b.w, b.keys, 0, 8)
	out := make([]Match, 1)
	l := &lookup{}
	l.begin(b.ix, []Holder{b.h})
	r, n := b.ix.step(b.keys)
	b.w.Clear()
	b.ix.Settle()
	l.credit(r, 0, uint32(n), out)
	l.end(b.ix, out)
	if got := out[0].Blocks(); got != 8 {
		t.Errorf("the lookup credits %d blocks of the generation that it began in, want 8", got)
	}
	b.want(b.h, b.keys, 0)
}

func TestTheSameHoldersAreLookedUpAgainWhenOneHasGone(t *testing.T) {
	b := newBed(t, 8)
	other := b.ix.Join()
	b.store(b.ix.Writer(other), b.keys, 0, 4)
	b.store(b.w, b.keys, 0, 8)
	holders, out := []Holder{b.h, other, b.h, 99_999}, make([]Match, 4)
	lengths := func() (n [4]int) {
		b.ix.Match(b.keys, holders, out)
		for i := range out {
			n[i] = out[i].Blocks()
		}
		return n
	}
	if got := lengths(); got != [4]int{8, 4, 8, 0} {
		t.Errorf("matches of two, one of them twice, and a stranger: %v", got)
	}
	holders[0], holders[1] = other, b.h
	if got := lengths(); got != [4]int{4, 8, 8, 0} {
		t.Errorf("matches of the same in another order: %v", got)
	}
	holders[0], holders[1] = b.h, other
	b.ix.Leave(b.h)
	if got := lengths(); got != [4]int{0, 4, 0, 0} {
		t.Errorf("after the first has left: %v", got)
	}
	b.ix.Writer(other).Clear()
	if got := lengths(); got != [4]int{} {
		t.Errorf("after the second was cleared: %v", got)
	}
}

func TestAnEmptyIndexMatchesNobody(t *testing.T) {
	for name, book := range books() {
		book.Match(someKeys(1, 3), nil, nil)
		out := []Match{{Speculative: 7}}
		if book.Match(someKeys(1, 3), []Holder{1}, out); out[0].Blocks() != 0 {
			t.Errorf("%s: a holder that never was matches", name)
		}
		if book.Match(nil, []Holder{book.Join()}, out); out[0].Blocks() != 0 {
			t.Errorf("%s: no keys match", name)
		}
	}
}

func TestARunThatHasGoneIsNotEntered(t *testing.T) {
	b := newBed(t, 8)
	b.store(b.w, b.keys, 0, 8)
	id := b.ix.heads.find(b.keys[0])
	b.w.Drop(kvblock.GPU, 0, named(0, b.keys...))
	c := change{slot: 1}
	if n := b.ix.enter(&c, id, b.keys); n != 0 {
		t.Errorf("%d blocks were placed in a run that is not there", n)
	}
	other := someKeys(2, 8)
	b.store(b.w, other, 0, 8)
	if again := b.ix.heads.find(other[0]); again != id {
		t.Fatalf("the run's number is not used again: %d, then %d", id, again)
	}
	if n := b.ix.enter(&c, id, b.keys); n != 0 {
		t.Errorf("%d blocks were placed in another chain's run", n)
	}
}

// TestAChainKeepsTheRunsItHas stores a chain whose beginning has gone, but whose end stands in a run of its own.
func TestAChainKeepsTheRunsItHas(t *testing.T) {
	b := newBed(t, 10)
	branch := append(append([]kvblock.Key(nil), b.keys[:5]...), someKeys(2, 3)...)
	b.store(b.w, branch, 0, 8)
	b.store(b.w, b.keys, 5, 10)
	b.w.Drop(kvblock.GPU, 0, named(0, branch...))
	other := b.ix.Join()
	b.store(b.ix.Writer(other), b.keys, 0, 10)
	b.store(b.w, b.keys, 0, 5)
	b.want(other, b.keys, 10)
	b.want(b.h, b.keys, 10)
}

// A block can have any number of holders, and none of them is forgotten.
func TestManyHoldersOfABlock(t *testing.T) {
	b := newBed(t, 3)
	holders := make([]Holder, 300)
	for i := range holders {
		holders[i] = b.ix.Join()
		b.store(b.ix.Writer(holders[i]), b.keys, 0, len(b.keys))
	}
	out := make([]Match, len(holders))
	b.ix.Match(b.keys, holders, out)
	for i := range out {
		if out[i].Confirmed() != len(b.keys) {
			t.Fatalf("holder %d matches %d of %d blocks", i, out[i].Confirmed(), len(b.keys))
		}
	}
}

func TestCopiesAreCountedBeyondWhatAnEntryHolds(t *testing.T) {
	for _, tier := range []kvblock.Tier{kvblock.GPU, kvblock.Remote} {
		for _, copies := range []int{62, 63, 64, 65, 254, 255, 256, 257, 600} {
			b := newBed(t, 1)
			for range copies {
				b.w.Store(tier, 3, Parent{}, named(0, b.keys...), b.keys)
			}
			b.w.Each(func(block Block) bool {
				if block.Copies[tier] != copies {
					t.Errorf("%d copies in tier %v, says %v", copies, tier, block)
				}
				return true
			})
			for range copies - 1 {
				b.w.Drop(tier, 3, named(0, b.keys...))
			}
			b.want(b.h, b.keys, 1)
			b.w.Drop(tier, 3, named(0, b.keys...))
			b.want(b.h, b.keys, 0)
			if unknown := b.w.Drop(tier, 3, named(0, b.keys...)); unknown != 1 {
				t.Errorf("one more of %d copies was dropped", copies)
			}
		}
	}
}

func TestABlockOfTwoNamesStaysUntilBothHaveGone(t *testing.T) {
	b := newBed(t, 2)
	key := b.keys[0]
	b.w.Store(kvblock.GPU, 0, Parent{}, named(0, key), b.keys[:1])
	b.w.Store(kvblock.GPU, 0, Parent{}, named(1, key), b.keys[:1])
	both := append(named(0, key), named(1, key)...)
	b.w.Copy(kvblock.CPU, 0, both)
	b.w.Drop(kvblock.GPU, 0, both)
	b.want(b.h, b.keys, 1)
	b.w.Drop(kvblock.CPU, 0, both[:1])
	b.want(b.h, b.keys, 1)
	b.w.Drop(kvblock.CPU, 0, both[1:])
	b.want(b.h, b.keys, 0)
}

func TestOrphansFindTheirPlaceWhenTheirParentsCome(t *testing.T) {
	b := newBed(t, 700)
	generation := b.ix.generationOf(b.h)
	for from := 600; from >= 0; from -= 100 {
		if from > 0 && b.blocks(b.h, b.keys) != 0 {
			t.Error("blocks match before the first of the chain is there")
		}
		b.store(b.w, b.keys, from, from+100)
	}
	b.want(b.h, b.keys, 700)
	if n := len(generation.orphans); n != 0 || b.ix.orphans.bytes.Load() != 0 {
		t.Errorf("%d orphans remain, %d bytes", n, b.ix.orphans.bytes.Load())
	}
	if word := b.ix.word(b.h); word&orphansBit != 0 {
		t.Error("readers are still told to look for orphans")
	}
}

func TestAGuessAboutALifeThatEndsMeanwhileIsNone(t *testing.T) {
	b := newBed(t, 8)
	generation := b.ix.generationOf(b.h)
	b.w.Clear()
	b.ix.Settle()
	b.ix.speculate(generation, b.keys).Withdraw()
	b.ix.speculate(generation, b.keys)
	if distinct, held, speculative := b.ix.Size(); distinct+held+speculative != 0 || b.ix.heads.find(b.keys[0]) != 0 {
		t.Error("a guess about a generation that has ended is in the index")
	}
}

func TestALateWriteForAHolderThatHasLeftDoesNothing(t *testing.T) {
	for name, book := range books() {
		t.Run(name, func(t *testing.T) {
			h := book.Join()
			w, keys := book.Writer(h), someKeys(1, 4)
			w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
			shadow := w.Shadow()
			shadow.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
			book.Leave(h)
			shadow.Commit()
			w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
			book.Speculate(h, keys)
			w.Clear()
			w.Shadow().Commit()
			if _, ok := w.Key(0, named(0, keys...)[0]); ok || w.Len() != 0 {
				t.Error("the writer of a holder that has left knows blocks")
			}
			if unknown := w.Drop(kvblock.GPU, 0, named(0, keys...)); unknown != 4 {
				t.Errorf("%d of 4 blocks are unknown", unknown)
			}
			out := make([]Match, 1)
			if book.Match(keys, []Holder{h}, out); out[0].Blocks() != 0 {
				t.Error("a holder that has left matches")
			}
			if ix, ok := book.(*Index); ok {
				ix.check(t)
			}
			if distinct, held, speculative := book.Size(); distinct+held+speculative != 0 {
				t.Error("a late write for a holder that has left takes memory")
			}
		})
	}
}

func TestWhatCannotBeIndexedIsRefused(t *testing.T) {
	keys := someKeys(1, 4)
	for name, tc := range map[string]struct {
		tier  kvblock.Tier
		group int
		keys  []kvblock.Key
		want  int
	}{
		"a tier that there is not":       {kvblock.Tier(kvblock.NumTiers), 0, keys, 4},
		"a negative group":               {0, -1, keys, 4},
		"a group too high":               {0, MaxGroup + 1, keys, 4},
		"the highest group":              {0, MaxGroup, keys, 0},
		"fewer keys than hashes":         {0, 0, keys[:3], 4},
		"keys that do not divide evenly": {0, 0, append(keys[:4:4], 5), 4},
		"a key of zero and what follows": {0, 0, []kvblock.Key{keys[0], 0, keys[2], keys[3]}, 3},
	} {
		for which, book := range books() {
			t.Run(name+", "+which, func(t *testing.T) {
				w := book.Writer(book.Join())
				if refused := w.Store(tc.tier, tc.group, Parent{}, named(0, keys...), tc.keys); refused != tc.want {
					t.Errorf("%d blocks are refused, want %d", refused, tc.want)
				}
				if w.Len() != 4-tc.want {
					t.Errorf("%d blocks are known, want %d", w.Len(), 4-tc.want)
				}
			})
		}
	}
}

func books() map[string]Book { return map[string]Book{"plain": New(), "fast": NewIndex(Options{})} }

// TestBlocksSeveralKeysLongComeAndGoAsOne checks what the leading keys of such blocks do.
func TestBlocksSeveralKeysLongComeAndGoAsOne(t *testing.T) {
	for name, book := range books() {
		t.Run(name, func(t *testing.T) {
			h := book.Join()
			w, keys := book.Writer(h), someKeys(1, 12)
			hashes := []kvevent.Hash{10, 20, 30, 40}
			w.Store(kvblock.GPU, 0, Parent{}, hashes[:2], keys[:6])
			w.Store(kvblock.GPU, 0, Parent{20, true}, hashes[2:], keys[6:])
			blocks := func() int {
				out := make([]Match, 1)
				book.Match(keys, []Holder{h}, out)
				return out[0].Blocks()
			}
			if got := blocks(); got != 12 {
				t.Errorf("match is %d keys, want 12", got)
			}
			if key, _ := w.Key(0, 30); key != keys[8] {
				t.Error("a hash does not name the last of its keys")
			}
			w.Copy(kvblock.CPU, 0, hashes[1:2])
			w.Drop(kvblock.GPU, 0, hashes[1:2])
			if got := blocks(); got != 12 {
				t.Errorf("with a block in a lower tier the match is %d keys, want 12", got)
			}
			w.Drop(kvblock.CPU, 0, hashes[1:2])
			if got := blocks(); got != 3 {
				t.Errorf("without the second block the match is %d keys, want 3", got)
			}
			if w.Len() != 9 {
				t.Errorf("%d keys are known, want 9", w.Len())
			}
		})
	}
}

func TestADropTakesAllKeysOfALongBlockThoughOthersAreShort(t *testing.T) {
	for name, book := range books() {
		w, keys := book.Writer(book.Join()), someKeys(1, 7)
		w.Store(kvblock.GPU, 0, Parent{}, []kvevent.Hash{10, 20}, keys[:6])
		w.Store(kvblock.GPU, 1, Parent{}, []kvevent.Hash{1, 2}, keys[:4])
		w.Drop(kvblock.GPU, 0, []kvevent.Hash{20, 10})
		if w.Len() != 4 {
			t.Errorf("%s: %d keys are known, want 4", name, w.Len())
		}
	}
}

func TestEachStopsWhenTold(t *testing.T) {
	for name, book := range books() {
		w, keys := book.Writer(book.Join()), someKeys(1, 9)
		w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
		n := 0
		w.Each(func(Block) bool { n++; return n < 3 })
		if n != 3 {
			t.Errorf("%s: Each went on to %d blocks", name, n)
		}
	}
}

func TestDigestsTellWhichBucketsDiffer(t *testing.T) {
	b := newBed(t, 300)
	b.store(b.w, b.keys, 0, 300)
	all := b.w.Digest(kvblock.GPU, 0)
	if all.Blocks != 300 {
		t.Errorf("digest counts %d blocks, want 300", all.Blocks)
	}
	b.w.Drop(kvblock.GPU, 0, named(0, b.keys[7]))
	fewer := b.w.Digest(kvblock.GPU, 0)
	if diff := fewer.Diff(&all, nil); fmt.Sprint(diff) != fmt.Sprint([]int{Bucket(b.keys[7])}) {
		t.Errorf("buckets %v differ, want %d", diff, Bucket(b.keys[7]))
	}
	fewer.Add(b.keys[7])
	if fewer != all {
		t.Error("a block that comes back does not restore the digest")
	}
}

// TestOnlyRunsWithAHeadAreEntered: a writer that makes a run gives it up if another one for its first key is there already. A third
// writer can know the number from an earlier run for that key. What it placed in the run would be lost.
func TestOnlyRunsWithAHeadAreEntered(t *testing.T) {
	ix := NewIndex(Options{})
	keys := []kvblock.Key{7, 8}
	id, ok := ix.runs.take()
	if !ok {
		t.Fatal("no number is left")
	}
	r := &run{keys: keys, id: id, top: 2, width: 1, cells: newCells(1, 1)}
	r.n.Store(2)
	r.cells[0] = headerOf(1, tierGuess)
	ix.runs.set(id, r)
	c := change{slot: 2, tier: tierGuess}
	if n := ix.enter(&c, id, keys); n != 0 || c.bytes != 0 || ix.runs.get(id) != r {
		t.Errorf("%d keys are placed in a run that heads nothing, %d bytes", n, c.bytes)
	}
	if ix.heads.insert(keys[0], id) != 0 {
		t.Fatal("the key has a run")
	}
	if n := ix.enter(&c, id, keys); n != 2 {
		t.Errorf("%d keys are placed in the run that they head, want 2", n)
	}
}
