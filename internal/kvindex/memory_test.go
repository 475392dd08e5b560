package kvindex

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/test/race"
)

// TestHeadsThatComeAndGoLeaveNoTrace stores and drops many chains one after the other.
func TestHeadsThatComeAndGoLeaveNoTrace(t *testing.T) {
	b := newBed(t, 8)
	b.store(b.w, b.keys, 0, 8)
	var bytes int64
	for i := range 20_000 {
		if i == 1 {
			bytes = b.ix.Bytes()
		}
		keys := []kvblock.Key{kvblock.Key(scramble(uint64(i + 1)))}
		b.w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
		b.w.Drop(kvblock.GPU, 0, named(0, keys...))
	}
	if got := b.ix.Bytes(); got != bytes {
		t.Errorf("the index took %d bytes and takes %d", bytes, got)
	}
	b.want(b.h, b.keys, 8)
}

// TestIdleCellsGoWhenTheCellsOfARunChange makes guesses about many holders that have nothing of a run.
func TestIdleCellsGoWhenTheCellsOfARunChange(t *testing.T) {
	b := newBed(t, 8)
	b.store(b.w, b.keys, 0, 8)
	for range 20 {
		b.ix.Speculate(b.ix.Join(), b.keys).Withdraw()
	}
	other := b.ix.Join()
	w := b.ix.Writer(other)
	b.store(w, b.keys, 0, 8)
	w.Drop(kvblock.GPU, 0, named(0, b.keys...))
	if r, _ := b.ix.step(b.keys); len(r.cells) != 1 {
		t.Errorf("a run that one holder has has %d cells", len(r.cells))
	}
}

// TestMemoryComesBack fills the index with many short chains and one holder after the other with long ones, drops all,
// and expects nothing to remain, however often.
func TestMemoryComesBack(t *testing.T) {
	ix := NewIndex(Options{})
	h := ix.Join()
	w := ix.Writer(h)
	empty := ix.Bytes()
	rng := rand.New(rand.NewPCG(1, 1))
	for round := range 3 {
		var all [][]kvblock.Key
		for i := range 8_000 {
			n := 1
			if i%100 == 0 {
				n = 1 + rng.IntN(600)
			}
			keys := someKeys(uint64(round*1_000_000+i), n)
			w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
			all = append(all, keys)
		}
		ix.check(t)
		if round < 2 {
			for _, keys := range all {
				w.Drop(kvblock.GPU, 0, named(0, keys...))
			}
		} else {
			w.Clear()
		}
		ix.check(t)
		if extra := ix.Bytes() - empty; extra > 24<<10 {
			t.Errorf("round %d: after all was dropped the index takes %d bytes more than before", round, extra)
		}
	}
}

// TestBytesPerBlock states the most that a held block takes, with prompts of 512 blocks, half of them shared by four
// holders, after churn.
func TestBytesPerBlock(t *testing.T) {
	for _, layout := range []string{"hot", "spread"} {
		t.Run(layout, func(t *testing.T) {
			ix := NewIndex(Options{})
			w := newWorld(ix, layout, 16, 8*promptBlocks)
			ix.check(t)
			if got := float64(ix.Bytes()) / float64(w.held); got > 40 {
				t.Errorf("a held block takes %.1f bytes", got)
			}
		})
	}
}

func TestTheFastMatchDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector makes pools forget")
	}
	ix := NewIndex(Options{})
	w := newWorld(ix, "spread", 16, 4*promptBlocks)
	out := make([]Match, len(w.holders))
	requests, i := w.wholePrompts(), 0
	if n := testing.AllocsPerRun(200, func() {
		ix.Match(requests[i%len(requests)], w.holders, out)
		i++
	}); n >= 1 {
		t.Errorf("Match allocates %v times", n)
	}
}

// TestLongChainsAreEvictedFromTheirEnds: what remains of a prompt of 200,000 tokens is its beginning.
func TestLongChainsAreEvictedFromTheirEnds(t *testing.T) {
	const blocks = 12_500
	ix := NewIndex(Options{})
	h := ix.Join()
	w, keys := ix.Writer(h), someKeys(1, blocks)
	var parent Parent
	for at := 0; at < blocks; at += 50 {
		w.Store(kvblock.GPU, 0, parent, named(0, keys[at:at+50]...), keys[at:at+50])
		parent = Parent{named(0, keys[at+49])[0], true}
	}
	ix.SetBudget(ix.Bytes() * 8 / 7 * 9 / 10)
	w.Store(kvblock.GPU, 0, Parent{}, named(0, someKeys(2, 1)...), someKeys(2, 1))
	out := make([]Match, 1)
	ix.Match(keys, []Holder{h}, out)
	n, held := out[0].Blocks(), ix.Held(h)
	if ix.Evicted() == 0 || n < held-8 || n < blocks/2 { // 8: a step of depths, and the other prompt
		t.Errorf("%d blocks match of %d that are held, %d were evicted", n, held, ix.Evicted())
	}
}

func TestABudgetIsKept(t *testing.T) {
	for salt := range uint64(4) {
		t.Run(strconv.FormatUint(salt, 10), func(t *testing.T) { budgetIsKept(t, salt) })
	}
}

func budgetIsKept(t *testing.T, salt uint64) {
	t.Helper()
	const budget = 400 << 10
	ix := newIndex(Options{Budget: budget}, salt)
	plain := New()
	var holders, plainHolders []Holder
	for i := range 4 {
		holders, plainHolders = append(holders, ix.Join()), append(plainHolders, plain.Join())
		fast, slow := ix.Writer(holders[i]), plain.Writer(plainHolders[i])
		for chain := range 20 {
			keys := someKeys(uint64(i*100+chain), 400)
			for _, w := range []Writer{fast, slow} {
				var parent Parent
				for at := 0; at < 400; at += 50 {
					w.Store(kvblock.GPU, 0, parent, named(0, keys[at:at+50]...), keys[at:at+50])
					parent = Parent{named(0, keys[at+49])[0], true}
				}
			}
			if over := ix.Bytes() - budget; over > 0 {
				t.Fatalf("the index takes %d bytes more than its budget", over)
			}
		}
	}
	ix.check(t)
	if ix.Evicted() == 0 {
		t.Fatal("no block was evicted")
	}
	kept := make([]int, 4)
	for i := range holders {
		kept[i] = ix.Held(holders[i])
		for chain := range 20 {
			keys := someKeys(uint64(i*100+chain), 400)
			a, b := make([]Match, 1), make([]Match, 1)
			ix.Match(keys, holders[i:i+1], a)
			plain.Match(keys, plainHolders[i:i+1], b)
			if a[0].Blocks() > b[0].Blocks() {
				t.Errorf("holder %d, chain %d: %d blocks match, it has %d", i, chain, a[0].Blocks(), b[0].Blocks())
			}
			out := make([]Match, 1)
			whole := 0
			for n := range keys {
				if ix.Match(keys[:n+1], holders[i:i+1], out); out[0].Blocks() == n+1 {
					whole++
				}
			}
			if whole != a[0].Blocks() {
				t.Errorf("holder %d, chain %d: blocks are missing before the deepest", i, chain)
			}
		}
	}
	// Each keeps about an equal part, whenever it was written to last.
	for _, n := range kept {
		if n < 1000 || n > 4000 {
			t.Errorf("holders of as many blocks keep %v", kept)
		}
	}
}

// TestGuessesDoNotPushFactsOut guesses far more than the budget, which is nearly full. Guesses keep to their part of it, what
// is beyond is counted, and the index as a whole keeps within the budget.
func TestGuessesDoNotPushFactsOut(t *testing.T) {
	const budget = 200 << 10
	ix := NewIndex(Options{Budget: budget})
	h := ix.Join()
	w, keys := ix.Writer(h), someKeys(1, 1000)
	w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
	var guesses []*Guess
	for i := range 200 {
		guesses = append(guesses, ix.Speculate(h, someKeys(uint64(10+i), 600)))
		w.Store(kvblock.GPU, 0, Parent{}, named(0, keys[:1]...), keys[:1])
	}
	if ix.Evicted() > 0 || ix.Held(h) != 1000 {
		t.Errorf("guesses pushed out %d blocks", ix.Evicted())
	}
	if bytes := ix.GuessBytes(); bytes > budget/guessShare || bytes == 0 || ix.Bytes() > budget {
		t.Errorf("guesses take %d of %d bytes, all %d of %d", bytes, budget/guessShare, ix.Bytes(), budget)
	}
	made := 0
	for _, g := range guesses {
		if g.by != nil {
			made++
		}
		g.Withdraw()
	}
	if refused := ix.Unguessed(); made == 0 || int(refused) != 200-made {
		t.Errorf("%d guesses were made, and %d are counted as refused", made, refused)
	}
	ix.check(t)
	if g := ix.Speculate(h, someKeys(3, 600)); g.by == nil {
		t.Error("no guess is made, though there is room again")
	} else {
		g.Withdraw()
	}
	if ix.guessBytes.Load() != 0 {
		t.Errorf("without guesses, %d bytes are taken for them", ix.guessBytes.Load())
	}
}
