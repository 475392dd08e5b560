// Package routinghistory remembers what was routed where, for prompts whose tokens, or whose engines' caches, are not known: an
// endpoint that received a text has probably cached its beginning. It is an estimate: evictions are not reported. Requests of other
// pickers are recorded when these send them, and a picker that starts copies what another one remembers.
//
// A prompt's text is cut into chunks of a fixed number of bytes, each named by a hash of it and all before it, so that
// equal names mean equal beginnings. Each endpoint has a Memory of chunks, bounded, which forgets what has not been
// routed there for the longest time, as the engine's cache probably does.
package routinghistory

import (
	"encoding/binary"
	"math/bits"
	"sync"
)

// Chunk names a chunk of a text together with everything before it.
type Chunk uint64

// Chain cuts texts into chunks. The zero value must be Reset; its buffer is used again.
type Chain struct {
	chunks []Chunk
	state  uint64
	word   uint64 // bytes that do not fill eight yet
	bytes  int    // of them in the chunk so far
	size   int
	limit  int
}

// Reset begins a text. root separates what never shares a cache: pools, models and adapters, salts. chunkBytes is the size
// of a chunk, at least 1; of the text, the first maxChunks chunks count.
func (c *Chain) Reset(root uint64, chunkBytes, maxChunks int) {
	if chunkBytes < 1 {
		panic("affinity: a chunk has at least one byte")
	}
	c.chunks, c.state, c.word, c.bytes, c.size, c.limit = c.chunks[:0], root, 0, 0, chunkBytes, maxChunks
}

// Add appends to the text. Adding it in pieces gives the same chunks as adding it at once.
func (c *Chain) Add(text []byte) {
	for len(text) > 0 && len(c.chunks) < c.limit {
		if c.bytes%8 == 0 && len(text) >= 8 && c.size-c.bytes >= 8 {
			c.step(binary.LittleEndian.Uint64(text))
			c.bytes += 8
			text = text[8:]
		} else {
			c.word |= uint64(text[0]) << (8 * (c.bytes % 8))
			c.bytes++
			text = text[1:]
			if c.bytes%8 == 0 || c.bytes == c.size {
				c.step(c.word)
				c.word = 0
			}
		}
		if c.bytes == c.size {
			c.chunks = append(c.chunks, Chunk(c.state))
			c.bytes = 0
		}
	}
}

// Rest is how many more bytes of the text count.
func (c *Chain) Rest() int { return (c.limit-len(c.chunks))*c.size - c.bytes }

// Odd constants with no structure (hexadecimal digits of the fractional part of pi).
const (
	c0 = 0x243f6a8885a308d3
	c1 = 0x13198a2e03707345
)

func (c *Chain) step(word uint64) {
	hi, lo := bits.Mul64(c.state^c0, word^c1)
	c.state = hi ^ lo ^ bits.RotateLeft64(c.state, 23)
}

// Chunks returns the complete chunks so far. They are valid until the next Reset; an incomplete chunk has no name.
func (c *Chain) Chunks() []Chunk { return c.chunks }

// Memory is what was routed to one endpoint. It holds a bounded number of chunks, about 60 bytes each, and is safe for
// concurrent use. The zero value holds nothing.
//
// It never holds a chunk without those before it: every Record makes the entire chain the most recent one, its beginning
// first, and the least recent chunk is dropped first.
type Memory struct {
	mu     sync.Mutex
	limit  int
	at     map[Chunk]int32
	chunks []Chunk // by place
	order  ring    // of use, the most recent one first
}

// NewMemory returns a memory of at most maxChunks chunks.
func NewMemory(maxChunks int) *Memory { return &Memory{limit: maxChunks} }

// Record remembers that a text was routed to the endpoint; of a chain that is longer than the memory, the beginning.
//
// Chunks that were recorded together are neighbours in the order of use, so nearly all of a known chain is found without
// the map.
func (m *Memory) Record(chain []Chunk) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	var before, follows int32 // the place of the chunk before; the place that followed it until it was moved
	for _, chunk := range chain[:min(len(chain), m.limit)] {
		n := m.order[before].next
		switch {
		case n != 0 && m.chunks[n] == chunk: // in its place already
			before = n
			continue
		case follows != 0 && m.chunks[follows] == chunk:
			n = follows
		default:
			n = m.at[chunk]
		}
		switch n {
		case 0:
			n, follows = m.place(), 0
			m.chunks[n] = chunk
			m.at[chunk] = n
		case before: // two chunks of the same name
			continue
		default:
			follows = m.order[n].next
			m.order.unlink(n)
		}
		m.order.link(n, before)
		before = n
	}
}

// Recent returns the most recent chunks, at most most of them, the most recent one first.
func (m *Memory) Recent(most int) []Chunk {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.at) == 0 {
		return nil
	}
	list := make([]Chunk, 0, min(most, len(m.at)))
	for n := m.order[0].next; n != 0 && len(list) < most; n = m.order[n].next {
		list = append(list, m.chunks[n])
	}
	return list
}

// Append remembers, as the least recent ones, chunks of Recent of another memory of the endpoint. Known chunks stay where they are,
// and there is no more than the memory has room for. Parts of such a list are appended in their order.
func (m *Memory) Append(recent []Chunk) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	for _, chunk := range recent {
		if len(m.at) >= m.limit {
			return
		}
		if m.at[chunk] == 0 {
			n := m.place()
			m.chunks[n] = chunk
			m.at[chunk] = n
			m.order.link(n, m.order[0].prev)
		}
	}
}

// begin makes the memory able to hold chunks. mu is held.
func (m *Memory) begin() {
	if m.at == nil {
		m.at, m.chunks, m.order = map[Chunk]int32{}, make([]Chunk, 1), make(ring, 1)
	}
}

// Match is how many leading chunks of a text were routed to the endpoint. It touches nothing. guess is a possible answer,
// such as that of another endpoint. The number of steps is logarithmic in the answer's distance from it, or from 0 if the
// answer is less.
func (m *Memory) Match(chain []Chunk, guess int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	low, high := 0, min(len(chain), len(m.at)) // the first low chunks are held, those from high on are not
	if guess = min(guess, high); guess > 0 {
		if _, held := m.at[chain[guess-1]]; held {
			low = guess
		} else {
			high = guess - 1
		}
	}
	for reach := 0; low < high; {
		middle := min(low+reach, (low+high)/2)
		if _, held := m.at[chain[middle]]; held {
			low, reach = middle+1, 2*reach+1
		} else {
			high = middle
		}
	}
	return low
}

// Clear forgets everything.
func (m *Memory) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at, m.chunks, m.order = nil, nil, nil
}

// Len is the number of chunks held.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.at)
}

// place finds a place for a new chunk; the least recent one's where there is no room.
func (m *Memory) place() int32 {
	if len(m.at) < m.limit {
		m.chunks = append(m.chunks, 0)
		return m.order.grow()
	}
	last := m.order[0].prev
	m.order.unlink(last)
	delete(m.at, m.chunks[last])
	return last
}
