package kvindex

import (
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

const (
	// evictionBytes is about the least that an evicted block gives back.
	evictionBytes = 20
	// sharePart of its share, of all that is not for guesses, is left to each holder.
	sharePart = 0.75
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

// holding is what a holder takes: its generation, and its shadow if there is one.
type holding struct {
	generations []*generation
	blocks      int
	bytes       int64
}

// balance takes blocks out of the index until it is within its budget: those of the holder that takes most, the deepest first,
// because a match needs all the blocks before. As long as the sum of all is too much, that holder takes more than its equal
// share. A holder is not cut below sharePart of its share, so that one that stays within it loses nothing, whatever others announce.
// The caller must not hold the lock of a generation.
func (ix *Index) balance() {
	if ix.over() <= 0 {
		return
	}
	ix.evicting.Lock()
	defer ix.evicting.Unlock()
	if ix.over() > 0 {
		ix.awaitSweep() // what has ended is of no holder
	}
	if ix.over() <= 0 {
		return
	}
	holdings := ix.holdings()
	ix.awaitSweep() // what has ended before is in none of them
	over, budget := ix.over(), ix.budget.Load()
	share := int64(sharePart * float64(budget-budget/guessShare) / float64(max(1, len(holdings))))
	for ; over > 0; over = ix.over() {
		var most *holding
		for _, h := range holdings {
			if h.blocks > 0 && (most == nil || h.bytes > most.bytes) {
				most = h
			}
		}
		if most == nil {
			return // what remains is not blocks
		}
		// A little more than is over, so that the next block does not begin it all again.
		bytes := over + budget/32
		if most.bytes > share {
			bytes = min(bytes, most.bytes-share)
		}
		each := max(evictionBytes, most.bytes/int64(most.blocks))
		n := 0
		for _, l := range most.generations {
			n += l.evict(ix, int(bytes/each)/len(most.generations))
		}
		if most.blocks -= n; n == 0 {
			most.blocks = 0
			ix.awaitSweep() // its generations can have ended
		}
		most.bytes -= int64(n) * each
	}
}

// holdings measures what each holder takes. What several have of a run is divided among them. It visits every run.
func (ix *Index) holdings() map[Holder]*holding {
	ix.mu.Lock()
	all := map[Holder]*holding{}
	bySlot := make([]*holding, ix.slots.Load()+1)
	for l := range ix.generations {
		h := all[l.holder]
		if h == nil {
			h = &holding{}
			all[l.holder] = h
		}
		h.generations = append(h.generations, l)
		bySlot[l.slot] = h
	}
	ix.mu.Unlock()
	for _, h := range all {
		for _, l := range h.generations {
			l.mu.Lock()
			h.blocks += l.rev.n + l.windows.Load().len()
			h.bytes += l.own()
			l.mu.Unlock()
		}
	}
	for _, chunk := range *ix.runs.chunks.Load() {
		if chunk == nil {
			continue
		}
		for i := range chunk.runs {
			if r := chunk.runs[i].Load(); r != nil {
				r.divide(bySlot)
			}
		}
	}
	return all
}

// own is what a locked generation takes besides its parts of runs.
func (l *generation) own() int64 {
	return generationBytes + l.rev.bytes() + int64(len(l.digests))*digestBytes + int64(len(l.orphans))*orphanBytes +
		int64(l.windows.Load().len())*windowBlockBytes
}

// runEntry is about what a run takes in the table of heads and that of runs.
const runEntry = 48

// divide adds to each slot's holder its cells of the run, and a part of the rest.
func (r *run) divide(bySlot []*holding) {
	slots, last := int64(0), uint32(0) // no slot is 0
	for i := range r.cells {
		header := atomic.LoadUint64(&r.cells[i])
		if slot := uint32(header >> slotShift); slot != last && tierOf(header) != tierGuess { // cells are sorted by slot
			slots, last = slots+1, slot
		}
	}
	if slots == 0 {
		return
	}
	cell := 8 * (1 + int64(r.width))
	part := (runSize + runEntry + 8*int64(len(r.keys))) / slots
	last = 0
	for i := range r.cells {
		header := atomic.LoadUint64(&r.cells[i])
		slot := uint32(header >> slotShift)
		if tierOf(header) == tierGuess || int(slot) >= len(bySlot) || bySlot[slot] == nil {
			continue
		}
		bySlot[slot].bytes += cell
		if slot != last {
			bySlot[slot].bytes += part
			last = slot
		}
	}
}

// awaitSweep waits until all generations that have ended by now have been given back.
func (ix *Index) awaitSweep() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for until := ix.swept + uint64(len(ix.retired)) + 1; ix.sweeping && ix.swept < until; {
		ix.settled.Wait()
	}
}

// depths is how many depths are distinguished when the deepest blocks are looked for. In longer chains neighbouring ones are alike.
const depths = 4096

// depth is that of a block's key, in steps of so many keys, and greatest for orphans.
func (e *entry) depth(ix *Index, step int) int {
	if e.at == noSpot {
		return depths - 1
	}
	return min((int(ix.runs.get(e.at.run()).depth)+e.at.offset())/step, depths-2)
}

// evict takes blocks out of a generation: those of windows if they are most, orphans, and then the deepest. It returns how many.
func (l *generation) evict(ix *Index, want int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	want = max(want, minEviction)
	if l.closed {
		return 0
	}
	n := 0
	if ws := l.windows.Load(); ws.len() > l.rev.n {
		n = ws.evict(want)
	} else if l.rev.n > 0 {
		n = l.evictDeepest(ix, want)
	}
	l.evicted += n
	ix.evicted.Add(uint64(n))
	return n
}

// evictDeepest takes so many blocks out of a locked generation.
func (l *generation) evictDeepest(ix *Index, want int) int {
	step := 1
	for i := range l.rev.entries {
		for e := &l.rev.entries[i]; !e.vacant() && e.depth(ix, step) == depths-2; {
			step *= 2
		}
	}
	var at [depths]int32
	for i := range l.rev.entries {
		if e := &l.rev.entries[i]; !e.vacant() {
			at[e.depth(ix, step)]++
		}
	}
	want = min(want, l.rev.n)
	least, left := depths, want // all blocks deeper than least go, and left of those of its depth
	for left > 0 {
		if least--; int(at[least]) >= left {
			break
		}
		left -= int(at[least])
	}
	var blocks [kvblock.NumTiers][]name // with copies in the tier
	blocks[kvblock.GPU] = make([]name, 0, want)
	for i := range l.rev.entries {
		e := &l.rev.entries[i]
		if e.vacant() {
			continue
		}
		depth := e.depth(ix, step)
		if depth == least && left > 0 {
			left--
		} else if depth <= least {
			continue
		}
		for tier := range blocks {
			if e.count(kvblock.Tier(tier)) > 0 {
				blocks[tier] = append(blocks[tier], name{e.hash, e.group()})
			}
		}
	}
	for tier := range kvblock.Tier(kvblock.NumTiers) {
		if len(blocks[tier]) == 0 {
			continue
		}
		b := l.begin(ix, tier, 0)
		for _, block := range blocks[tier] {
			if b.group != block.group {
				b.flush()
				b.group, b.digest = block.group, nil
			}
			b.dropAll(block.hash)
		}
		b.end()
	}
	return want
}

// evict takes so many blocks out of the windows, of any depth.
func (w *windows) evict(want int) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.groups {
		g := &w.groups[i]
		for hash, b := range g.blocks {
			if n == want {
				return n
			}
			b.copies = [kvblock.NumTiers]uint16{}
			w.put(g, hash, b)
			n++
		}
	}
	return n
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
