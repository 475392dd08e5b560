package kvindex

import (
	"sync"
	"sync/atomic"
)

const (
	runChunkBits = 10
	runChunkLen  = 1 << runChunkBits
	runChunkSize = runChunkLen * 10 // bytes, with the list of vacant numbers
)

// runs finds runs by number: chunks of pointers, so that it grows without moving. Readers take no lock.
type runs struct {
	chunks atomic.Pointer[[]*runChunk]
	limit  int // chunks, at most
	bytes  *atomic.Int64

	mu   sync.Mutex
	room []int // chunks that might have vacant numbers, or that are not there; no chunk twice
}

type runChunk struct {
	runs [runChunkLen]atomic.Pointer[run]
	// vacant numbers in this chunk, and whether the chunk is in runs.room; under runs.mu.
	vacant []uint16
	listed bool
}

func (t *runs) init(bytes *atomic.Int64) {
	t.bytes, t.limit = bytes, maxRuns/runChunkLen
	t.chunks.Store(&[]*runChunk{})
}

// get is the run with a number, nil if there is none.
func (t *runs) get(id uint32) *run {
	chunks := *t.chunks.Load()
	if at := int(id >> runChunkBits); at < len(chunks) && chunks[at] != nil {
		return chunks[at].runs[id%runChunkLen].Load()
	}
	return nil
}

// set replaces the run with a number that has been taken.
func (t *runs) set(id uint32, r *run) {
	(*t.chunks.Load())[id>>runChunkBits].runs[id%runChunkLen].Store(r)
}

// take finds a vacant number, if there is one.
func (t *runs) take() (id uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	chunks := *t.chunks.Load()
	for len(t.room) > 0 {
		at := t.room[len(t.room)-1]
		if chunks[at] == nil {
			chunks = t.replace(at, newRunChunk(at))
		}
		c := chunks[at]
		if n := len(c.vacant); n > 0 {
			id = uint32(at)<<runChunkBits | uint32(c.vacant[n-1])
			c.vacant = c.vacant[:n-1]
			return id, true
		}
		c.listed = false
		t.room = t.room[:len(t.room)-1]
	}
	if len(chunks) == t.limit {
		return 0, false
	}
	c := newRunChunk(len(chunks))
	t.room = append(t.room, len(chunks))
	t.replace(len(chunks), c)
	id = uint32(len(chunks))<<runChunkBits | uint32(c.vacant[len(c.vacant)-1])
	c.vacant = c.vacant[:len(c.vacant)-1]
	return id, true
}

// give frees a number, and with the last number of a chunk the chunk, except for the first one.
func (t *runs) give(id uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := int(id >> runChunkBits)
	c := (*t.chunks.Load())[at]
	c.runs[id%runChunkLen].Store(nil)
	c.vacant = append(c.vacant, uint16(id%runChunkLen))
	if !c.listed {
		c.listed = true
		t.room = append(t.room, at)
	}
	if len(c.vacant) == runChunkLen {
		t.replace(at, nil)
	}
}

// replace publishes a chunk, or that there is none any more.
func (t *runs) replace(at int, c *runChunk) []*runChunk {
	old := *t.chunks.Load()
	chunks := append(make([]*runChunk, 0, max(len(old), at+1)), old...)
	if at == len(chunks) {
		chunks = append(chunks, nil)
	}
	if c != nil {
		t.bytes.Add(runChunkSize)
	} else {
		t.bytes.Add(-runChunkSize)
	}
	chunks[at] = c
	t.chunks.Store(&chunks)
	return chunks
}

func newRunChunk(at int) *runChunk {
	c := &runChunk{vacant: make([]uint16, 0, runChunkLen), listed: true}
	for i := runChunkLen - 1; i >= 0; i-- {
		if at > 0 || i > 0 { // number 0 is none
			c.vacant = append(c.vacant, uint16(i))
		}
	}
	return c
}
