package report

import "github.com/kvasir-dev/kvasir/internal/kvevent"

// ring is a queue of the records of one class, in the order in which they came to be of it. Some of them may have
// become something else meanwhile.
type ring struct {
	items []ringItem
	head  int
}

type ringItem struct {
	id   id
	hash kvevent.Hash
}

// pop takes the oldest of a queue, which must have one. The record may enter it again from now on.
func (m *Mirror) pop(q *ring, of class) ringItem {
	it := q.items[q.head]
	q.head++
	if r := m.arena.at(it.id); r.hash == it.hash {
		r.queued &^= 1 << of
	}
	return it
}

// queue appends a record that has come to be of a class, unless it is there already. What is in the queue in vain is
// bounded by what is not.
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

// compact takes out of a queue what is there in vain, or twice.
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

// is tells whether an item is still a record of its class.
func (m *Mirror) is(it ringItem, of class) bool {
	r := m.arena.at(it.id)
	return r.used && r.hash == it.hash && r.class() == of
}
