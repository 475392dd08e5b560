package cachesync

import (
	"math"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// class is what a record is kept for.
type class uint8

const (
	// ghost has no copy, but blocks that follow it have.
	ghost class = iota
	// orphan's chain is not known up to its first block.
	orphan
	placed
	numClasses
)

func (r *record) class() class {
	switch {
	case r.gone():
		return ghost
	case !r.rooted:
		return orphan
	}
	return placed
}

// changeClass changes a record and keeps count.
func (m *Mirror) changeClass(r *record, change func()) {
	m.classes[r.class()]--
	change()
	m.classes[r.class()]++
}

// full reports whether no further block can be mirrored.
func (m *Mirror) full() bool { return m.classes[placed]+m.classes[orphan] >= m.options.MaxBlocks }

// room reports whether a record can have one more copy, and counts if not: those without one take no room of blocks, and
// 0 is one for which there was none.
func (m *Mirror) room(n id) bool {
	if n != 0 && (!m.arena.at(n).gone() || !m.full()) {
		return true
	}
	m.refused++
	m.stats.Refused++
	return false
}

// create makes a record without copies and without neighbours; 0 when there is no room.
func (m *Mirror) create(hash kvevent.Hash, group int32, tokens []uint32, extra uint64) id {
	if m.full() {
		return 0
	}
	n := m.arena.take(len(tokens))
	if n == 0 {
		return 0
	}
	copy(m.arena.tokens(n), tokens)
	r := m.arena.at(n)
	r.hash, r.group, r.extra = hash, group, extra
	m.ids[blockID{hash, group}] = n
	m.classes[ghost]++
	return n
}

// link puts a fresh record in its place: at the beginning of a chain when root is given, after its parent otherwise.
func (m *Mirror) link(n id, parent kvevent.Hash, root *chainRoot) {
	r := m.arena.at(n)
	self := blockID{r.hash, r.group}
	r.down = m.waiting[self]
	delete(m.waiting, self)
	for c := r.down; c != 0; c = m.arena.at(c).next {
		m.arena.at(c).up = n
	}
	switch {
	case root != nil:
		r.root, r.rooted = m.rootNumber(*root), true
	default:
		r.parent = parent
		up := m.ids[blockID{parent, r.group}]
		if up == 0 && m.rules.has(r.group) {
			up = m.prefixRecord(parent)
		}
		if up == n { // nonsense: it waits for itself
			up = 0
		}
		m.hang(n, up)
		r.rooted = up != 0 && m.arena.at(up).rooted
	}
	if r.rooted {
		m.settle(n)
	}
}

// hang makes a record the first child of another, or of its missing parent if up is 0.
func (m *Mirror) hang(n, up id) {
	r := m.arena.at(n)
	r.up = up
	if up != 0 {
		r.next, m.arena.at(up).down = m.arena.at(up).down, n
	} else {
		missing := blockID{r.parent, r.group}
		r.next, m.waiting[missing] = m.waiting[missing], n
	}
	if r.next != 0 {
		m.arena.at(r.next).prev = n
	}
}

// unhang undoes hang.
func (m *Mirror) unhang(n id) {
	r := m.arena.at(n)
	missing := blockID{r.parent, r.group}
	switch {
	case r.prev != 0:
		m.arena.at(r.prev).next = r.next
	case r.up != 0:
		m.arena.at(r.up).down = r.next
	case r.next != 0:
		m.waiting[missing] = r.next
	default:
		delete(m.waiting, missing)
	}
	if r.next != 0 {
		m.arena.at(r.next).prev = r.prev
	}
	r.up, r.next, r.prev = 0, 0, 0
}

// drop removes a record without copies, and the ghosts that were kept only for it. Its children wait until it arrives
// again.
func (m *Mirror) drop(n id) {
	for n != 0 {
		r := m.arena.at(n)
		self, up := blockID{r.hash, r.group}, r.up
		if r.down != 0 {
			for c := r.down; c != 0; {
				child := m.arena.at(c)
				next := child.next
				child.up, child.next, child.prev = 0, 0, 0
				m.hang(c, 0) // one of a group with a window can be in another group
				c = next
			}
			r.down = 0
		}
		if r.first() {
			m.unroot(r.root)
		} else {
			m.unhang(n)
		}
		m.classes[r.class()]--
		m.forgetAgain(n)
		delete(m.ids, self)
		m.arena.give(n)
		if n = up; n != 0 {
			if r = m.arena.at(n); !r.gone() || r.down != 0 {
				n = 0
			}
		}
	}
}

// trim drops the oldest orphans and ghosts when there are too many.
func (m *Mirror) trim() {
	for m.classes[orphan] > m.options.MaxOrphans {
		if n := m.pop(&m.orphans, orphan); m.is(n, orphan) {
			r := m.arena.at(n.id)
			m.stats.OrphansDropped++
			m.refused++
			m.again.copies -= int(r.copies[kvblock.GPU])
			m.changeClass(r, func() { r.copies = [kvblock.NumTiers]uint16{} })
			m.drop(n.id)
		}
	}
	for m.classes[ghost] > m.options.MaxGhosts {
		if n := m.pop(&m.ghosts, ghost); m.is(n, ghost) {
			m.stats.GhostsDropped++
			m.drop(n.id)
		}
	}
}

// rootNumber counts one more use of a root.
func (m *Mirror) rootNumber(root chainRoot) uint32 {
	n, ok := m.rootIDs[root]
	if !ok {
		if k := len(m.freeRoot); k > 0 {
			n = m.freeRoot[k-1]
			m.freeRoot = m.freeRoot[:k-1]
			m.roots[n-1] = rootUse{chainRoot: root}
		} else {
			m.roots = append(m.roots, rootUse{chainRoot: root})
			n = uint32(len(m.roots))
		}
		m.rootIDs[root] = n
	}
	m.roots[n-1].uses++
	return n
}

// unroot counts one use less.
func (m *Mirror) unroot(n uint32) {
	use := &m.roots[n-1]
	if use.uses--; use.uses > 0 {
		return
	}
	delete(m.rootIDs, use.chainRoot)
	*use = rootUse{}
	m.freeRoot = append(m.freeRoot, n)
	for _, v := range m.views {
		if v != nil {
			delete(v.rootKeys, n)
		}
	}
}

// more counts one more copy of a block, and notifies the views of the first in its tier. It stops at the largest number:
// counting down from there forgets the block too early, never too late.
func (m *Mirror) more(n id, tier kvblock.Tier) {
	r := m.arena.at(n)
	if r.copies[tier] == math.MaxUint16 {
		return
	}
	fresh := r.gone()
	m.changeClass(r, func() { r.copies[tier]++ })
	if tier == kvblock.GPU {
		m.again.copies++
	}
	if fresh && !r.rooted {
		m.queue(&m.orphans, n, orphan)
	}
	if r.copies[tier] == 1 {
		m.notify(n, tier, true)
	}
}

// less removes copies, and notifies the views when the last has left its tier. A block without copies is dropped, unless
// others follow it.
func (m *Mirror) less(n id, tier kvblock.Tier, by uint16) {
	r := m.arena.at(n)
	if r.copies[tier] == by {
		m.notify(n, tier, false)
	}
	m.changeClass(r, func() { r.copies[tier] -= by })
	if tier == kvblock.GPU {
		m.again.copies -= int(by)
	}
	switch {
	case !r.gone():
	case r.down == 0 || !r.rooted:
		m.drop(n)
	default:
		m.queue(&m.ghosts, n, ghost)
	}
}
