package cachesync

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// again is what a mirror knows of copies that the engine has announced and that can be too many. The rule is that of
// package events, where it is explained: copies that a report of cached blocks can have added are struck off once their
// sum exceeds the engine's number of blocks, and a block that lost copies so stays while others follow it. Where more than mostBlocks times
// that number remain, none on the GPU counts.
type again struct {
	capacity  int // physical blocks of the engine's GPU tier, 0 while it is not known
	copies    int // of all blocks there
	checked   int // the sum that is known to be right although it is too high; 0 for none
	uncertain map[id]uint16
	struck    map[id]struct{}
	// impossible: more than mostBlocks times as many were held as the engine has, since the stream asked last.
	impossible bool
	// firsts are the first blocks of adapters' prompts, by what they hold.
	firsts map[kvblock.Key]blockID
}

// mostBlocks is how many times as many blocks as it has an engine can announce.
const mostBlocks = 2

// Impossible implements events.DoubtfulSink.
func (m *Mirror) Impossible() (was bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, m.again.impossible = m.again.impossible, false
	return was
}

func newAgain(capacity int) again {
	return again{capacity: capacity, uncertain: map[id]uint16{}, struck: map[id]struct{}{}, firsts: map[kvblock.Key]blockID{}}
}

// SetCapacity sets the number of physical blocks of the engine's GPU tier; 0 where it is not known.
func (m *Mirror) SetCapacity(blocks int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.again.capacity = blocks
}

// noteAgain remembers a copy that begins with a prompt's first block, of a block that is on the GPU already.
func (m *Mirror) noteAgain(n id, tier kvblock.Tier, begins bool) {
	if begins && tier == kvblock.GPU && n != 0 && m.arena.at(n).copies[tier] > 0 {
		m.again.uncertain[n]++
	}
}

// keeps reports whether a block stays although its last copy was removed: copies of it were struck off, and the engine
// evicts a block only after those that follow it.
func (m *Mirror) keeps(n id, tier kvblock.Tier) bool {
	if len(m.again.struck) == 0 || tier != kvblock.GPU {
		return false
	}
	r := m.arena.at(n)
	if _, struck := m.again.struck[n]; !struck || r.copies[tier] != 1 {
		return false
	}
	for c := r.down; c != 0; c = m.arena.at(c).next {
		if child := m.arena.at(c); child.size > 0 && !child.gone() {
			return true
		}
	}
	return false
}

// settleCopies strikes off the copies that cannot exist, once a batch is applied.
func (m *Mirror) settleCopies() {
	a := &m.again
	if a.capacity <= 0 || a.copies < a.capacity || a.copies <= a.checked {
		return
	}
	for n, copies := range a.uncertain {
		if by := min(copies, m.arena.at(n).copies[kvblock.GPU]); by > 0 {
			m.stats.Struck += uint64(by)
			a.struck[n] = struct{}{}
			m.less(n, kvblock.GPU, by)
		}
	}
	clear(a.uncertain)
	a.checked = 0
	if a.copies > mostBlocks*a.capacity {
		a.impossible = true
		m.clearTier(kvblock.GPU)
	}
	if a.copies >= a.capacity {
		a.checked = a.copies + a.capacity/16 // the engine reports too few blocks; do not look at each batch
	}
}

// forgetAgain forgets what is known of a block that goes.
func (m *Mirror) forgetAgain(n id) {
	delete(m.again.uncertain, n)
	delete(m.again.struck, n)
}

// superseded forgets the blocks of an adapter when its first block is announced by another hash: it was loaded again with
// other weights, and the engine finds the old blocks no more (see package events).
func (m *Mirror) superseded(e *kvevent.Event) {
	if e.Adapter == "" || e.HasParent && e.Parent != 0 || len(e.Hashes) == 0 {
		return
	}
	now := blockID{e.Hashes[0], int32(e.Group)}
	what := kvblock.Next(kvblock.Key(kvblock.Digest(kvblock.Digest(uint64(e.Group), e.Adapter), e.Salt)), e.Tokens[:e.BlockSize], itemsOf(e))
	before, ok := m.again.firsts[what]
	m.again.firsts[what] = now
	if len(m.again.firsts) > 2*len(m.ids)+64 {
		clear(m.again.firsts)
	}
	if _, held := m.ids[before]; !ok || before == now || !held {
		return
	}
	var all []id
	m.arena.each(func(n id, r *record) {
		if r.first() && m.roots[r.root-1].model == e.Adapter {
			all = append(all, n)
		}
	})
	for i := 0; i < len(all); i++ {
		for c := m.arena.at(all[i]).down; c != 0; c = m.arena.at(c).next {
			all = append(all, c)
		}
	}
	for i := len(all) - 1; i >= 0; i-- { // what follows a block goes before it
		r := m.arena.at(all[i])
		for tier := range kvblock.Tier(kvblock.NumTiers) {
			if r.used && r.copies[tier] > 0 {
				m.stats.Superseded += uint64(r.copies[tier])
				m.less(all[i], tier, r.copies[tier])
			}
		}
	}
}

// itemsOf folds the items of an event's first block.
func itemsOf(e *kvevent.Event) (extra uint64) {
	for i := range e.Items {
		if e.Items[i].Block == 0 {
			extra = kvblock.ItemExtra(extra, e.Items[i].Key, e.Items[i].Offset)
		}
	}
	return extra
}
