package picker

import (
	"container/heap"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// pending holds the decisions that speculate: by when they must stop at the latest, and by the block that confirms
// them. A decision that has ended with a complete answer stays for at most eventGrace, other ones leave it at their end.
//
// Lock order: a decision's mutex before pending's. So pending never calls a decision under its own lock.
type pending struct {
	mu    sync.Mutex
	queue deadlines
	last  map[lastBlock][]*Decision
}

// lastBlock is the last full block of a prompt at the endpoint that should announce it.
type lastBlock struct {
	holder kvindex.Holder
	key    kvblock.Key
}

// pendingEntry is a decision's place in pending.
type pendingEntry struct {
	deadline time.Time
	index    int // in the queue, from 1; 0 when it is not there
	block    lastBlock
}

// add enters a decision, whose last block has a key. d.mu is held, or d is not shared yet.
func (p *pending) add(d *Decision, last kvblock.Key, deadline time.Time) {
	block := lastBlock{holder: d.Targets[d.target].member.holder, key: last}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[lastBlock][]*Decision{}
	}
	d.entry = pendingEntry{deadline: deadline, block: block}
	heap.Push(&p.queue, d)
	p.last[block] = append(p.last[block], d)
}

// remove takes a decision out, if it is there. d.mu is held.
func (p *pending) remove(d *Decision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.entry.index == 0 {
		return
	}
	heap.Remove(&p.queue, d.entry.index-1)
	list := p.last[d.entry.block]
	for i := range list {
		if list[i] == d {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(p.last, d.entry.block)
	} else {
		p.last[d.entry.block] = list
	}
}

// has reports whether a decision is in it. d.mu is held.
func (p *pending) has(d *Decision) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return d.entry.index != 0
}

// shorten moves a decision's deadline nearer, if it is there. d.mu is held.
func (p *pending) shorten(d *Decision, deadline time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.entry.index == 0 || !deadline.Before(d.entry.deadline) {
		return
	}
	d.entry.deadline = deadline
	heap.Fix(&p.queue, d.entry.index-1)
}

// expire ends the speculation of all decisions whose deadline has passed.
func (p *pending) expire(now time.Time) {
	for d := p.late(now); d != nil; d = p.late(now) {
		d.endPrefill(now, nil)
	}
}

// late returns a decision whose deadline has passed, nil without one.
func (p *pending) late(now time.Time) *Decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 || !now.After(p.queue[0].entry.deadline) {
		return nil
	}
	return p.queue[0]
}

// confirm ends the speculation of the decisions whose last full block is among keys.
func (p *pending) confirm(now time.Time, holder kvindex.Holder, keys []kvblock.Key) {
	for _, key := range keys {
		block := lastBlock{holder, key}
		for _, d := range p.waiting(block) {
			d.endPrefill(now, &block)
		}
	}
}

// waiting copies the decisions that a block confirms.
func (p *pending) waiting(block lastBlock) []*Decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.last[block]) == 0 {
		return nil
	}
	return append([]*Decision(nil), p.last[block]...)
}

// size is the number of decisions that speculate.
func (p *pending) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}

// deadlines is a heap of decisions, the nearest deadline first.
type deadlines []*Decision

func (q deadlines) Len() int           { return len(q) }
func (q deadlines) Less(i, j int) bool { return q[i].entry.deadline.Before(q[j].entry.deadline) }
func (q deadlines) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].entry.index, q[j].entry.index = i+1, j+1
}

// Push is for container/heap.
func (q *deadlines) Push(x any) {
	d := x.(*Decision)
	*q = append(*q, d)
	d.entry.index = len(*q)
}

// Pop is for container/heap.
func (q *deadlines) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	d.entry.index = 0
	return d
}
