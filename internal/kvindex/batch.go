package kvindex

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// writing is memory that a generation's batches use one after the other.
type writing struct {
	names     []kvevent.Hash
	at        []int // entries of the blocks of a chain
	stretches []stretch
	attached  []name
}

// writingKept bounds what is kept of it, in blocks.
const writingKept = 1 << 14

// batch is one call of a writer: a change to the facts of a locked generation in one tier and group.
//
// Changes to keys that have their place are gathered while they concern the same run.
type batch struct {
	ix         *Index
	generation *generation
	tier       kvblock.Tier
	group      int
	change     change
	digest     *Digest
	before     int64                 // bytes of the reverse map
	gone       func(key kvblock.Key) // Writer.OnGone's

	run     uint32
	pending mask
	adding  bool // pending blocks are added; otherwise removed
}

// origin is what a chain follows: a key that is in a run, nothing (noSpot), or a block whose key is in no run.
type origin struct {
	at     spot
	orphan bool
	name   name
}

func (l *generation) begin(ix *Index, tier kvblock.Tier, group int) batch {
	return batch{ix: ix, generation: l, tier: tier, group: group, before: l.rev.bytes(),
		change: change{slot: l.slot, tier: uint8(tier), stretches: l.scratch.stretches}}
}

// count counts one copy less of a block, or one more; false means that there is none to count.
func (b *batch) count(hash kvevent.Hash, less bool) bool {
	if less {
		return b.drop(hash)
	}
	return b.copy(hash)
}

// end makes what is pending happen and accounts for what was taken.
func (b *batch) end() {
	b.flush()
	l, s := b.generation, &b.generation.scratch
	l.rev.trim()
	s.stretches = b.change.stretches[:0]
	if cap(s.names)+cap(s.at) > writingKept || cap(s.stretches) > writingKept/16 {
		*s = writing{}
	}
	l.held.Add(int64(b.change.fresh))
	if bytes := b.change.bytes + l.rev.bytes() - b.before; bytes != 0 {
		b.ix.bytes.Add(bytes)
	}
}

func (b *batch) digestOf() *Digest {
	if b.digest == nil {
		b.digest = b.generation.digestOf(b.ix, b.tier, b.group)
	}
	return b.digest
}

func (l *generation) digestOf(ix *Index, tier kvblock.Tier, group int) *Digest {
	key := digestKey{tier, group}
	d := l.digests[key]
	if d == nil {
		if l.digests == nil {
			l.digests = map[digestKey]*Digest{}
		}
		d = &Digest{}
		l.digests[key] = d
		ix.bytes.Add(digestBytes)
	}
	return d
}

// split names every key of blocks that are several keys long.
func (l *generation) split(hashes []kvevent.Hash, perHash int) []kvevent.Hash {
	l.perHash = max(l.perHash, perHash)
	names := l.scratch.names[:0]
	for _, hash := range hashes {
		for i := perHash - 1; i > 0; i-- {
			names = append(names, leading(hash, i))
		}
		names = append(names, hash)
	}
	l.scratch.names = names
	return names
}

// keyOf is the key of a block that the generation has.
func (l *generation) keyOf(ix *Index, e *entry) kvblock.Key {
	if e.at == noSpot {
		return l.orphans[name{e.hash, e.group()}].key
	}
	return ix.keyAt(e.at)
}

// store counts one more copy of each block of a chain. It returns how many there was no room for.
func (b *batch) store(parent Parent, hashes []kvevent.Hash, keys []kvblock.Key) (refused int) {
	l := b.generation
	l.rev.reserve(len(hashes))
	l.rev.touch(hashes, b.group)
	l.scratch.at = slices.Grow(l.scratch.at[:0], len(hashes))[:len(hashes)]
	from := b.originOf(parent)
	start := 0 // of the blocks that are new and wait for their place
	for i, hash := range hashes {
		at, ok := l.rev.find(hash, b.group)
		if ok && l.rev.entries[at].at == pendingSpot {
			// The chain has a hash twice. Its block might have been refused.
			refused += b.settle(&from, hashes[start:i], keys[start:i], l.scratch.at[start:i])
			start = i
			at, ok = l.rev.find(hash, b.group)
		}
		if !ok {
			l.rev.entries[at] = entry{hash: hash, at: pendingSpot, info: uint32(b.group)<<groupShift | 1<<countShift[b.tier]}
			l.rev.n++
			l.scratch.at[i] = at
			continue
		}
		if n := b.settle(&from, hashes[start:i], keys[start:i], l.scratch.at[start:i]); n > 0 {
			refused += n
			at, _ = l.rev.find(hash, b.group) // it might have moved up
		}
		start = i + 1
		b.copyAt(at)
		from = l.originAt(at)
	}
	return refused + b.settle(&from, hashes[start:], keys[start:], l.scratch.at[start:])
}

func (b *batch) originOf(parent Parent) origin {
	if !parent.OK {
		return origin{}
	}
	if at, ok := b.generation.rev.find(parent.Hash, b.group); ok {
		return b.generation.originAt(at)
	}
	return origin{orphan: true, name: name{parent.Hash, b.group}}
}

func (l *generation) originAt(i int) origin {
	e := &l.rev.entries[i]
	if e.at == noSpot {
		return origin{orphan: true, name: name{e.hash, e.group()}}
	}
	return origin{at: e.at}
}

// settle finds the place of new blocks, whose entries wait for it, and moves the origin behind them. It returns the number
// of blocks for which there was no room.
func (b *batch) settle(from *origin, hashes []kvevent.Hash, keys []kvblock.Key, entries []int) (refused int) {
	if len(hashes) == 0 {
		return 0
	}
	l := b.generation
	if from.orphan {
		return b.setAside(from, hashes, keys, entries)
	}
	digest := b.digestOf()
	b.change.stretches = b.change.stretches[:0]
	placed := b.ix.place(&b.change, from.at, keys)
	i := 0
	for s := range b.change.stretches {
		st := &b.change.stretches[s]
		for offset := st.offset; offset < st.offset+st.blocks; offset++ {
			at := spotOf(st.run, offset)
			l.rev.entries[entries[i]].at = at
			digest.Add(keys[i])
			i++
			if st.again.has(offset) {
				l.addAlias(at, b.tier)
			}
			from.at = at
		}
	}
	for _, hash := range hashes[placed:] {
		at, _ := l.rev.find(hash, b.group)
		l.rev.remove(at)
	}
	if placed < len(hashes) {
		b.ix.evicted.Add(uint64(len(hashes) - placed))
		l.evicted += len(hashes) - placed
	}
	if len(l.orphans) > 0 {
		for _, hash := range hashes[:placed] {
			b.attach(name{hash, b.group})
		}
	}
	return len(hashes) - placed
}

// addAlias notes one more announcer of a key in a tier.
func (l *generation) addAlias(at spot, tier kvblock.Tier) {
	if l.aliases == nil {
		l.aliases = map[spotTier]uint32{}
	}
	l.aliases[spotTier{at, tier}]++
}

// removeAlias notes one announcer less, unless there is but one.
func (l *generation) removeAlias(at spot, tier kvblock.Tier) bool {
	key := spotTier{at, tier}
	n := l.aliases[key]
	switch n {
	case 0:
		return false
	case 1:
		delete(l.aliases, key)
	default:
		l.aliases[key] = n - 1
	}
	return true
}

// setAside makes orphans of new blocks whose parent has no place. A holder from which blocks were evicted has holes that
// will not be filled, so that orphans would only pile up.
func (b *batch) setAside(from *origin, hashes []kvevent.Hash, keys []kvblock.Key, entries []int) (refused int) {
	l := b.generation
	if l.evicted > 0 {
		for _, hash := range hashes {
			at, _ := l.rev.find(hash, b.group)
			l.rev.remove(at)
		}
		l.evicted += len(hashes)
		b.ix.evicted.Add(uint64(len(hashes)))
		return len(hashes)
	}
	digest := b.digestOf()
	if l.orphans == nil {
		l.orphans, l.waiting = map[name]orphan{}, map[name][]name{}
	}
	for i, hash := range hashes {
		id := name{hash, b.group}
		l.rev.entries[entries[i]].at = noSpot
		l.orphans[id] = orphan{key: keys[i], parent: from.name}
		l.waiting[from.name] = append(l.waiting[from.name], id)
		b.ix.orphans.add(keys[i], l.slot, b.tier)
		digest.Add(keys[i])
		from.name = id
	}
	l.held.Add(int64(len(hashes)))
	b.ix.flag(l)
	return 0
}

// release forgets an orphan whose block was removed or has found its place.
func (b *batch) release(id name) {
	l := b.generation
	parent := l.orphans[id].parent
	if list := slices.DeleteFunc(l.waiting[parent], func(n name) bool { return n == id }); len(list) > 0 {
		l.waiting[parent] = list
	} else {
		delete(l.waiting, parent)
	}
	delete(l.orphans, id)
	l.held.Add(-1)
	if len(l.orphans) == 0 {
		l.orphans, l.waiting = nil, nil
		b.ix.flag(l)
	}
}

// attach places the orphans that waited for a block, and those that waited for them.
func (b *batch) attach(id name) {
	l := b.generation
	work := l.scratch.attached[:0]
	work = append(work, id)
	for len(work) > 0 {
		parent := work[len(work)-1]
		work = work[:len(work)-1]
		at, _ := l.rev.find(parent.hash, parent.group)
		after := l.rev.entries[at].at
		for _, child := range slices.Clone(l.waiting[parent]) {
			if b.attachOne(child, after) {
				work = append(work, child)
			}
		}
	}
	l.scratch.attached = work[:0]
}

func (b *batch) attachOne(id name, after spot) bool {
	l, s := b.generation, b.generation.orphans[id]
	i, _ := l.rev.find(id.hash, id.group)
	e := &l.rev.entries[i]
	c := change{slot: l.slot}
	for tier := range kvblock.Tier(kvblock.NumTiers) {
		if e.count(tier) == 0 {
			continue
		}
		c.tier, c.stretches = uint8(tier), c.stretches[:0]
		if b.ix.place(&c, after, []kvblock.Key{s.key}) == 0 {
			return false // no number for a run; it stays an orphan
		}
		st := &c.stretches[0]
		e.at = spotOf(st.run, st.offset)
		if st.again.has(st.offset) {
			l.addAlias(e.at, tier)
		}
		b.ix.orphans.remove(s.key, l.slot, tier)
	}
	b.change.bytes += c.bytes
	b.change.fresh += c.fresh
	b.release(id)
	return true
}

// copy counts one more copy of a known block.
func (b *batch) copy(hash kvevent.Hash) bool {
	at, ok := b.generation.rev.find(hash, b.group)
	if ok {
		b.copyAt(at)
	}
	return ok
}

func (b *batch) copyAt(i int) {
	l := b.generation
	e := &l.rev.entries[i]
	switch e.count(b.tier) {
	case countMax[b.tier]:
		if l.more == nil {
			l.more = map[copyName]uint32{}
		}
		l.more[copyName{name{e.hash, b.group}, b.tier}]++
		return
	case 0:
		key := l.keyOf(b.ix, e)
		b.digestOf().Add(key)
		if e.at == noSpot {
			b.ix.orphans.add(key, l.slot, b.tier)
		} else {
			b.gather(e.at, true)
		}
	}
	e.info += 1 << countShift[b.tier]
}

// drop counts one copy of a block less.
func (b *batch) drop(hash kvevent.Hash) bool {
	l := b.generation
	i, ok := l.rev.find(hash, b.group)
	if !ok || l.rev.entries[i].count(b.tier) == 0 {
		return false
	}
	if l.rev.entries[i].count(b.tier) == countMax[b.tier] {
		at := copyName{name{hash, b.group}, b.tier}
		if n := l.more[at]; n > 1 {
			l.more[at] = n - 1
			return true
		} else if n == 1 {
			delete(l.more, at)
			return true
		}
	}
	b.dropAt(i)
	return true
}

// dropAt takes one of the copies that an entry counts away. With the last one of all tiers the entry goes, and others
// can move.
func (b *batch) dropAt(i int) {
	l := b.generation
	e := &l.rev.entries[i]
	e.info -= 1 << countShift[b.tier]
	if e.count(b.tier) > 0 {
		return
	}
	id := name{e.hash, b.group}
	key := l.keyOf(b.ix, e)
	b.digestOf().Remove(key)
	if b.gone != nil {
		b.gone(key)
	}
	switch {
	case e.at == noSpot:
		b.ix.orphans.remove(key, l.slot, b.tier)
	case len(l.aliases) > 0 && l.removeAlias(e.at, b.tier):
	default:
		b.gather(e.at, false)
	}
	if e.vacant() {
		if e.at == noSpot {
			b.release(id)
		}
		l.rev.remove(i)
	}
}

// gather lets the slot have a key in the tier, or no more, at the latest when the batch ends.
func (b *batch) gather(at spot, adding bool) {
	if b.run != at.run() || b.adding != adding || b.pending.has(at.offset()) {
		b.flush()
		b.run, b.adding = at.run(), adding
	}
	b.pending.set(at.offset())
}

// flush makes what was gathered happen.
func (b *batch) flush() {
	if b.pending.empty() {
		return
	}
	m := b.pending
	b.pending = mask{}
	if !b.adding {
		b.change.fresh -= b.ix.unmark(&b.change, b.run, &m)
		return
	}
	again := b.ix.remark(&b.change, b.run, &m)
	for offset := 0; !again.empty(); offset++ {
		if again.has(offset) {
			again[offset/64] &^= 1 << (offset % 64)
			b.generation.addAlias(spotOf(b.run, offset), b.tier)
		}
	}
}
