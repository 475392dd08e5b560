package openai

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects can nest, the body's own object included.
const MaxDepth = 128

// SyntaxError reports where a body stops being JSON, or JSON that is read here.
type SyntaxError struct {
	// Offset of the offending byte from the start of the body; the length of the body where it ends too early.
	Offset int
	// Msg describes the error, without any byte of the body.
	Msg string
	// TooDeep: the body is JSON so far, but nests deeper than MaxDepth.
	TooDeep bool
}

func (e *SyntaxError) Error() string {
	if e.TooDeep {
		return fmt.Sprintf("the JSON nests deeper than the %d levels that are accepted, at byte %d", MaxDepth, e.Offset)
	}
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Msg)
}

// span is a part of the body: b[beg:end]. For a string it is the part between the quotes.
type span struct {
	beg, end int
	// escaped: the string holds at least one backslash.
	escaped bool
}

func (s span) of(b []byte) []byte { return b[s.beg:s.end] }

// scanner walks over one JSON text (RFC 8259, UTF-8). Its methods expect i at the first byte of
// what they read and leave it behind the last one. They return false after setting err, which is kept from then on.
type scanner struct {
	b   []byte
	i   int
	err *SyntaxError
}

func (s *scanner) fail(offset int, msg string) bool {
	if s.err == nil {
		s.err = &SyntaxError{Offset: offset, Msg: msg}
	}
	return false
}

// tooDeep refuses the array or object at i.
func (s *scanner) tooDeep() bool {
	s.fail(s.i, "nested too deep")
	s.err.TooDeep = true
	return false
}

// failHere reports the byte at i: as missing input when there is none.
func (s *scanner) failHere(msg string) bool {
	if s.i >= len(s.b) {
		return s.fail(len(s.b), "unexpected end")
	}
	return s.fail(s.i, msg)
}

// space skips white space and returns the byte behind it, or 0 at the end; a 0 byte in the body is never valid there.
func (s *scanner) space() byte {
	b, i := s.b, s.i
	for i < len(b) {
		c := b[i]
		if c > ' ' || (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
			s.i = i
			return c
		}
		i++
	}
	s.i = i
	return 0
}

const (
	ones   = 0x0101010101010101
	highs  = 0x8080808080808080
	quotes = '"' * ones
	slants = '\\' * ones
	blanks = ' ' * ones
)

// stops has the high bit of a byte set where a string does not simply continue: at a quote, a backslash or a control
// character. Only the lowest bit that is set is reliable: borrows run upwards.
func stops(w uint64) uint64 {
	q, e := w^quotes, w^slants
	return ((q-ones)&^q | (e-ones)&^e | (w-blanks)&^w) & highs
}

// plain is the number of bytes of a string before one of its stops.
func plain(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		if m := stops(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// str reads a string, i at its opening quote. The span is empty when that fails.
func (s *scanner) str() (span, bool) {
	b, i := s.b, s.i+1
	out := span{beg: i}
	var high uint64
	for {
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			if m := stops(w); m != 0 {
				n := bits.TrailingZeros64(m)
				high |= w & (1<<n - 1)
				i += n >> 3
				break
			}
			high |= w
			i += 8
		}
		for i+1 < len(b) && b[i] == '\\' && simpleEscape[b[i+1]] != 0 {
			out.escaped = true
			i += 2
		}
		if i >= len(b) {
			return span{}, s.fail(len(b), "unexpected end in a string")
		}
		switch c := b[i]; {
		case c == '"':
			out.end = i
			s.i = i + 1
			if high&highs != 0 && !utf8.Valid(b[out.beg:i]) {
				return span{}, s.fail(out.beg+invalidUTF8(b[out.beg:i]), "invalid UTF-8 in a string")
			}
			return out, true
		case c == '\\':
			out.escaped = true
			n := escapeLen(b[i:])
			if n == 0 {
				if len(b)-i < 6 {
					return span{}, s.fail(len(b), "unexpected end in a string")
				}
				return span{}, s.fail(i, "invalid escape in a string")
			}
			i += n
		case c < ' ':
			return span{}, s.fail(i, "control character in a string")
		default:
			high |= uint64(c)
			i++
		}
	}
}

// text reads a string as str does, and decodes it: where the span is escaped it is of dst, to which the text is appended.
func (s *scanner) text(dst *[]byte) (span, bool) {
	b, first := s.b, s.i+1
	i := first + plain(b[first:])
	if i < len(b) && b[i] == '"' && utf8.Valid(b[first:i]) {
		s.i = i + 1
		return span{beg: first, end: i}, true
	}
	if i >= len(b) || b[i] != '\\' {
		return s.str() // for its error
	}
	*dst = slices.Grow(*dst, len(b)-first+word) // no other text of b makes it grow again
	beg := len(*dst)
	n, size := decode((*dst)[beg:cap(*dst)], b[first:])
	if i = first + size; i >= len(b) || b[i] != '"' || !utf8.Valid(b[first:i]) {
		return s.str()
	}
	s.i = i + 1
	*dst = (*dst)[:beg+n]
	return span{beg: beg, end: beg + n, escaped: true}, true
}

// simpleEscape maps the second byte of an escape of two bytes to its meaning.
var simpleEscape = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escapeLen is the length of the escape that b begins with, or 0 when it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch {
	case simpleEscape[b[1]] != 0:
		return 2
	case b[1] == 'u' && len(b) >= 6 && hex4(b[2:6]) >= 0:
		return 6
	}
	return 0
}

// hex4 reads four hexadecimal digits; -1 when they are not.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// invalidUTF8 is the offset of the first byte that is not UTF-8.
func invalidUTF8(b []byte) int {
	i := 0
	for i < len(b) {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		i += n
	}
	return i
}

// number reads a number, i at its sign or first digit.
func (s *scanner) number() (out span, ok bool) {
	b, i := s.b, s.i
	out.beg = i
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i]-'1' <= 8:
		i = digits(b, i)
	default:
		s.i = i
		return span{}, s.failHere("invalid number")
	}
	if i < len(b) && b[i] == '.' {
		j := digits(b, i+1)
		if j == i+1 {
			s.i = j
			return span{}, s.failHere("invalid number")
		}
		i = j
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		j := digits(b, i)
		if j == i {
			s.i = j
			return span{}, s.failHere("invalid number")
		}
		i = j
	}
	if i < len(b) && b[i]-'0' <= 9 {
		return span{}, s.fail(i, "a number cannot begin with 0")
	}
	out.end = i
	s.i = i
	return out, true
}

// digits is the offset behind the digits at i.
func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *scanner) literal(word string) bool {
	for n := range len(word) {
		if s.i == len(s.b) || s.b[s.i] != word[n] {
			return s.failHere("invalid literal")
		}
		s.i++
	}
	return true
}

// skip skips one value of any kind, and white space before it. depth is the number of arrays and objects that are open
// around it. It does not recurse: a bit set keeps the open arrays and objects.
func (s *scanner) skip(depth int) bool {
	var object [MaxDepth/64 + 1]uint64 // bit d: the value open at depth d is an object
	base := depth
	for {
		// A value begins here.
		switch c := s.space(); c {
		case '{', '[':
			if depth >= MaxDepth {
				return s.tooDeep()
			}
			s.i++
			if c == '{' {
				if s.space() != '}' {
					depth++
					object[depth/64] |= 1 << (depth % 64)
					if !s.key() {
						return false
					}
					continue
				}
			} else if s.space() != ']' {
				depth++
				object[depth/64] &^= 1 << (depth % 64)
				continue
			}
			s.i++
		default:
			if !s.scalar(c) {
				return false
			}
		}
		// A value ended here: close what ends with it.
		for {
			if depth == base {
				return true
			}
			isObject := object[depth/64]&(1<<(depth%64)) != 0
			c := s.space()
			if c == ',' {
				s.i++
				if isObject && !s.key() {
					return false
				}
				break
			}
			if (!isObject || c != '}') && (isObject || c != ']') {
				return s.failHere("expected a comma or the end of the list or object")
			}
			s.i++
			depth--
		}
	}
}

// scalar reads a value that begins with c and is neither array nor object.
func (s *scanner) scalar(c byte) bool {
	switch {
	case c == '"':
		_, ok := s.str()
		return ok
	case c == '-' || c-'0' <= 9:
		_, ok := s.number()
		return ok
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	}
	return s.failHere("expected a value")
}

// key skips an object's key and the colon behind it.
func (s *scanner) key() bool {
	_, ok := s.keySpan()
	return ok
}

func (s *scanner) keySpan() (span, bool) {
	if s.space() != '"' {
		return span{}, s.failHere("expected a key")
	}
	k, ok := s.str()
	if !ok {
		return k, false
	}
	if s.space() != ':' {
		return k, s.failHere("expected a colon")
	}
	s.i++
	return k, true
}

// object calls each for every key, i behind the colon; each must read the value. i is at the opening brace.
func (s *scanner) object(depth int, each func(key span) bool) bool {
	if depth >= MaxDepth {
		return s.tooDeep()
	}
	s.i++
	if s.space() == '}' {
		s.i++
		return true
	}
	for {
		k, ok := s.keySpan()
		if !ok || !each(k) {
			return false
		}
		switch s.space() {
		case ',':
			s.i++
		case '}':
			s.i++
			return true
		default:
			return s.failHere("expected a comma or the end of the object")
		}
	}
}

// array calls each for every element, white space before it skipped; each must read it. i is at the opening bracket.
func (s *scanner) array(depth int, each func(first byte) bool) bool {
	if depth >= MaxDepth {
		return s.tooDeep()
	}
	s.i++
	if s.space() == ']' {
		s.i++
		return true
	}
	for {
		if !each(s.space()) {
			return false
		}
		switch s.space() {
		case ',':
			s.i++
		case ']':
			s.i++
			return true
		default:
			return s.failHere("expected a comma or the end of the list")
		}
	}
}
