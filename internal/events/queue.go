package events

import (
	"context"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// kind is the type of an item of the queue.
type kind uint8

const (
	kindUp       kind = iota + 1 // a new connection
	kindMessage                  // a batch
	kindOverflow                 // messages were dropped here
)

// item is one thing to do, in the order in which it happened.
type item struct {
	kind kind
	// seq is a batch's sequence number, or the number of the new connection, from 1.
	seq     uint64
	payload []byte
	// arrived is the message for which there was no room.
	arrived arrival
	// link is the new connection's context; it ends with the connection.
	link context.Context
}

// queue holds what the receiver has for the applier. Payloads are bounded in bytes, and draw on a share; when they do not fit, all of
// them are dropped, and one item records it. Buffers are reused.
type queue struct {
	max   int
	share *budget.Share
	stats *Stats
	wake  chan struct{} // holds a token when there might be items

	mu    sync.Mutex
	items []item   // guarded by mu; items[head:] wait
	head  int      // guarded by mu
	bytes int      // guarded by mu
	spare [][]byte // guarded by mu
	kept  int      // guarded by mu; bytes of spare
}

// What is kept for later messages: there is a queue for each endpoint, so that it is little.
const (
	maxSpareBytes = 64 << 10
	maxSpareItems = 1024
)

// itemBytes is what a message takes in the queue besides its payload.
const itemBytes = 64

func newQueue(most int, share *budget.Share, stats *Stats) *queue {
	return &queue{max: most, share: share, stats: stats, wake: make(chan struct{}, 1)}
}

// up queues a new connection.
func (q *queue) up(link context.Context, n uint64) {
	q.mu.Lock()
	q.items = append(q.items, item{kind: kindUp, seq: n, link: link})
	q.mu.Unlock()
	q.signal()
}

// message queues a copy of a batch.
func (q *queue) message(seq uint64, payload []byte) {
	q.mu.Lock()
	need := len(payload) + itemBytes
	if q.bytes+need > q.max || !q.share.Take(need) {
		q.overflow(arrival{seq, proofOf(payload)})
	} else {
		q.bytes += need
		q.items = append(q.items, item{kind: kindMessage, seq: seq, payload: append(q.buffer(), payload...)})
	}
	q.stats.QueuedBytes.Store(int64(q.bytes))
	q.mu.Unlock()
	q.signal()
}

// overflow drops all messages and leaves a note, also of the last connection among them. last is the message that has no
// room. mu is held.
func (q *queue) overflow(last arrival) {
	q.stats.Overflows.Add(1)
	kept := q.items[:0]
	for _, it := range q.items[q.head:] {
		if it.kind == kindUp {
			kept = append(kept[:0], it)
		}
	}
	clear(q.items[len(kept):])
	kept = append(kept, item{kind: kindOverflow, arrived: last})
	q.share.Put(q.bytes)
	q.items, q.head, q.bytes = kept, 0, 0
}

// take returns the next item, ok false when there is none.
func (q *queue) take() (it item, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.items) {
		return item{}, false
	}
	it = q.items[q.head]
	q.items[q.head] = item{}
	if q.head++; q.head == len(q.items) {
		if q.items, q.head = q.items[:0], 0; cap(q.items) > maxSpareItems {
			q.items = nil
		}
	} else if q.head >= 1024 && q.head*2 >= len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	if it.kind == kindMessage {
		q.bytes -= len(it.payload) + itemBytes
		q.stats.QueuedBytes.Store(int64(q.bytes))
	}
	return it, true
}

// giveBack takes the buffer of an item that was applied.
func (q *queue) giveBack(it item) {
	if it.kind != kindMessage {
		return
	}
	q.share.Put(len(it.payload) + itemBytes)
	q.mu.Lock()
	if q.kept+cap(it.payload) <= maxSpareBytes {
		q.kept += cap(it.payload)
		q.spare = append(q.spare, it.payload[:0])
	}
	q.mu.Unlock()
}

// buffer takes a spare one. mu is held.
func (q *queue) buffer() []byte {
	if len(q.spare) == 0 {
		return nil
	}
	b := q.spare[len(q.spare)-1]
	q.spare = q.spare[:len(q.spare)-1]
	q.kept -= cap(b)
	return b
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
