package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// lookup is what one Match needs, from a pool.
type lookup struct {
	// stamp tells this lookup's entries of state from those of earlier ones.
	stamp uint32
	// state by slot: | stamp 32 | length of the match so far 32 |
	state []uint64
	// index by slot: where in holders the slot's first holder is.
	index []uint32
	// words by holder, as they were at the beginning; 0 for those that had left.
	words []uint64
	// mixed says that some match has blocks that are not on the GPU. strays says that some holder has strays.
	mixed, strays bool
}

var lookups = sync.Pool{New: func() any { return &lookup{} }}

// Match implements Reader.
//
// What it finds was true at some instant while it ran, block by block.
func (ix *Index) Match(keys []kvblock.Key, holders []Holder, out []Match) {
	out = out[:len(holders)]
	l := lookups.Get().(*lookup)
	reused := ix.reused.Load()
	alive := l.begin(ix, holders, out)
	for at := 0; at < len(keys) && alive > 0; {
		r, n := ix.step(keys[at:])
		if n == 0 {
			break
		}
		if r.lower {
			alive = l.creditMixed(r, uint32(at), uint32(n), out)
		} else {
			alive = l.credit(r, uint32(at), uint32(n))
		}
		at += n
	}
	l.finish(out)
	if l.strays {
		ix.matchStrays(l, keys, out)
	}
	if ix.reused.Load() != reused {
		// A slot may have changed hands: what was read of it may be another holder's.
		for i, h := range holders {
			if now := ix.word(h); (now^l.words[i])&^straysBit != 0 {
				out[i] = Match{}
			}
		}
	}
	lookups.Put(l)
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
		// The run has gone since; another one may have come.
	}
	return nil, 0
}

// common is how many leading keys two chains share. Keys are chained, so that where one is equal all before it are.
func common(a, b []kvblock.Key) int {
	n := min(len(a), len(b))
	if n == 0 || a[n-1] == b[n-1] {
		return n
	}
	lo, hi := 0, n-1 // a[:lo] is common, a[hi] is not
	for lo < hi {
		if mid := (lo + hi) / 2; a[mid] == b[mid] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// begin notes whose slots are asked for. It returns how many holders there are.
func (l *lookup) begin(ix *Index, holders []Holder, out []Match) (alive int) {
	if slots := int(ix.slots.Load()) + 1; len(l.state) < slots {
		l.state = make([]uint64, slots+slots/4+64)
		l.index = make([]uint32, len(l.state))
		l.stamp = 0
	}
	if l.stamp++; l.stamp == 0 {
		clear(l.state)
		l.stamp = 1
	}
	if cap(l.words) < len(holders) {
		l.words = make([]uint64, len(holders)+len(holders)/4+16)
	}
	words := l.words[:len(holders)]
	l.words, l.mixed, l.strays = words, false, false
	fresh := uint64(l.stamp) << 32
	state, index := l.state, l.index[:len(l.state)]
	for i, h := range holders {
		out[i] = Match{}
		word := ix.word(h)
		words[i] = word
		slot := uint32(word)
		if word == 0 || uint64(slot) >= uint64(len(state)) {
			words[i] = 0 // it has left, or come since
			continue
		}
		if word&straysBit != 0 {
			l.strays = true
		}
		if state[slot] != fresh {
			state[slot] = fresh
			index[slot] = uint32(i)
			alive++
		}
	}
	return alive
}

// credit lengthens the matches that have come as far as block at by what their holders have of the n blocks from there
// on, which are the first of a run. All is on the GPU. It returns how many have it all.
func (l *lookup) credit(r *run, at, n uint32) (alive int) {
	want := uint64(l.stamp)<<32 | uint64(at)
	state, cells, step := l.state, r.cells, int(r.width)+1
	for ; len(cells) >= step; cells = cells[step:] {
		slot := cells[0] >> 8
		if slot >= uint64(len(state)) || state[slot] != want {
			continue
		}
		ones := min(leadingOnes(cells[1:step]), n)
		state[slot] = want + uint64(ones)
		if ones == n {
			alive++
		}
	}
	return alive
}

func leadingOnes(words []uint64) (n uint32) {
	for i := range words {
		if w := atomic.LoadUint64(&words[i]); w != ^uint64(0) {
			return n + uint32(bits.TrailingZeros64(^w))
		}
		n += 64
	}
	return n
}

// creditMixed is credit for runs of which someone has blocks in other tiers, or is assumed to have.
func (l *lookup) creditMixed(r *run, at, n uint32, out []Match) (alive int) {
	want := uint64(l.stamp)<<32 | uint64(at)
	state, cells, step := l.state, r.cells, int(r.width)+1
	for from := 0; from < len(cells); {
		slot, to := cells[from]>>8, from+step
		for to < len(cells) && cells[to]>>8 == slot {
			to += step
		}
		if slot < uint64(len(state)) && state[slot] == want {
			var ones uint32
			if uint8(cells[from]) == uint8(kvblock.GPU) {
				ones = min(leadingOnes(cells[from+1:from+step]), n)
			}
			if ones < n && (to-from > step || uint8(cells[from]) != uint8(kvblock.GPU)) {
				l.mixed = true
				ones = creditTiers(cells[from:to], step, n, &out[l.index[slot]])
			}
			state[slot] = want + uint64(ones)
			if ones == n {
				alive++
			}
		}
		from = to
	}
	return alive
}

// creditTiers is how many of the first n blocks of a run a slot has without a gap. It counts those that are not on the
// GPU by the fastest tier that has them. cells are all the slot has, fastest tier first.
func creditTiers(cells []uint64, step int, n uint32, out *Match) uint32 {
	var masks [kvblock.NumTiers + 1]mask
	var all mask
	for at := 0; at < len(cells); at += step {
		m := &masks[uint8(cells[at])]
		for i := range step - 1 {
			m[i] = atomic.LoadUint64(&cells[at+1+i]) &^ all[i]
			all[i] |= m[i]
		}
	}
	ones := min(leadingOnes(all[:]), n)
	covered := stretchMask(0, int(ones))
	for tier := 1; tier <= kvblock.NumTiers; tier++ {
		m := &masks[tier]
		for i := range m {
			m[i] &= covered[i]
		}
		if tier == int(tierGuess) {
			out.Speculative += uint32(m.blocks())
		} else {
			out.Tiers[tier] += uint32(m.blocks())
		}
	}
	return ones
}

// finish writes down how long the matches are.
func (l *lookup) finish(out []Match) {
	for i, word := range l.words {
		if word == 0 {
			continue
		}
		slot := uint32(word)
		if first := l.index[slot]; first != uint32(i) {
			out[i] = out[first] // the same holder twice
			continue
		}
		o, length := &out[i], uint32(l.state[slot])
		if l.mixed {
			for _, n := range o.Tiers[1:] {
				length -= n
			}
			length -= o.Speculative
		}
		o.Tiers[kvblock.GPU] = length
	}
}

// matchStrays looks again at the holders that have strays: where the next block is one, and where a block that has its
// place in a lower tier may be one in a faster tier, by another name.
func (ix *Index) matchStrays(l *lookup, keys []kvblock.Key, out []Match) {
	for i, word := range l.words {
		if word&straysBit == 0 {
			continue
		}
		n := out[i].Blocks()
		again := int(out[i].Tiers[kvblock.GPU]) < n
		if !again && n < len(keys) {
			_, again = ix.strays.nearest(keys[n], uint32(word))
		}
		if again {
			out[i] = ix.matchSlowly(uint32(word), keys)
		}
	}
}

// matchSlowly is the match of one slot, block by block, with strays.
func (ix *Index) matchSlowly(slot uint32, keys []kvblock.Key) (out Match) {
	var r *run
	var in, from int // blocks in r that are the request's, and where in the request they begin
	for i, key := range keys {
		if i >= from+in {
			r, in = ix.step(keys[i:])
			if from = i; in == 0 {
				in = 1 // no one has it, but as a stray
			}
		}
		tier, ok := uint8(0), false
		if r != nil {
			tier, ok = r.nearest(slot, i-from)
		}
		if !ok || tier != uint8(kvblock.GPU) {
			if t, is := ix.strays.nearest(key, slot); is && (!ok || uint8(t) < tier) {
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
	at, _ := r.cellOf(headerOf(slot, 0))
	for ; at < len(r.cells) && r.cells[at]>>8 == uint64(slot); at += int(r.width) + 1 {
		if atomic.LoadUint64(&r.cells[at+1+offset/64])>>(offset%64)&1 != 0 {
			return uint8(r.cells[at]), true
		}
	}
	return 0, false
}
