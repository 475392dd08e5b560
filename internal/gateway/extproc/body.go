package extproc

import (
	"sync"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

const (
	// firstBody is what is allocated for a body that arrives in pieces, keepBody the largest buffer that is reused.
	firstBody = 16 << 10
	keepBody  = 1 << 20
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, firstBody); return &b }}

// holder counts what is kept for a stream, as an h2stream.Stream does.
type holder interface {
	Hold(n int64) bool
	Release(n int64)
}

// body is a request's body in memory.
type body struct {
	bytes   []byte
	size    int
	changed bool // it differs from what was received
	pooled  *[]byte
	counted int64
}

// add appends a piece. It fails when there is no room for it.
func (b *body) add(h holder, piece []byte) bool {
	if len(piece) == 0 {
		return true
	}
	if b.pooled == nil {
		b.pooled = buffers.Get().(*[]byte)
		b.bytes = (*b.pooled)[:0]
	}
	need := cap(b.bytes)
	if size := len(b.bytes) + len(piece); size > need {
		need = max(size, 2*need)
	}
	if !b.hold(h, int64(need)) {
		return false
	}
	if need > cap(b.bytes) {
		b.bytes = append(make([]byte, 0, need), b.bytes...)
	}
	b.bytes = append(b.bytes, piece...)
	b.size = len(b.bytes)
	return true
}

// hold counts so many bytes for the body in all.
func (b *body) hold(h holder, all int64) bool {
	if more := all - b.counted; more > 0 {
		if !h.Hold(more) {
			return false
		}
		b.counted = all
	}
	return true
}

// replace puts another body in place of the received one. It fails when there is no room for both.
func (b *body) replace(h holder, other []byte) bool {
	if !b.hold(h, b.counted+int64(len(other))) {
		return false
	}
	b.bytes, b.size, b.changed = other, len(other), true
	return true
}

// salt sets the cache salt in a body that was parsed. It fails when there is no room for it.
func (b *body) salt(h holder, salt string) bool {
	keep, tail := openai.PutSalt(b.bytes, salt)
	b.bytes, b.changed = b.bytes[:keep], true
	return b.add(h, tail)
}

// take hands the body over: what is returned gives it back, and must be called when it is no longer read. It is nil
// when there is nothing to give back.
func (b *body) take(h holder) (release func()) {
	if b.counted == 0 {
		return nil
	}
	taken := *b
	*b = body{size: b.size, changed: b.changed}
	return func() { taken.release(h) }
}

// release gives the body back. It can be called again.
func (b *body) release(h holder) {
	h.Release(b.counted)
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
