package extproc

import "sync"

const (
	// firstBody is what is set aside for a body that comes in pieces, keepBody the largest buffer used again.
	firstBody = 128 << 10
	keepBody  = 1 << 20
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, firstBody); return &b }}

// body is a request's body in memory.
type body struct {
	bytes   []byte
	size    int
	changed bool // it is not what has come
	pooled  *[]byte
	counted int64
}

// add appends a piece. It fails when the server holds too much.
func (b *body) add(s *Server, piece []byte) bool {
	switch {
	case len(piece) == 0:
		return true
	case b.pooled != nil:
		b.bytes = append(b.bytes, piece...)
	default:
		b.pooled = buffers.Get().(*[]byte)
		b.bytes = (*b.pooled)[:0]
		b.bytes = append(b.bytes, piece...)
	}
	b.size = len(b.bytes)
	b.counted += int64(len(piece))
	return s.buffered.Add(int64(len(piece))) <= s.options.MaxBuffered
}

// replace puts another body in place of what has come.
func (b *body) replace(other []byte) {
	b.bytes, b.size, b.changed = other, len(other), true
}

// take hands the body over: what is returned gives it back, and must be called once nobody reads it any more. It is nil
// when there is nothing to give back.
func (b *body) take(s *Server) (release func()) {
	if b.counted == 0 {
		return nil
	}
	taken := *b
	*b = body{size: b.size, changed: b.changed}
	return func() { taken.release(s) }
}

// release gives the body back. It may be called again.
func (b *body) release(s *Server) {
	s.buffered.Add(-b.counted)
	b.counted = 0
	if b.pooled != nil {
		if !b.changed && cap(b.bytes) <= keepBody {
			*b.pooled = b.bytes[:0]
			buffers.Put(b.pooled)
		}
		b.pooled = nil
	}
	b.bytes = nil
}
