package openai

import (
	"encoding/binary"
	"math/bits"
)

// topFields finds the top-level fields of a JSON object that comes in pieces, in bounded memory. It follows strings
// and brackets and checks nothing else: for text that is not JSON it may find anything or nothing.
type topFields struct {
	depth    int
	inString bool
	escape   bool // the last byte of the string was a backslash
	complete bool

	name   [16]byte // the key being read or read last, at depth 1
	n      int      // its length; beyond len(name) when it is too long to be asked for
	inKey  bool     // the string that is open is a key at depth 1
	inPair bool     // behind the colon of a key at depth 1

	wanted string // the key of the pair, if it is wanted
	value  []byte // then its value
}

// wants is name if it is a field that is looked at, else empty.
func wants(name []byte) string {
	switch string(name) {
	case "usage":
		return "usage"
	case "error":
		return "error"
	case "object":
		return "object"
	case "status":
		return "status"
	}
	return ""
}

// write takes the next piece and calls found for every wanted field that ends in it. The value is valid until found
// returns. It comes without the white space between its parts and is cut at MaxUsage bytes, so that a longer one is no JSON.
func (t *topFields) write(p []byte, found func(name string, value []byte)) {
	for i := 0; i < len(p); {
		if t.inString {
			i += t.more(p[i:])
			continue
		}
		if t.depth > 1 && t.wanted == "" {
			if i += unstructured(p[i:]); i == len(p) {
				return
			}
		}
		c := p[i]
		i++
		switch c {
		case '"':
			t.inString = true
			if t.depth == 1 && !t.inPair {
				t.inKey, t.n = true, 0
				continue
			}
		case '{', '[':
			t.depth++
			if t.depth == 1 {
				t.inPair = c == '['
				continue
			}
		case '}', ']':
			t.depth--
			if t.depth == 0 {
				t.endPair(found)
				t.complete = true
				continue
			}
		case ',':
			if t.depth == 1 {
				t.endPair(found)
				continue
			}
		case ':':
			if t.depth == 1 && !t.inPair {
				t.inPair = true
				t.wanted, t.value = "", t.value[:0]
				if t.n <= len(t.name) {
					t.wanted = wants(t.name[:t.n])
				}
				continue
			}
		case ' ', '\n', '\r', '\t':
			continue
		}
		t.keep(c)
	}
}

// unstructured is the number of bytes before the first quote, brace or bracket.
func unstructured(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		low := w | blanks // brackets become braces
		q, open, shut := w^quotes, low^('{'*ones), low^('}'*ones)
		if m := ((q-ones)&^q | (open-ones)&^open | (shut-ones)&^shut) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for i < len(b) && b[i] != '"' && b[i]|' ' != '{' && b[i]|' ' != '}' {
		i++
	}
	return i
}

// more takes bytes of the string that is open, and returns how many.
func (t *topFields) more(p []byte) int {
	n := 1
	if t.escape {
		t.escape = false
	} else if n = plain(p); n < len(p) {
		switch p[n] {
		case '"':
			t.inString = false
			if t.inKey {
				t.inKey = false
				t.keyPart(p[:n])
				return n + 1
			}
		case '\\':
			t.escape = true
		}
		n++
	}
	if t.inKey {
		t.keyPart(p[:n])
	} else if t.wanted != "" {
		for _, c := range p[:n] {
			t.keep(c)
		}
	}
	return n
}

// keyPart appends to the key. One with escapes keeps its backslashes and is none that is wanted.
func (t *topFields) keyPart(p []byte) {
	if t.n < len(t.name) {
		copy(t.name[t.n:], p)
	}
	t.n += min(len(p), len(t.name)+1)
	t.n = min(t.n, len(t.name)+1)
}

func (t *topFields) keep(c byte) {
	if t.wanted != "" && len(t.value) < MaxUsage {
		t.value = append(t.value, c)
	}
}

func (t *topFields) endPair(found func(name string, value []byte)) {
	if t.wanted != "" && t.inPair && len(t.value) > 0 {
		found(t.wanted, t.value)
	}
	t.inPair, t.wanted = false, ""
}
