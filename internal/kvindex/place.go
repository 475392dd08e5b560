package kvindex

import (
	"sync"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

const stripes = 256

// stripe is the lock of the runs whose numbers end alike.
type stripe struct {
	sync.Mutex
	_ [56]byte
}

// change is one writer's change to the runs: the holder's slot and tier, and the result.
type change struct {
	slot  uint32
	tier  uint8
	bytes int64 // taken, or given back where negative
	// fresh is the number of blocks that the slot has got and had in no real tier before; not for guesses.
	fresh int
	// stretches are where the keys are, in their order.
	stretches []stretch
}

// stretch is consecutive blocks of a run.
type stretch struct {
	run    uint32
	offset int
	blocks int
	again  mask // those that the slot had in this tier before
}

// place finds the place of each key of a chain, makes one for those that have none, and marks them as held by the slot.
// The chain follows the block at parent, which the slot must have, or begins with no parent at noSpot. It returns how
// many keys it placed; fewer than there are only when there is no number for another run.
//
// A key has one place at most: it is the next in its parent's run, or the first of a run of its own. The caller has locked
// its parent's run, or the shard of heads if it has no parent, so that only one caller can make a place for it.
func (ix *Index) place(c *change, parent spot, keys []kvblock.Key) int {
	placed := 0
	for placed < len(keys) {
		rest := keys[placed:]
		n, run, ok := ix.follow(c, parent, rest)
		if !ok {
			return placed
		}
		if n == 0 {
			// The key heads a run. If that was deleted meanwhile, the next turn checks again.
			if n = ix.enter(c, run, rest); n == 0 {
				continue
			}
		}
		placed += n
		last := &c.stretches[len(c.stretches)-1]
		parent = spotOf(last.run, last.offset+last.blocks-1)
	}
	return placed
}

// follow places keys after a block that the slot has, or after nothing. It returns how many, or none and the run that
// the first heads.
func (ix *Index) follow(c *change, parent spot, keys []kvblock.Key) (n int, heads uint32, ok bool) {
	if parent == noSpot {
		if heads = ix.heads.find(keys[0]); heads != 0 {
			return 0, heads, true
		}
		return ix.begin(c, 0, 0, keys)
	}
	lock := &ix.stripes[parent.run()%stripes]
	lock.Lock()
	defer lock.Unlock()
	r := ix.runs.get(parent.run())
	if n = ix.extend(c, r, parent.offset()+1, keys); n > 0 {
		return n, 0, true
	}
	if heads = ix.heads.find(keys[0]); heads != 0 {
		return 0, heads, true
	}
	return ix.begin(c, r.depth+uint32(parent.offset())+1, r.keys[parent.offset()], keys)
}

// enter places keys in the run that the first of them heads. It returns how many; none if the run was deleted. The number
// can meanwhile be that of another run for the same key, whose maker has found a third run in heads and is about to delete its own. Keys
// placed there would be lost, so the run must still be the one in heads.
func (ix *Index) enter(c *change, id uint32, keys []kvblock.Key) int {
	lock := &ix.stripes[id%stripes]
	lock.Lock()
	defer lock.Unlock()
	r := ix.runs.get(id)
	if r == nil || r.keys[0] != keys[0] || ix.heads.find(keys[0]) != id {
		return 0
	}
	return ix.extend(c, r, 0, keys)
}

// begin makes a run of keys that have no place and follow another, or none. If another writer has made one for the first of
// them, it returns that.
func (ix *Index) begin(c *change, depth uint32, parent kvblock.Key, keys []kvblock.Key) (n int, heads uint32, ok bool) {
	id, ok := ix.runs.take()
	if !ok {
		return 0, 0, false
	}
	n = 1
	for n < min(len(keys), runBlocks) && ix.heads.find(keys[n]) == 0 {
		n++
	}
	room := roomFor(n)
	r := &run{keys: make([]kvblock.Key, room), depth: depth, parent: parent, id: id, top: uint16(n), width: widthFor(room)}
	copy(r.keys, keys[:n])
	r.n.Store(uint32(n))
	m := stretchMask(0, n)
	r.cells = newCells(1, r.width)
	r.cells[0] = headerOf(c.slot, c.tier)
	r.store(0, &m)
	ix.runs.set(id, r)
	if heads = ix.heads.insert(keys[0], id); heads != 0 {
		ix.runs.give(id)
		return 0, heads, true
	}
	c.bytes += r.bytes()
	c.stretches = append(c.stretches, stretch{run: id, blocks: n})
	c.fresh += n
	return n, 0, true
}

// extend finds keys in a run from an offset on, appends those that follow its end and have no place elsewhere, and marks
// them as held by the slot. It returns how many. The run is locked, and the slot has the block before the offset.
func (ix *Index) extend(c *change, r *run, offset int, keys []kvblock.Key) int {
	v, n := r, int(r.n.Load())
	k := 0
	for k < len(keys) && offset+k < n && r.keys[offset+k] == keys[k] {
		k++
	}
	// Keys beyond it without holders can make room for others.
	if end := offset + k; end >= int(r.top) {
		more := 0
		for k+more < len(keys) && end+more < runBlocks && ix.heads.find(keys[k+more]) == 0 {
			more++
		}
		if more > 0 {
			if end < n || end+more > len(r.keys) {
				v = r.resized(end, end+more)
			}
			copy(v.keys[end:], keys[k:k+more])
			v.n.Store(uint32(end + more))
			k += more
		}
	}
	if k == 0 {
		return 0
	}
	m := stretchMask(offset, k)
	v, again := ix.mark(c, v, &m)
	v.top = max(v.top, uint16(offset+k))
	ix.publish(c, r, v)
	c.stretches = append(c.stretches, stretch{run: r.id, offset: offset, blocks: k, again: again})
	return k
}

// mark records that the slot has blocks of a locked run. It returns the new version of the run, and which of the blocks the
// slot had in that tier before.
func (ix *Index) mark(c *change, r *run, m *mask) (v *run, again mask) {
	if c.tier != tierGuess {
		had := r.confirmed(c.slot)
		for i := range m {
			had[i] = m[i] &^ had[i]
		}
		c.fresh += had.blocks()
	}
	at, ok := r.cellOf(c.slot, c.tier)
	if !ok {
		return r.withCell(at, headerOf(c.slot, c.tier), m), again
	}
	all := r.load(at)
	for i := range m {
		again[i] = all[i] & m[i]
		all[i] |= m[i]
	}
	r.store(at, &all)
	return r, again
}

// remark records that a slot has blocks of a run in a tier, which it has in another tier already. It returns which of them
// it had in that tier before.
func (ix *Index) remark(c *change, id uint32, m *mask) mask {
	lock := &ix.stripes[id%stripes]
	lock.Lock()
	defer lock.Unlock()
	r := ix.runs.get(id)
	v, again := ix.mark(c, r, m)
	ix.publish(c, r, v)
	return again
}

// unmark records that a slot no longer has blocks of a run in a tier. It returns how many of them it has in no real tier
// any more.
func (ix *Index) unmark(c *change, id uint32, m *mask) (gone int) {
	lock := &ix.stripes[id%stripes]
	lock.Lock()
	defer lock.Unlock()
	r := ix.runs.get(id)
	at, ok := r.cellOf(c.slot, c.tier)
	if !ok {
		return 0
	}
	rest := r.load(at)
	for i := range rest {
		rest[i] &^= m[i]
	}
	r.store(at, &rest)
	if c.tier != tierGuess {
		still := r.confirmed(c.slot)
		for i := range m {
			still[i] = m[i] &^ still[i]
		}
		gone = still.blocks()
	}
	v := r
	if rest.empty() && (c.tier != tierGuess || !r.wanted(at, at+1)) {
		if v = ix.cut(c, r, at, at+1); v == nil {
			return gone
		}
	}
	if m.top() >= int(v.top) {
		v = v.lowered()
	}
	ix.publish(c, r, v)
	return gone
}

// forget removes all that a slot has in a run.
func (ix *Index) forget(c *change, id uint32) {
	lock := &ix.stripes[id%stripes]
	lock.Lock()
	defer lock.Unlock()
	r := ix.runs.get(id)
	if r == nil {
		return // it went with an earlier block, or the number is not used again yet
	}
	from, _ := r.cellOf(c.slot, 0)
	to, _ := r.cellOf(c.slot+1, 0)
	if from == to {
		return
	}
	if v := ix.cut(c, r, from, to); v != nil {
		ix.publish(c, r, v.lowered())
	}
}

// cut takes cells out of a locked run. With the last ones that are not idle the run goes.
func (ix *Index) cut(c *change, r *run, from, to int) *run {
	if r.wanted(from, to) {
		return r.without(from, to)
	}
	ix.heads.remove(r.keys[0], r.id)
	ix.runs.give(r.id)
	c.bytes -= r.bytes()
	return nil
}

// lowered finds the top of a locked run again, and gives room back when most of it lies idle.
func (r *run) lowered() *run {
	for _, header := range r.cells {
		if int(header&onesMask) >= int(r.top) {
			return r
		}
	}
	held := r.held()
	r.top = uint16(held.top())
	if int(r.top)*2 > len(r.keys) || len(r.keys) <= rooms[2] {
		return r
	}
	return r.resized(int(r.top), int(r.top))
}

// publish replaces a locked run with a version of it.
func (ix *Index) publish(c *change, r, v *run) {
	if v != r {
		c.bytes += v.bytes() - r.bytes()
		ix.runs.set(r.id, v)
	}
}

// keyAt is the key at a spot that the caller's slot has, so that it stays where it is.
func (ix *Index) keyAt(at spot) kvblock.Key { return ix.runs.get(at.run()).keys[at.offset()] }
