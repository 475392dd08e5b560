package events

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/test/race"
)

// reporting is an engine's block pool, reduced to what decides its events: prompts of whole blocks. All but the last block
// can be found in the cache, and the engine announces them again when it is asked to.
type reporting struct {
	pool   *enginemodel.Pool
	blocks map[kvevent.Hash][]kvevent.Hash // the chain up to a block
	batch  kvevent.Batch
}

// serve computes a prompt, the tokens of whose blocks are numbers.
func (r *reporting) serve(prompt []uint32, report bool) {
	r.batch.Events = nil
	hashes := make([]kvevent.Hash, len(prompt))
	last := kvevent.Hash(1)
	for i, n := range prompt {
		last = last*1_000_003 + kvevent.Hash(n)
		hashes[i] = last
		r.blocks[last] = slices.Clone(hashes[:i+1])
	}
	var used []enginemodel.Block
	hit := 0
	for ; hit < len(prompt)-1; hit++ {
		b, ok := r.pool.Lookup(enginemodel.Hash(hashes[hit]))
		if !ok {
			break
		}
		r.pool.Touch(b)
		used = append(used, b)
	}
	if report && hit > 0 {
		r.stored(prompt, hashes, 0, hit)
	}
	for i := hit; i < len(prompt); i++ {
		b, evicted, ok := r.pool.Allocate()
		if !ok {
			break
		}
		if evicted != 0 {
			r.batch.Events = append(r.batch.Events, removed(kvevent.Hash(evicted)))
		}
		r.pool.Commit(b, enginemodel.Hash(hashes[i]))
		used = append(used, b)
	}
	r.stored(prompt, hashes, hit, len(used))
	r.pool.Release(used)
}

func (r *reporting) stored(prompt []uint32, hashes []kvevent.Hash, from, to int) {
	e := kvevent.Event{Kind: kvevent.Stored, Hashes: hashes[from:to], BlockSize: blockTokens, HasParent: from > 0}
	if from > 0 {
		e.Parent = hashes[from-1]
	}
	for _, n := range prompt[from:to] {
		e.Tokens = append(e.Tokens, slices.Repeat([]uint32{n}, blockTokens)...)
	}
	r.batch.Events = append(r.batch.Events, e)
}

// compare reports how many blocks a mirror has too much, how many it lacks, and how many copies of blocks it does not
// count.
func (r *reporting) compare(w kvindex.Writer) (surplus, missing, uncounted int) {
	have := map[kvevent.Hash]int{}
	w.Each(func(b kvindex.Block) bool {
		have[b.Hash] = b.Copies[kvblock.GPU]
		if r.pool.Copies(enginemodel.Hash(b.Hash)) == 0 {
			surplus++
		}
		return true
	})
	for h, copies := range r.pool.All {
		if have[kvevent.Hash(h)] == 0 {
			missing++
		}
		uncounted += max(0, copies-have[kvevent.Hash(h)])
	}
	return surplus, missing, uncounted
}

// TestReportsOfCachedBlocksPlantNone: a client that asks for a full report with each of its requests
// (kv_cache_report_mode) makes the index believe in no block that the engine has lost.
func TestReportsOfCachedBlocksPlantNone(t *testing.T) {
	const blocks = 64
	rounds := 6000
	if race.Enabled { // there is one goroutine
		rounds /= 10
	}
	for name, percent := range map[string]int{"no reports": 0, "some reports": 10, "every request reports": 100} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			r := &reporting{pool: enginemodel.NewPool(blocks - 1), blocks: map[kvevent.Hash][]kvevent.Hash{}}
			m, x := testMirror(Config{})
			m.feed.Capacity = func() int { return blocks }
			most, worst := 0, 0
			for round := range rounds {
				prompt := make([]uint32, 1+rng.IntN(12))
				for i := range prompt {
					prompt[i] = uint32(1 + rng.IntN(2))
				}
				r.serve(prompt, rng.IntN(100) < percent)
				m.apply(&r.batch)
				surplus, missing, uncounted := r.compare(x.Writer)
				// Blocks without content, and copies that were struck off, leave room for copies that do not exist.
				if empty := r.pool.Len() - r.pool.Cached(); surplus > empty+uncounted {
					t.Fatalf("after %d requests the index has %d blocks too much, with %d empty ones and %d not counted", round+1, surplus, empty, uncounted)
				}
				most, worst = max(most, missing), max(worst, surplus)
				if percent == 0 && missing > 0 {
					t.Fatalf("after %d requests the index lacks %d blocks", round+1, missing)
				}
			}
			struck := m.stats.Struck.Load()
			if (struck > 0) != (percent > 0) {
				t.Errorf("%d copies were struck off", struck)
			}
			t.Logf("%d copies struck off, at most %d of %d blocks missing and %d too much", struck, most, blocks, worst)
			if most > blocks/8 || worst > blocks/8 {
				t.Errorf("the index lacked %d of %d blocks at times, and had %d too much", most, blocks, worst)
			}
		})
	}
}

// TestReportsAfterALostHistoryPlantNone: as long as the history has gaps, requests that ask for reports make blocks known that it
// hides, also several requests for the same ones, and plant none: hidden blocks are missing in the sum of copies, which therefore
// shows nothing.
func TestReportsAfterALostHistoryPlantNone(t *testing.T) {
	const blocks = 64
	lives := uint64(300)
	if race.Enabled { // there is one goroutine
		lives = 30
	}
	for _, state := range []State{Unverified, Degraded} {
		learned := 0
		for seed := range lives {
			rng := rand.New(rand.NewPCG(seed, 6))
			r := &reporting{pool: enginemodel.NewPool(blocks - 1), blocks: map[kvevent.Hash][]kvevent.Hash{}}
			m, x := testMirror(Config{})
			m.feed.Capacity = func() int { return blocks }
			request := func() []uint32 {
				prompt := make([]uint32, 12)
				for i := range prompt {
					prompt[i] = 1
				}
				prompt[rng.IntN(2)] = uint32(2 + rng.IntN(4))
				return prompt
			}
			for range 30 { // nothing of this is known
				r.serve(request(), false)
			}
			_, before, _ := r.compare(x.Writer)
			marked := rng.IntN(8) // that there are gaps shows at the end of a replay
			for n := range 40 {
				if n == marked {
					m.Mark(Position{}, state)
				}
				prompt, reports := request(), rng.IntN(3) > 0
				for range 1 + rng.IntN(3) { // at once
					r.serve(prompt, reports)
					m.apply(&r.batch)
				}
				if surplus, _, _ := r.compare(x.Writer); surplus > 0 && n >= marked {
					t.Fatalf("%v, seed %d: after %d requests the index has %d blocks too much", state, seed, n+1, surplus)
				}
			}
			_, after, _ := r.compare(x.Writer)
			learned += before - after
		}
		if learned < int(lives)*blocks/2 {
			t.Errorf("%v: in %d lives %d blocks were learned, want half of each cache or more", state, lives, learned)
		}
	}
}

// TestAGapStrikesCopiesFromTheGauges: with a gap, a block whose last copy is uncertain is held no longer, and the gauges
// say so.
func TestAGapStrikesCopiesFromTheGauges(t *testing.T) {
	for _, state := range []State{Unverified, Degraded} {
		m, x := testMirror(Config{})
		m.Begin(false)
		m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(0, 1, 2), chain(0, 1, 2), removed(1, 2)}})
		m.Mark(Position{}, state)
		if got := x.snapshot(); len(got) != 0 {
			t.Errorf("%v: %d blocks are held, not 0", state, len(got))
		}
		check(t, m, x)
	}
}

// Without the engine's size copies cannot be recognized: every copy counts.
func TestCopiesCountWhereTheSizeOfTheEngineIsNotKnown(t *testing.T) {
	m, x := testMirror(Config{})
	m.feed.Capacity = func() int { return 0 }
	m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(0, 1, 2), chain(0, 1, 2), removed(1, 2)}})
	if got := x.snapshot(); len(got) != 2 {
		t.Errorf("%d blocks are held, not 2", len(got))
	}
}
