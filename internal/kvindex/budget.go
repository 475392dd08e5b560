package kvindex

import (
	"cmp"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

const (
	// evictionBytes is about what an evicted block gives back.
	evictionBytes = 20
	// minEviction is the least number of blocks evicted at once, because looking for them costs by all a holder has.
	minEviction = 64
)

// guessShare is the part of the budget that guesses can take, as 1/guessShare. The rest is for confirmed blocks, so that
// both together keep within the budget, and a burst of new prompts takes no confirmed block away.
const guessShare = 8

// guessKeyBytes and guessSize are what a guess takes at most for each key, and by itself, where no run is shared.
const guessKeyBytes = 24

// roomFor reports whether another guess about so many keys keeps guesses within their part of the budget, and counts it
// if it does not.
func (ix *Index) roomFor(keys int) bool {
	budget := ix.budget.Load()
	if budget == 0 || ix.guessBytes.Load()+guessSize+guessKeyBytes*int64(keys) <= budget/guessShare {
		return true
	}
	ix.unguessed.Add(1)
	return false
}

// GuessBytes is about the part of Bytes that guesses take.
func (ix *Index) GuessBytes() int64 { return ix.guessBytes.Load() }

// Unguessed is the number of guesses that were not made for lack of memory.
func (ix *Index) Unguessed() uint64 { return ix.unguessed.Load() }

// over is how many bytes the confirmed blocks take beyond their part of the budget.
func (ix *Index) over() int64 {
	budget := ix.budget.Load()
	if budget == 0 {
		return 0
	}
	return ix.Bytes() - ix.guessBytes.Load() - (budget - budget/guessShare)
}

// SetBudget changes what Options.Budget has said. A smaller one is met with the next blocks that are stored.
func (ix *Index) SetBudget(bytes int64) { ix.budget.Store(bytes) }

// balance takes blocks out of the index until it is within its budget: those of the holder longest left alone, the
// deepest first, because a match needs all the blocks before. The caller must not hold the lock of a generation.
func (ix *Index) balance() {
	if ix.over() <= 0 {
		return
	}
	ix.evicting.Lock()
	defer ix.evicting.Unlock()
	tried := map[*generation]bool{}
	for over := ix.over(); over > 0; over = ix.over() {
		l := ix.coldest(tried)
		if l == nil {
			return // what remains is not blocks
		}
		// A little more than is over, so that the next block does not begin it all again.
		if l.evict(ix, int((over+ix.budget.Load()/64)/evictionBytes)) == 0 {
			tried[l] = true
		}
	}
}

// coldest is the least recently used generation that can be written to and is not in but.
func (ix *Index) coldest(but map[*generation]bool) (coldest *generation) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for l := range ix.generations {
		if !but[l] && (coldest == nil || l.used.Load() < coldest.used.Load()) {
			coldest = l
		}
	}
	return coldest
}

// evict takes blocks out of a generation: orphans, and then the deepest. It returns how many.
func (l *generation) evict(ix *Index, want int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.rev.n == 0 {
		return 0
	}
	type deep struct {
		depth uint32
		name  name
	}
	blocks := make([]deep, 0, l.rev.n)
	for i := range l.rev.entries {
		e := &l.rev.entries[i]
		if e.vacant() {
			continue
		}
		d := deep{^uint32(0), name{e.hash, e.group()}}
		if e.at != noSpot {
			d.depth = ix.runs.get(e.at.run()).depth + uint32(e.at.offset())
		}
		blocks = append(blocks, d)
	}
	slices.SortFunc(blocks, func(a, b deep) int { return cmp.Compare(b.depth, a.depth) })
	blocks = blocks[:min(len(blocks), max(want, minEviction))]
	for tier := range kvblock.Tier(kvblock.NumTiers) {
		b := l.begin(ix, tier, 0)
		for _, d := range blocks {
			if b.group != d.name.group {
				b.flush()
				b.group, b.digest = d.name.group, nil
			}
			b.dropAll(d.name.hash)
		}
		b.end()
	}
	l.evicted += len(blocks)
	ix.evicted.Add(uint64(len(blocks)))
	return len(blocks)
}

// dropAll drops all copies of a block in the tier.
func (b *batch) dropAll(hash kvevent.Hash) {
	l := b.generation
	i, ok := l.rev.find(hash, b.group)
	if !ok || l.rev.entries[i].count(b.tier) == 0 {
		return
	}
	delete(l.more, copyName{name{hash, b.group}, b.tier})
	e := &l.rev.entries[i]
	e.info -= (e.count(b.tier) - 1) << countShift[b.tier]
	b.dropAt(i)
}
