package vllm

import (
	"encoding/binary"
	"math"
)

// reader reads MessagePack bytes. Every method returns false, and leaves the position anywhere, when the next object is not
// of the requested type or runs past the end; the caller then returns to a saved position. Counts are accepted only as far
// as the remaining bytes could hold them, so no allocation depends on a claim.
type reader struct {
	data []byte
	at   int
}

func (r *reader) left() int { return len(r.data) - r.at }

// peek is the first byte of the next object, 0xc1 (never used by the format) at the end.
func (r *reader) peek() byte {
	if r.at >= len(r.data) {
		return 0xc1
	}
	return r.data[r.at]
}

// isNil consumes a nil.
func (r *reader) isNil() bool {
	if r.peek() != 0xc0 {
		return false
	}
	r.at++
	return true
}

// take consumes n bytes.
func (r *reader) take(n int) ([]byte, bool) {
	if n < 0 || n > r.left() {
		return nil, false
	}
	b := r.data[r.at : r.at+n : r.at+n]
	r.at += n
	return b, true
}

// uint consumes a big-endian number of width 1, 2, 4 or 8 bytes.
func (r *reader) uint(width int) (uint64, bool) {
	b, ok := r.take(width)
	if !ok {
		return 0, false
	}
	switch width {
	case 1:
		return uint64(b[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), true
	}
	return binary.BigEndian.Uint64(b), true
}

// size consumes the length that follows a type byte and checks it against the bytes left, each counted thing taking
// at least unit bytes.
func (r *reader) size(width, unit int) (int, bool) {
	n, ok := r.uint(width)
	if !ok || n > uint64(r.left()/unit) {
		return 0, false
	}
	return int(n), true
}

// array consumes an array's header.
func (r *reader) array() (int, bool) {
	c := r.peek()
	switch {
	case c&0xf0 == 0x90:
		r.at++
		n := int(c & 0x0f)
		return n, n <= r.left()
	case c == 0xdc:
		r.at++
		return r.size(2, 1)
	case c == 0xdd:
		r.at++
		return r.size(4, 1)
	}
	return 0, false
}

// mapping consumes a map's header and answers the number of pairs.
func (r *reader) mapping() (int, bool) {
	c := r.peek()
	switch {
	case c&0xf0 == 0x80:
		r.at++
		n := int(c & 0x0f)
		return n, 2*n <= r.left()
	case c == 0xde:
		r.at++
		return r.size(2, 2)
	case c == 0xdf:
		r.at++
		return r.size(4, 2)
	}
	return 0, false
}

// str consumes a string. The bytes are the payload's own.
func (r *reader) str() ([]byte, bool) {
	c := r.peek()
	var width int
	switch {
	case c&0xe0 == 0xa0:
		r.at++
		return r.take(int(c & 0x1f))
	case c == 0xd9:
		width = 1
	case c == 0xda:
		width = 2
	case c == 0xdb:
		width = 4
	default:
		return nil, false
	}
	r.at++
	n, ok := r.size(width, 1)
	if !ok {
		return nil, false
	}
	return r.take(n)
}

// key consumes the key of a map, and answers nothing for one that is no string: no key known here.
func (r *reader) key() ([]byte, bool) {
	start := r.at
	if k, ok := r.str(); ok {
		return k, true
	}
	r.at = start
	return nil, r.skip()
}

// bin consumes a byte string. The bytes are the payload's own.
func (r *reader) bin() ([]byte, bool) {
	var width int
	switch r.peek() {
	case 0xc4:
		width = 1
	case 0xc5:
		width = 2
	case 0xc6:
		width = 4
	default:
		return nil, false
	}
	r.at++
	n, ok := r.size(width, 1)
	if !ok {
		return nil, false
	}
	return r.take(n)
}

// integer consumes an integer of any width. v is in two's complement; negative reports how to read it.
func (r *reader) integer() (v uint64, negative, ok bool) {
	c := r.peek()
	switch {
	case c < 0x80:
		r.at++
		return uint64(c), false, true
	case c >= 0xe0:
		r.at++
		return uint64(int64(int8(c))), true, true
	case c >= 0xcc && c <= 0xcf:
		r.at++
		v, ok = r.uint(1 << (c - 0xcc))
		return v, false, ok
	case c >= 0xd0 && c <= 0xd3:
		r.at++
		width := 1 << (c - 0xd0)
		v, ok = r.uint(width)
		shift := 64 - 8*width
		signed := int64(v<<shift) >> shift
		return uint64(signed), signed < 0, ok
	}
	return 0, false, false
}

// count consumes an integer from 0 to 2^31-1.
func (r *reader) count() (int, bool) {
	v, negative, ok := r.integer()
	if !ok || negative || v > math.MaxInt32 {
		return 0, false
	}
	return int(v), true
}

// number consumes a float or an integer.
func (r *reader) number() (float64, bool) {
	switch r.peek() {
	case 0xca:
		r.at++
		v, ok := r.uint(4)
		return float64(math.Float32frombits(uint32(v))), ok
	case 0xcb:
		r.at++
		v, ok := r.uint(8)
		return math.Float64frombits(v), ok
	}
	v, negative, ok := r.integer()
	if negative {
		return float64(int64(v)), ok
	}
	return float64(v), ok
}

// skip consumes one object of any type. Nesting costs no stack: only the number of remaining objects is kept.
func (r *reader) skip() bool {
	for pending := 1; pending > 0; pending-- {
		more, ok := r.skipHead()
		if !ok {
			return false
		}
		pending += more
		// Every remaining object takes a byte at least.
		if pending-1 > r.left() {
			return false
		}
	}
	return true
}

// skipHead consumes a scalar, or the header of an array or map and answers how many objects it holds.
func (r *reader) skipHead() (int, bool) {
	c := r.peek()
	switch {
	case c&0xf0 == 0x80 || c == 0xde || c == 0xdf:
		n, ok := r.mapping()
		return 2 * n, ok
	case c&0xf0 == 0x90 || c == 0xdc || c == 0xdd:
		return r.array()
	case c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb:
		_, ok := r.str()
		return 0, ok
	case c >= 0xc4 && c <= 0xc6:
		_, ok := r.bin()
		return 0, ok
	case c == 0xc0 || c == 0xc2 || c == 0xc3:
		r.at++
		return 0, true
	case c >= 0xc7 && c <= 0xc9: // ext 8, 16, 32: length, type, bytes
		r.at++
		n, ok := r.size(1<<(c-0xc7), 1)
		if !ok {
			return 0, false
		}
		_, ok = r.take(1 + n)
		return 0, ok
	case c >= 0xd4 && c <= 0xd8: // fixext 1 to 16: type, bytes
		r.at++
		_, ok := r.take(1 + 1<<(c-0xd4))
		return 0, ok
	}
	_, ok := r.number()
	return 0, ok
}
