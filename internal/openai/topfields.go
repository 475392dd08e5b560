package openai

import (
	"encoding/binary"
	"math/bits"
)

// topFields finds the top-level fields of a JSON object that arrives in pieces, and those of the objects in its list
// "choices", in bounded memory. It follows strings and brackets and checks nothing else: for text that is not JSON it can
// find anything or nothing.
type topFields struct {
	depth    int
	level    int // topLevel at first: the depth of the fields that are looked at: topLevel, or choiceLevel inside choices
	inString bool
	escape   bool // the last byte of the string was a backslash
	complete bool

	name   [16]byte // the key being read or read last, at level
	n      int      // its length; beyond len(name) when it is too long to be asked for
	inKey  bool     // the string that is open is a key at level
	inPair bool     // behind the colon of a key at level

	wanted string // the key of the pair, if it is wanted
	value  []byte // then its value
}

const (
	topLevel    = 1
	choiceLevel = 3 // in the objects of a list of the top level
)

// wants is name if it is a field that is looked at, else empty.
func (t *topFields) wants(name []byte) string {
	if t.level == choiceLevel {
		if string(name) == "finish_reason" {
			return "finish_reason"
		}
		return ""
	}
	switch string(name) {
	case "usage":
		return "usage"
	case "error":
		return "error"
	case "object":
		return "object"
	case "status":
		return "status"
	case "code":
		return "code"
	case "type":
		return "type"
	case "stop_reason":
		return "stop_reason"
	}
	return ""
}

// write takes the next piece and calls found for every wanted field that ends in it. The value is valid until found
// returns. Input after the object is ignored. The value excludes the white space between its parts and is cut at MaxUsage
// bytes, so that a longer one is not valid JSON.
func (t *topFields) write(p []byte, found func(name string, value []byte)) {
	for i := 0; i < len(p) && !t.complete; {
		if t.inString {
			i += t.more(p[i:])
			continue
		}
		if t.depth > t.level && t.wanted == "" {
			if i += unstructured(p[i:]); i == len(p) {
				return
			}
		}
		c := p[i]
		i++
		switch c {
		case '"':
			t.inString = true
			if t.depth == t.level && !t.inPair {
				t.inKey, t.n = true, 0
				continue
			}
		case '{', '[':
			if t.open(c) {
				continue
			}
		case '}', ']':
			if t.shut(found) {
				continue
			}
		case ',':
			if t.depth == topLevel {
				t.level = topLevel // choices end
			}
			if t.depth == t.level {
				t.endPair(found)
				continue
			}
		case ':':
			if t.depth == t.level && !t.inPair {
				t.pair()
				continue
			}
		case ' ', '\n', '\r', '\t':
			continue
		}
		t.keep(c)
	}
}

// open takes the beginning of an object or a list, and reports whether it is no part of a value that is wanted.
func (t *topFields) open(c byte) bool {
	t.depth++
	switch t.depth {
	case topLevel:
		t.level, t.inPair = topLevel, c == '['
	case t.level:
		t.inPair = c == '['
	case choiceLevel - 1:
		if t.level == choiceLevel && c != '[' { // choices that are no list
			t.level, t.inPair = topLevel, true
		}
		return false
	default:
		return false
	}
	return true
}

// shut takes the end of an object or a list, and reports whether it is no part of a value that is wanted.
func (t *topFields) shut(found func(name string, value []byte)) bool {
	t.depth--
	switch t.depth {
	case 0:
		if t.level == choiceLevel { // choices were the last field
			t.level, t.inPair, t.wanted = topLevel, false, ""
		}
		t.endPair(found)
		t.complete = true
	case t.level - 1:
		t.endPair(found)
	default:
		return false
	}
	return true
}

// pair takes the colon behind a key.
func (t *topFields) pair() {
	t.inPair = true
	t.wanted, t.value = "", t.value[:0]
	if t.n > len(t.name) {
		return
	}
	if name := t.name[:t.n]; t.level == topLevel && string(name) == "choices" {
		t.level = choiceLevel
	} else {
		t.wanted = t.wants(name)
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
