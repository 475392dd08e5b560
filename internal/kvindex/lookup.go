package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// lookup is what one Match needs, from a pool. It remembers the holders of its last Match: requests nearly always ask
// for the same ones.
type lookup struct {
	holders []Holder
	turn    uint64 // Index.turns when holders were looked up
	reused  uint64 // Index.reused when the lookup began
	// words by holder, 0 for those that had left.
	words   []uint64
	orphans bool // some holder has orphans
	windows bool // some holder has windows
	// repeated are holders that occur twice: | place 32 | first place 32 |
	repeated []uint64
	// first by slot: 1 + the place in holders of the slot's holder, 0 for slots not asked for.
	first []uint32
	// length of the match so far by 1 + place in holders, and never for place 0.
	length []uint32
}

const never = ^uint32(0)

// Match implements Reader.
//
// What it finds was true at some instant while it ran, block by block.
func (ix *Index) Match(keys []kvblock.Key, holders []Holder, out []Match) {
	out = out[:len(holders)]
	clear(out)
	l := ix.lookups.Get().(*lookup)
	l.begin(ix, holders)
	l.walk(ix, keys, out)
	l.end(ix, out)
	ix.lookups.Put(l)
}

// step finds the run that the first key heads, and how many of the keys are in it.
func (ix *Index) step(keys []kvblock.Key) (r *run, n int) {
	for range 4 {
		id := ix.heads.find(keys[0])
		if id == 0 {
			return nil, 0
		}
		if r = ix.runs.get(id); r != nil {
			if n = common(r.keys[:r.n.Load()], keys); n > 0 {
				return r, n
			}
		}
		// The run was deleted since; another one might have taken its number.
	}
	return nil, 0
}

// common is how many leading keys two chains share. All of them are compared: keys that a pod reports need not be chained, and
// a run with a foreign key among real ones must not hide what other pods have.
func common(a, b []kvblock.Key) int {
	n := min(len(a), len(b))
	if slices.Equal(a[:n], b[:n]) { // nearly always, and compared as one piece of memory
		return n
	}
	i := 0
	for a[i] == b[i] {
		i++
	}
	return i
}

// begin records the requested slots.
func (l *lookup) begin(ix *Index, holders []Holder) {
	l.reused = ix.reused.Load()
	if turn := ix.turns.Load(); turn != l.turn || !slices.Equal(holders, l.holders) {
		l.ask(ix, holders, turn)
	}
	clear(l.length)
	l.length[0] = never
}

// walk follows the keys from run to run, as long as some holder has them all.
func (l *lookup) walk(ix *Index, keys []kvblock.Key, out []Match) {
	for at, alive := 0, 1; at < len(keys) && alive > 0; {
		r, n := ix.step(keys[at:])
		if n == 0 {
			break
		}
		alive = l.credit(r, uint32(at), uint32(n), out)
		at += n
	}
	if l.orphans {
		ix.matchOrphans(l, keys, out)
	}
	if l.windows {
		ix.matchWindows(l, keys, out)
	}
}

// end makes sure that what was read of a slot was its holder's: slots might have changed hands meanwhile.
func (l *lookup) end(ix *Index, out []Match) {
	for _, pair := range l.repeated {
		out[pair>>32] = out[uint32(pair)]
	}
	if ix.reused.Load() == l.reused {
		return
	}
	for i, h := range l.holders {
		if now := ix.word(h); (now^l.words[i])&^(orphansBit|windowsBit) != 0 {
			out[i] = Match{}
		}
	}
}

// ask looks holders up.
func (l *lookup) ask(ix *Index, holders []Holder, turn uint64) {
	for _, word := range l.words {
		l.first[uint32(word)] = 0
	}
	if slots := int(ix.slots.Load()) + 1; len(l.first) < slots {
		l.first = make([]uint32, slots+slots/4+64)
	}
	l.holders = append(l.holders[:0], holders...)
	l.turn, l.orphans, l.windows = turn, false, false
	l.words, l.repeated = l.words[:0], l.repeated[:0]
	l.length = slices.Grow(l.length[:0], len(holders)+1)[:len(holders)+1]
	for i, h := range holders {
		word := ix.word(h)
		slot := uint32(word)
		if int(slot) >= len(l.first) {
			word, slot = 0, 0 // a generation that has just begun, with nothing in it
		}
		l.words = append(l.words, word)
		switch {
		case word == 0: // it has left
		case l.first[slot] != 0:
			l.repeated = append(l.repeated, uint64(i)<<32|uint64(l.first[slot]-1))
		default:
			l.first[slot] = uint32(i) + 1
			l.orphans = l.orphans || word&orphansBit != 0
			l.windows = l.windows || word&windowsBit != 0
		}
	}
}

// credit extends the matches that reach block at by the blocks that their holders have of the n blocks from there on, which
// are the first of a run. It returns how many have them all.
func (l *lookup) credit(r *run, at, n uint32, out []Match) (alive int) {
	cells, first, length := r.cells, l.first, l.length
	for i := 0; i < len(cells); i++ {
		header := atomic.LoadUint64(&cells[i])
		slot := header >> slotShift
		if slot >= uint64(len(first)) {
			break // cells are sorted
		}
		place := first[slot]
		if length[place] != at {
			continue // not asked for, or the match ended before
		}
		ones := min(uint32(header&onesMask), n)
		if header&(1<<slotShift-1<<tierShift) == 0 && (ones == n || !another(cells, i, slot)) {
			out[place-1].Tiers[kvblock.GPU] += ones
		} else {
			to := i + 1
			for to < len(cells) && atomic.LoadUint64(&cells[to])>>slotShift == slot {
				to++
			}
			ones = r.creditTiers(i, to, n, &out[place-1])
			i = to - 1
		}
		length[place] = at + ones
		if ones == n {
			alive++
		}
	}
	return alive
}

// another reports whether the next cell is of the same slot, and has something in it.
func another(cells []uint64, i int, slot uint64) bool {
	if i+1 == len(cells) {
		return false
	}
	next := atomic.LoadUint64(&cells[i+1])
	return next>>slotShift == slot && !idle(next)
}

// creditTiers is how many of the first n blocks of the run a slot has without a gap. It counts each for the fastest
// tier that has it. Cells [from, to) are all that the slot has, fastest tier first.
func (r *run) creditTiers(from, to int, n uint32, out *Match) uint32 {
	var masks [kvblock.NumTiers + 1]mask
	var all mask
	for i := from; i < to; i++ {
		m := &masks[tierOf(atomic.LoadUint64(&r.cells[i]))]
		*m = r.load(i)
		for j := range m {
			m[j] &^= all[j]
			all[j] |= m[j]
		}
	}
	ones := min(all.ones(), int(n))
	covered := stretchMask(0, ones)
	for tier := range masks {
		m := &masks[tier]
		for j := range m {
			m[j] &= covered[j]
		}
		if tier == int(tierGuess) {
			out.Speculative += uint32(m.blocks())
		} else {
			out.Tiers[tier] += uint32(m.blocks())
		}
	}
	return uint32(ones)
}

// matchOrphans checks again at the holders that have orphans: where the next block is one, and where a block that has its
// place in a lower tier can be one in a faster tier, by another name.
func (ix *Index) matchOrphans(l *lookup, keys []kvblock.Key, out []Match) {
	for i, word := range l.words {
		if word&orphansBit == 0 {
			continue
		}
		n := out[i].Blocks()
		again := int(out[i].Tiers[kvblock.GPU]) < n
		if !again && n < len(keys) {
			_, again = ix.orphans.nearest(keys[n], uint32(word))
		}
		if again {
			out[i] = ix.matchSlowly(uint32(word), keys)
		}
	}
}

// matchSlowly is the match of one slot, block by block, with orphans.
func (ix *Index) matchSlowly(slot uint32, keys []kvblock.Key) (out Match) {
	var r *run
	var in, from int // blocks in r that are the request's, and where in the request they begin
	for i, key := range keys {
		if i >= from+in {
			r, in = ix.step(keys[i:])
			if from = i; in == 0 {
				in = 1 // no holder has it, except as an orphan
			}
		}
		tier, ok := uint8(0), false
		if r != nil {
			tier, ok = r.nearest(slot, i-from)
		}
		if !ok || tier != uint8(kvblock.GPU) {
			if t, is := ix.orphans.nearest(key, slot); is && (!ok || uint8(t) < tier) {
				tier, ok = uint8(t), true
			}
		}
		switch {
		case !ok:
			return out
		case tier == tierGuess:
			out.Speculative++
		default:
			out.Tiers[tier]++
		}
	}
	return out
}

// nearest is the fastest tier in which a slot has a block of the run.
func (r *run) nearest(slot uint32, offset int) (tier uint8, ok bool) {
	for i, _ := r.cellOf(slot, 0); i < len(r.cells); i++ {
		header := atomic.LoadUint64(&r.cells[i])
		if uint32(header>>slotShift) != slot {
			break
		}
		if m := r.load(i); m.has(offset) {
			return tierOf(header), true
		}
	}
	return 0, false
}
