package enginemodel

import "fmt"

// Block names a physical block of a pool.
type Block int32

const noBlock Block = -1

// blockState is one physical block. A block is in exactly one of three states:
//
//	free, no hash   --Allocate-->  referenced  --Release, no hash-->  free, no hash
//	                               referenced  --Release, hash----->  free, cached
//	free, cached    --Touch----->  referenced
//	free, cached    --Allocate-->  referenced (evicted: the hash is gone)
type blockState struct {
	hash Hash  // 0: not cached
	refs int32 // requests that use it
	// prev and next link the free queue; both noBlock while referenced.
	prev, next Block
	// twinPrev and twinNext link the blocks that hold the same hash, oldest first.
	twinPrev, twinNext Block
}

// twins are the first and last block of those that hold one hash.
type twins struct {
	first, last Block
	count       int32
}

// Pool is a fixed number of reference-counted blocks. Unreferenced blocks wait in a free queue:
// allocation takes from its front, and thereby evicts what the block had cached. Not safe for concurrent use.
type Pool struct {
	blocks []blockState
	cached map[Hash]twins
	free   int
	// head and tail bound the free queue: head is reallocated next.
	head, tail Block
	nCached    int
}

// NewPool returns a pool of n free blocks; n must be positive.
func NewPool(n int) *Pool {
	p := &Pool{blocks: make([]blockState, n), cached: make(map[Hash]twins), head: noBlock, tail: noBlock}
	for i := range p.blocks {
		b := &p.blocks[i]
		b.prev, b.next, b.twinPrev, b.twinNext = noBlock, noBlock, noBlock, noBlock
		p.pushBack(Block(i))
	}
	return p
}

// Len is the number of blocks.
func (p *Pool) Len() int { return len(p.blocks) }

// Free is the number of unreferenced blocks, cached or not.
func (p *Pool) Free() int { return p.free }

// Cached is the number of physical blocks that hold a hash.
func (p *Pool) Cached() int { return p.nCached }

// Copies is the number of physical blocks that hold h.
func (p *Pool) Copies(h Hash) int { return int(p.cached[h].count) }

// Lookup returns the oldest block that holds h.
func (p *Pool) Lookup(h Hash) (Block, bool) {
	t, ok := p.cached[h]
	return t.first, ok
}

// Refs is the number of references to b.
func (p *Pool) Refs(b Block) int { return int(p.blocks[b].refs) }

// Touch adds a reference to b and takes it out of the free queue.
func (p *Pool) Touch(b Block) {
	s := &p.blocks[b]
	if s.refs == 0 {
		p.unlink(b)
	}
	s.refs++
}

// Allocate takes the block at the front of the free queue, references it and forgets its content. evicted is the hash
// that the block held, 0 if none. ok is false when no block is free.
func (p *Pool) Allocate() (b Block, evicted Hash, ok bool) {
	b = p.head
	if b == noBlock {
		return noBlock, 0, false
	}
	p.unlink(b)
	evicted = p.forget(b)
	p.blocks[b].refs = 1
	return b, evicted, true
}

// Commit caches the referenced block b under h. Another block can hold h already.
func (p *Pool) Commit(b Block, h Hash) {
	s := &p.blocks[b]
	if s.refs == 0 || s.hash != 0 || h == 0 {
		panic(fmt.Sprintf("enginemodel: committing block %d with %d references and hash %x as %x", b, s.refs, s.hash, h))
	}
	s.hash = h
	p.nCached++
	t, ok := p.cached[h]
	if !ok {
		p.cached[h] = twins{first: b, last: b, count: 1}
		return
	}
	p.blocks[t.last].twinNext, s.twinPrev = b, t.last
	t.last = b
	t.count++
	p.cached[h] = t
}

// Release drops one reference from each block of a request, last block first. Blocks without references become
// free: those with a hash will be reallocated last, the request's tail before its root; those without one first.
func (p *Pool) Release(blocks []Block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		s := &p.blocks[b]
		if s.refs <= 0 {
			panic(fmt.Sprintf("enginemodel: releasing block %d, which has no references", b))
		}
		s.refs--
		switch {
		case s.refs > 0:
		case s.hash == 0:
			p.pushFront(b)
		default:
			p.pushBack(b)
		}
	}
}

// EvictOldest forgets the content of up to n free cached blocks in the order in which allocation would, and calls
// evicted for each. The blocks stay where they are in the free queue.
func (p *Pool) EvictOldest(n int, evicted func(Hash)) {
	for b := p.head; b != noBlock && n > 0; b = p.blocks[b].next {
		if h := p.forget(b); h != 0 {
			evicted(h)
			n--
		}
	}
}

// Reset forgets the content of all blocks. It reports false and does nothing while a block is referenced.
func (p *Pool) Reset() bool {
	if p.free != len(p.blocks) {
		return false
	}
	p.EvictOldest(len(p.blocks), func(Hash) {})
	return true
}

// All calls yield for each cached hash and the number of its physical blocks, in no order, until it returns false.
func (p *Pool) All(yield func(h Hash, copies int) bool) {
	for h, t := range p.cached {
		if !yield(h, int(t.count)) {
			return
		}
	}
}

// forget takes b's hash away and returns it.
func (p *Pool) forget(b Block) Hash {
	s := &p.blocks[b]
	h := s.hash
	if h == 0 {
		return 0
	}
	p.nCached--
	t := p.cached[h]
	t.count--
	if t.count == 0 {
		delete(p.cached, h)
	} else {
		if s.twinPrev == noBlock {
			t.first = s.twinNext
		} else {
			p.blocks[s.twinPrev].twinNext = s.twinNext
		}
		if s.twinNext == noBlock {
			t.last = s.twinPrev
		} else {
			p.blocks[s.twinNext].twinPrev = s.twinPrev
		}
		p.cached[h] = t
	}
	s.hash, s.twinPrev, s.twinNext = 0, noBlock, noBlock
	return h
}

func (p *Pool) pushBack(b Block) {
	s := &p.blocks[b]
	s.prev, s.next = p.tail, noBlock
	if p.tail == noBlock {
		p.head = b
	} else {
		p.blocks[p.tail].next = b
	}
	p.tail = b
	p.free++
}

func (p *Pool) pushFront(b Block) {
	s := &p.blocks[b]
	s.prev, s.next = noBlock, p.head
	if p.head == noBlock {
		p.tail = b
	} else {
		p.blocks[p.head].prev = b
	}
	p.head = b
	p.free++
}

func (p *Pool) unlink(b Block) {
	s := &p.blocks[b]
	if s.prev == noBlock {
		p.head = s.next
	} else {
		p.blocks[s.prev].next = s.next
	}
	if s.next == noBlock {
		p.tail = s.prev
	} else {
		p.blocks[s.next].prev = s.prev
	}
	s.prev, s.next = noBlock, noBlock
	p.free--
}
