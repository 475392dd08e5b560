package chattemplate

import "unsafe"

// Arena is the memory that values are made in: those of a request, and those that a render makes along the way. It is
// best used again, after Reset, for the next request. The zero value is ready. It is not safe for concurrent use.
type Arena struct {
	values  slab[Value]
	entries slab[entry]
	dicts   slab[Dict]
	undef   slab[undefined]
	bytes   slab[byte]
	frames  slab[frame]
	args    slab[args]
	texts   []byte // decoded texts of DecodeJSON; the rest of it is free
	decoded int    // bytes of all of them

	// open lists and dicts of DecodeJSON
	items []Value
	pairs []entry
}

// Reset takes back all values made so far: they must not be used any more.
func (a *Arena) Reset() {
	a.values.reset()
	a.entries.reset()
	a.dicts.reset()
	a.undef.reset()
	a.bytes.reset()
	a.frames.reset()
	a.args.reset()
	a.texts, a.decoded = a.texts[:0], 0
	if cap(a.texts) > keepTexts {
		a.texts = nil
	}
	clear(a.items[:cap(a.items)])
	clear(a.pairs[:cap(a.pairs)])
	a.items, a.pairs = a.items[:0], a.pairs[:0]
	if cap(a.items) > keepOpen {
		a.items = nil
	}
	if cap(a.pairs) > keepOpen {
		a.pairs = nil
	}
}

// What DecodeJSON keeps for the next time, elements and bytes.
const (
	keepOpen  = 1 << 12
	keepTexts = 1 << 20
)

// reserve makes room for decoded texts of n bytes together. Where there is too little, a new block is begun; the old
// one stays with its texts.
func (a *Arena) reserve(n int) []byte {
	a.decoded += n
	if cap(a.texts)-len(a.texts) < n {
		a.texts = make([]byte, 0, max(n, laterChunk))
	}
	at := len(a.texts)
	a.texts = a.texts[:at+n]
	return a.texts[at : at+n : at+n]
}

// Size is the memory handed out since the last Reset, bytes.
func (a *Arena) Size() int {
	return a.values.size() + a.entries.size() + a.dicts.size() + a.undef.size() + a.bytes.size() + a.frames.size() +
		a.args.size() + a.decoded
}

// decodedSize is Size with the lists and dicts that DecodeSpan has not closed yet.
func (a *Arena) decodedSize() int {
	return a.Size() + len(a.items)*int(unsafe.Sizeof(Value{})) + len(a.pairs)*int(unsafe.Sizeof(entry{}))
}

// NewDict makes an empty dict with room for n entries.
func (a *Arena) NewDict(n int) *Dict {
	d := &a.dicts.take(1)[0]
	d.entries = a.entries.take(n)[:0]
	return d
}

// NewList makes a slice of n elements, to be filled and given to List.
func (a *Arena) NewList(n int) []Value { return a.values.take(n) }

// Text keeps a copy of b as a string value.
func (a *Arena) Text(b []byte) Value { return String(a.text(b)) }

func (a *Arena) text(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	out := a.bytes.take(len(b))
	copy(out, b)
	return view(out)
}

// Elements of a slab's chunk: about 4 KiB at first, 64 KiB later. A slab keeps at most keepChunks for the next time.
const (
	firstChunk = 4 << 10
	laterChunk = 64 << 10
	keepChunks = 8
)

// slab hands out zeroed memory piecewise and takes it back all at once.
type slab[T any] struct {
	free   []T   // the rest of the current chunk
	chunks [][]T // those before next are in use
	next   int
	used   int // elements handed out
}

// take hands out n elements. The slice has no room to grow.
func (s *slab[T]) take(n int) []T {
	if n > len(s.free) {
		if out := s.grow(n); out != nil {
			return out
		}
	}
	s.used += n
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// grow makes room for n elements, or hands them out by themselves if they are many.
func (s *slab[T]) grow(n int) []T {
	var zero T
	size := laterChunk / int(unsafe.Sizeof(zero))
	if s.next == 0 {
		size = firstChunk / int(unsafe.Sizeof(zero))
	}
	if n > size/4 && s.next > 0 || n > size {
		s.used += n
		return make([]T, n)
	}
	if s.next == len(s.chunks) {
		s.chunks = append(s.chunks, make([]T, size))
	}
	s.free = s.chunks[s.next]
	s.next++
	return nil
}

// size is the memory handed out, bytes.
func (s *slab[T]) size() int {
	var zero T
	return s.used * int(unsafe.Sizeof(zero))
}

func (s *slab[T]) reset() {
	for i := range s.chunks[:s.next] {
		clear(s.chunks[i])
	}
	if len(s.chunks) > keepChunks {
		clear(s.chunks[keepChunks:])
		s.chunks = s.chunks[:keepChunks]
	}
	s.free, s.next, s.used = nil, 0, 0
}
