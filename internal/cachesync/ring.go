package cachesync

import "github.com/kvasir-dev/kvasir/internal/kvevent"

// ring is a queue of the records of one class, in the order in which they joined the class. Some might have changed their
// class meanwhile.
type ring struct {
	items []ringItem
	head  int
}

type ringItem struct {
	id   id
	hash kvevent.Hash
}

// pop takes the oldest of a queue, which must have one. The record can enter it again from now on.
func (m *Mirror) pop(q *ring, of class) ringItem {
	it := q.items[q.head]
	q.head++
	if r := m.arena.at(it.id); r.hash == it.hash {
		r.queued &^= 1 << of
	}
	return it
}

// queue appends a record that has joined a class, unless it is queued already. The number of stale items is bounded by the
// number of current ones.
func (m *Mirror) queue(q *ring, n id, of class) {
	r := m.arena.at(n)
	if r.queued&(1<<of) != 0 {
		return
	}
	r.queued |= 1 << of
	q.items = append(q.items, ringItem{n, r.hash})
	if len(q.items) > 2*m.classes[of]+1024 {
		m.compact(q, of)
	}
}

// compact removes useless and duplicate items from a queue.
func (m *Mirror) compact(q *ring, of class) {
	waiting := q.items[q.head:]
	for _, it := range waiting {
		m.arena.at(it.id).queued &^= 1 << of
	}
	kept := q.items[:0]
	for _, it := range waiting {
		if r := m.arena.at(it.id); m.is(it, of) && r.queued&(1<<of) == 0 {
			r.queued |= 1 << of
			kept = append(kept, it)
		}
	}
	q.items, q.head = kept, 0
}

// is reports whether an item is still a record of its class.
func (m *Mirror) is(it ringItem, of class) bool {
	r := m.arena.at(it.id)
	return r.used && r.hash == it.hash && r.class() == of
}
