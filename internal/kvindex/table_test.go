package kvindex

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// model is the index in its simplest form: the number of copies of each block by holder and tier.
type model struct {
	copies  map[Holder]map[kvblock.Key]*[kvblock.NumTiers]int
	guesses map[Holder]map[kvblock.Key]int
}

func newModel() *model {
	return &model{map[Holder]map[kvblock.Key]*[kvblock.NumTiers]int{}, map[Holder]map[kvblock.Key]int{}}
}

func (m *model) join(h Holder) {
	m.copies[h] = map[kvblock.Key]*[kvblock.NumTiers]int{}
	m.guesses[h] = map[kvblock.Key]int{}
}

func (m *model) store(h Holder, tier kvblock.Tier, key kvblock.Key, delta int) {
	blocks, ok := m.copies[h]
	if !ok {
		return
	}
	if blocks[key] == nil {
		blocks[key] = &[kvblock.NumTiers]int{}
	}
	blocks[key][tier] = max(0, blocks[key][tier]+delta)
}

func (m *model) match(keys []kvblock.Key, h Holder) Match {
	var out Match
	for _, key := range keys {
		tier := -1
		if n := m.copies[h][key]; n != nil {
			for i := kvblock.NumTiers - 1; i >= 0; i-- {
				if n[i] > 0 {
					tier = i
				}
			}
		}
		switch {
		case tier >= 0:
			out.Tiers[tier]++
		case m.guesses[h][key] > 0:
			out.Speculative++
		default:
			return out
		}
	}
	return out
}

type modelGuess struct {
	guess      *Guess
	holder     Holder
	generation int
	keys       []kvblock.Key
}

// TestTableAgreesWithTheModelUnderRandomOperations drives table and model with the same operations, over few keys so
// that copies, holes, tiers, clears and guesses meet.
func TestTableAgreesWithTheModelUnderRandomOperations(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { runModel(t, seed) })
	}
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	table, truth := New(), newModel()
	generations := map[Holder]int{}
	var holders []Holder
	var guesses []modelGuess
	for range 4 {
		h := table.Join()
		truth.join(h)
		holders = append(holders, h)
	}
	keys := make([]kvblock.Key, 12)
	for i := range keys {
		keys[i] = kvblock.Key(i + 1)
	}
	for step := range 4000 {
		h := holders[rng.IntN(len(holders))]
		key := keys[rng.IntN(len(keys))]
		tier := kvblock.Tier(rng.IntN(kvblock.NumTiers))
		switch op := rng.IntN(100); {
		case op < 50:
			table.Store(h, tier, key)
			truth.store(h, tier, key, 1)
		case op < 80:
			table.Drop(h, tier, key)
			truth.store(h, tier, key, -1)
		case op < 88:
			from := rng.IntN(len(keys))
			g := modelGuess{holder: h, generation: generations[h], keys: keys[from : from+rng.IntN(len(keys)-from)]}
			g.guess = table.Speculate(h, g.keys)
			for _, k := range g.keys {
				if truth.guesses[h] != nil {
					truth.guesses[h][k]++
				}
			}
			guesses = append(guesses, g)
		case op < 96 && len(guesses) > 0:
			i := rng.IntN(len(guesses))
			g := guesses[i]
			g.guess.Withdraw()
			g.guess.Withdraw() // once is enough
			if g.generation == generations[g.holder] && truth.guesses[g.holder] != nil {
				for _, k := range g.keys {
					truth.guesses[g.holder][k]--
				}
			}
			guesses = append(guesses[:i], guesses[i+1:]...)
		case op < 98:
			table.Clear(h)
			if truth.copies[h] != nil {
				truth.join(h)
			}
			generations[h]++
		case op == 98 && step > 2000:
			table.Leave(h)
			delete(truth.copies, h)
			delete(truth.guesses, h)
		}
		got := make([]Match, len(holders))
		table.Match(keys, holders, got)
		for i, h := range holders {
			if want := truth.match(keys, h); got[i] != want {
				t.Fatalf("step %d holder %d: %v", step, h, cmp.Diff(want, got[i]))
			}
		}
	}
	for _, g := range guesses {
		g.guess.Withdraw()
	}
	for _, h := range holders {
		table.Leave(h)
	}
	if distinct, held, speculative := table.Size(); distinct+held+speculative != 0 {
		t.Errorf("after everyone has left: %d blocks, %d held, %d speculative; want none", distinct, held, speculative)
	}
	if len(table.held) != 0 {
		t.Errorf("after everyone has left: %d slots remain", len(table.held))
	}
}

func TestAHoleEndsTheMatch(t *testing.T) {
	table := New()
	h := table.Join()
	keys := []kvblock.Key{1, 2, 3, 4, 5, 6}
	for _, key := range keys {
		table.Store(h, kvblock.GPU, key)
	}
	table.Drop(h, kvblock.GPU, 4)
	out := make([]Match, 1)
	table.Match(keys, []Holder{h}, out)
	if got := out[0].Blocks(); got != 3 {
		t.Errorf("match with a hole at block 3 = %d blocks, want 3", got)
	}
}

func TestEveryHolderOfABlockIsRemembered(t *testing.T) {
	table := New()
	holders := make([]Holder, 300)
	for i := range holders {
		holders[i] = table.Join()
		table.Store(holders[i], kvblock.GPU, 7)
	}
	out := make([]Match, len(holders))
	table.Match([]kvblock.Key{7}, holders, out)
	for i := range out {
		if out[i].Blocks() != 1 {
			t.Fatalf("holder %d is forgotten", i)
		}
	}
}

func TestADuplicateSurvivesTheRemovalOfOneCopy(t *testing.T) {
	table := New()
	h := table.Join()
	table.Store(h, kvblock.GPU, 7)
	table.Store(h, kvblock.GPU, 7)
	out := make([]Match, 1)
	table.Drop(h, kvblock.GPU, 7)
	if table.Match([]kvblock.Key{7}, []Holder{h}, out); out[0].Blocks() != 1 {
		t.Error("the second copy was forgotten with the first")
	}
	table.Drop(h, kvblock.GPU, 7)
	if table.Match([]kvblock.Key{7}, []Holder{h}, out); out[0].Blocks() != 0 {
		t.Error("the block outlived its last copy")
	}
}

func TestALateEventDoesNotBringADeadHolderBack(t *testing.T) {
	table := New()
	h := table.Join()
	table.Store(h, kvblock.GPU, 1)
	table.Leave(h)
	table.Store(h, kvblock.GPU, 1)
	table.Speculate(h, []kvblock.Key{1})
	out := make([]Match, 1)
	if table.Match([]kvblock.Key{1}, []Holder{h}, out); out[0].Blocks() != 0 {
		t.Error("a holder that has left still matches")
	}
	if distinct, held, speculative := table.Size(); distinct+held+speculative != 0 {
		t.Error("a late write for a holder that has left takes memory")
	}
}

func TestSpeculationNeverChangesFacts(t *testing.T) {
	table := New()
	h := table.Join()
	table.Store(h, kvblock.CPU, 1)
	guess := table.Speculate(h, []kvblock.Key{1, 2})
	out := make([]Match, 1)
	table.Match([]kvblock.Key{1, 2}, []Holder{h}, out)
	want := Match{Speculative: 1}
	want.Tiers[kvblock.CPU] = 1
	if out[0] != want {
		t.Errorf("match = %+v, want %+v", out[0], want)
	}
	guess.Withdraw()
	want.Speculative = 0
	if table.Match([]kvblock.Key{1, 2}, []Holder{h}, out); out[0] != want {
		t.Errorf("match after withdrawal = %+v, want %+v", out[0], want)
	}
}

func TestReadersAndWritersDoNotRace(t *testing.T) {
	table := New()
	holders := []Holder{table.Join(), table.Join()}
	keys := []kvblock.Key{1, 2, 3, 4}
	var wg sync.WaitGroup
	for _, h := range holders {
		wg.Go(func() {
			for i := range 500 {
				for _, key := range keys {
					table.Store(h, kvblock.GPU, key)
				}
				g := table.Speculate(h, keys)
				if i%50 == 0 {
					table.Clear(h)
				}
				g.Withdraw()
			}
		})
	}
	wg.Go(func() {
		out := make([]Match, len(holders))
		for range 1000 {
			table.Match(keys, holders, out)
			for i := range out {
				if out[i].Blocks() > len(keys) {
					t.Error("a match is longer than the request")
				}
			}
		}
	})
	wg.Wait()
}

func TestMatchDoesNotAllocate(t *testing.T) {
	table := New()
	h := table.Join()
	keys := make([]kvblock.Key, 64)
	for i := range keys {
		keys[i] = kvblock.Key(i + 1)
		table.Store(h, kvblock.GPU, keys[i])
	}
	out := make([]Match, 1)
	if n := testing.AllocsPerRun(100, func() { table.Match(keys, []Holder{h}, out) }); n != 0 {
		t.Errorf("Match allocates %v times", n)
	}
}
