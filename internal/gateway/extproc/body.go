package extproc

import (
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// firstBody is the least that is allocated for a body that arrives in pieces.
const firstBody = 16 << 10

// holder counts what is kept for a stream, as an h2stream.Stream does.
type holder interface {
	Hold(n int64) bool
	Release(n int64)
}

// body is a request's body in memory.
type body struct {
	request.Buffer
	size    int
	changed bool // it differs from what was received
}

// add appends a piece. It fails when there is no room for it.
func (b *body) add(h holder, piece []byte) bool {
	if len(piece) == 0 {
		return true
	}
	size := len(b.Bytes) + len(piece)
	if size > cap(b.Bytes) {
		size = max(size, 2*cap(b.Bytes), firstBody)
	}
	if !b.Fill(h.Hold, size) {
		return false
	}
	b.Bytes = append(b.Bytes, piece...)
	b.size = len(b.Bytes)
	return true
}

// replace puts another body in place of the received one. It fails when there is no room for both.
func (b *body) replace(h holder, other []byte) bool {
	ok := b.Replace(h.Hold, other)
	b.size, b.changed = len(b.Bytes), b.changed || ok
	return ok
}

// rename puts another name in place of the model that was parsed from the body. It fails when there is no room for it.
func (b *body) rename(h holder, r *openai.Request, model string) bool {
	ok := b.Rename(h.Hold, r, model)
	b.size, b.changed = len(b.Bytes), b.changed || ok
	return ok
}

// salt sets the cache salt in a body that was parsed. It fails when there is no room for it.
func (b *body) salt(h holder, salt string) bool {
	ok := b.Salt(h.Hold, salt)
	b.size, b.changed = len(b.Bytes), true
	return ok
}

// take hands the body over: what is returned gives it back, and must be called when it is no longer read. It is nil
// when there is nothing to give back.
func (b *body) take(h holder) (release func()) {
	if b.Bytes == nil {
		return nil
	}
	taken := b.Buffer
	b.Buffer = request.Buffer{}
	return func() { h.Release(taken.Free()) }
}

// release gives the body back. It can be called again.
func (b *body) release(h holder) { h.Release(b.Free()) }
