package request

import (
	"bytes"
	"slices"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// KeepBuffer is the largest buffer that is kept for further requests, in bytes.
const KeepBuffer = 1 << 20

// buffers are kept by size: a request is charged for all of its buffer, so that one of more than 16 KiB must not get a buffer of more
// than twice its size. It could be refused for that alone.
var buffers [7]sync.Pool

// classOf is the place in buffers of a buffer of n bytes: up to 16 KiB, 32 KiB and so on, and more than 512 KiB.
func classOf(n int) int {
	class := 0
	for most := KeepBuffer >> 6; n > most && class < len(buffers)-1; most <<= 1 {
		class++
	}
	return class
}

// kept is a kept buffer for about n bytes, or an empty one.
func kept(n int) *[]byte {
	if b, ok := buffers[classOf(n)].Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

// keep keeps a buffer for other requests, unless it is too large.
func keep(b *[]byte) {
	if cap(*b) <= KeepBuffer {
		buffers[classOf(cap(*b))].Put(b)
	}
}

// Buffer is a request's body in memory that was counted before it was allocated. The zero value is an empty one.
type Buffer struct {
	Bytes []byte

	pooled  *[]byte // where Bytes is kept for the next request; nil until there is a buffer
	counted int64
	ids     int64 // bytes counted for the ids of prompts
}

const (
	// freeIDs is the size of a body up to which the ids of its prompts are not counted: what a request takes in any case is more.
	freeIDs = 4 << 10
	// idCost is what an id takes in a list that grows by a quarter.
	idCost = 5
)

// TakeIDs counts what the ids of prompts take while the body is in use, before it is parsed: each is 2 bytes of the body, and more in
// memory. It fails when there is no room for them. It is called once.
func (b *Buffer) TakeIDs(take func(more int64) bool, route openai.Route) bool {
	if len(b.Bytes) <= freeIDs || route != openai.Completions && route != openai.Embeddings {
		return true
	}
	n := idCost * int64(bytes.Count(b.Bytes, []byte{','}))
	if !take(n) {
		return false
	}
	b.ids += n
	return true
}

// Grow makes room for size bytes in all. take counts more bytes, and reports whether there is room for them; without room Grow fails.
// What refers to the bytes can go on to read them.
func (b *Buffer) Grow(take func(more int64) bool, size int) bool { return b.grow(take, size, false) }

// Fill is Grow while a body arrives: nothing refers to its bytes yet, so a buffer that has become too small is kept for other requests.
func (b *Buffer) Fill(take func(more int64) bool, size int) bool { return b.grow(take, size, true) }

func (b *Buffer) grow(take func(more int64) bool, size int, arriving bool) bool {
	if b.pooled != nil && size <= cap(b.Bytes) {
		return b.count(take, int64(cap(b.Bytes)))
	}
	next := kept(size)
	if !b.count(take, int64(max(size, cap(*next)))) {
		keep(next)
		return false
	}
	if cap(*next) < size {
		*next = make([]byte, 0, size)
	}
	*next = append((*next)[:0], b.Bytes...)
	if arriving && b.pooled != nil {
		*b.pooled = b.Bytes[:0]
		keep(b.pooled)
	}
	b.pooled, b.Bytes = next, *next
	return true
}

// count counts so many bytes in all.
func (b *Buffer) count(take func(more int64) bool, all int64) bool {
	if more := all - b.counted; more > 0 {
		if !take(more) {
			return false
		}
		b.counted = all
	}
	return true
}

// Replace puts other bytes in place of the buffer's. It fails when there is no room for both.
func (b *Buffer) Replace(take func(more int64) bool, other []byte) bool {
	if !b.count(take, b.counted+int64(len(other))) {
		return false
	}
	if b.pooled == nil {
		b.pooled = new([]byte)
	}
	b.Bytes = other
	return true
}

// End replaces what is behind the first keep bytes. It fails when there is no room for the new end.
func (b *Buffer) End(take func(more int64) bool, keep int, tail []byte) bool {
	if !b.Grow(take, keep+len(tail)) {
		return false
	}
	b.Bytes = append(b.Bytes[:keep], tail...)
	return true
}

// Rename puts another name in place of the model that was parsed from the body. It fails when there is no room for it.
func (b *Buffer) Rename(take func(more int64) bool, r *openai.Request, model string) bool {
	name := openai.ModelName(model)
	at, end, size := r.ModelAt, r.ModelEnd, len(b.Bytes)
	if !b.Grow(take, size+max(0, len(name)-(end-at))) {
		return false
	}
	b.Bytes = slices.Replace(b.Bytes, at, end, name...)
	return true
}

// Salt sets the cache salt in a body that was parsed. It fails when there is no room for it.
func (b *Buffer) Salt(take func(more int64) bool, salt string) bool {
	keep, tail := openai.PutSalt(b.Bytes, salt)
	return b.End(take, keep, tail)
}

// Free gives the buffer back and returns how many bytes were counted for it. Nothing reads it any more. It can be called again.
func (b *Buffer) Free() (counted int64) {
	if b.pooled != nil {
		*b.pooled = b.Bytes[:0]
		keep(b.pooled)
	}
	counted = b.counted + b.ids
	*b = Buffer{}
	return counted
}
