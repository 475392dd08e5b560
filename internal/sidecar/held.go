package sidecar

import (
	"errors"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"
)

// held is a body in memory, which counts until the last reader has closed: a connection can go on to read after its request was given up.
type held struct {
	server *Server
	bytes  []byte
	pooled *[]byte // what bytes is in
	refs   atomic.Int32
}

// Bodies of up to largest bytes are kept for other requests, by size: from smallest on, each twice the one before.
const (
	smallest = 16 << 10
	largest  = 1 << 20
)

var bodies [7]sync.Pool

// roomFor is how many bytes are allocated for a body of so many, and the place in bodies; -1 for none.
func roomFor(size int) (room, class int) {
	if size > largest {
		return size, -1
	}
	class = bits.Len(uint(max(size, smallest)-1)) - bits.Len(uint(smallest-1))
	return smallest << class, class
}

// newHeld makes room for a body, whose only reference is the caller's; nil if there is none.
func (s *Server) newHeld(size int) *held {
	room, class := roomFor(size)
	if !s.take(int64(room)) {
		return nil
	}
	h := &held{server: s}
	h.refs.Store(1)
	if class >= 0 {
		h.pooled, _ = bodies[class].Get().(*[]byte)
	}
	if h.pooled == nil {
		b := make([]byte, 0, room)
		h.pooled = &b
	}
	h.bytes = (*h.pooled)[:0]
	return h
}

// grown is a body with the same bytes and room for more, in place of h; nil if there is none.
func (h *held) grown(size int) *held {
	more := h.server.newHeld(size)
	if more != nil {
		more.bytes = append(more.bytes, h.bytes...)
		h.release()
	}
	return more
}

// release gives up a reference. Calls on nil do nothing.
func (h *held) release() {
	if h == nil || h.refs.Add(-1) > 0 {
		return
	}
	room := cap(*h.pooled)
	if room == 0 {
		return
	}
	if _, class := roomFor(room); class >= 0 {
		bodies[class].Put(h.pooled)
	}
	h.server.give(int64(room))
}

// reader reads the body.
func (h *held) reader() io.ReadCloser {
	h.refs.Add(1)
	return &heldReader{held: h}
}

type heldReader struct {
	mu   sync.Mutex
	held *held // nil when closed
	at   int
}

// Read implements io.Reader.
func (r *heldReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.held == nil:
		return 0, errors.New("reading a closed body")
	case r.at == len(r.held.bytes):
		return 0, io.EOF
	}
	n := copy(p, r.held.bytes[r.at:])
	r.at += n
	return n, nil
}

// Close is idempotent.
func (r *heldReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held.release()
	r.held = nil
	return nil
}

// take counts bytes of bodies. It reports false, and counts none, if there is no room for them.
func (s *Server) take(n int64) bool {
	if s.held.Add(n) > s.options.Memory {
		s.held.Add(-n)
		return false
	}
	return true
}

// give is the end of take.
func (s *Server) give(n int64) { s.held.Add(-n) }
