package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// appendString appends the decoded bytes of the string raw, given without its quotes; raw must have been scanned.
// Escaped surrogate pairs become one rune; half a pair becomes U+FFFD (the engine's parser keeps it as an unpaired
// surrogate, which no tokenizer accepts). It stops once dst has grown by limit bytes, at the end of a rune; a
// negative limit means all.
func appendString(dst, raw []byte, limit int) []byte {
	if limit < 0 {
		return appendWhole(dst, raw)
	}
	start := len(dst)
	for len(raw) > 0 {
		left := limit - (len(dst) - start)
		n := bytes.IndexByte(raw[:min(len(raw), left)], '\\')
		if n < 0 {
			if left < len(raw) {
				return append(dst, wholeRunes(raw, left)...)
			}
			return append(dst, raw...)
		}
		dst = append(dst, raw[:n]...)
		r, size := unescape(raw[n:])
		raw = raw[n+size:]
		if utf8.RuneLen(r) > left-n {
			return dst
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

// appendWhole is appendString without a limit.
func appendWhole(dst, raw []byte) []byte {
	start := len(dst)
	dst = slices.Grow(dst, len(raw)+word)
	n, _ := decode(dst[start:start+len(raw)+word], raw)
	return dst[:start+n]
}

// word is how many bytes decode can write behind a text.
const word = 8

// decode writes the value of the string that b begins with into out, n bytes, and reports where it stops: at a quote, a
// control character, an invalid escape, or the end. The value is never longer than its encoding: out must have room for the
// encoding and one word.
func decode(out, b []byte) (n, i int) {
	for i < len(b) {
		for len(b)-i >= word {
			w := binary.LittleEndian.Uint64(b[i:])
			binary.LittleEndian.PutUint64(out[n:], w)
			if m := stops(w); m != 0 {
				run := bits.TrailingZeros64(m) / 8
				i += run
				n += run
				break
			}
			i += word
			n += word
		}
		for len(b)-i >= 2 && b[i] == '\\' && simpleEscape[b[i+1]] != 0 {
			out[n] = simpleEscape[b[i+1]]
			i += 2
			n++
		}
		switch {
		case i == len(b):
		case b[i] == '\\':
			if escapeLen(b[i:]) == 0 {
				return n, i
			}
			r, size := unescape(b[i:])
			i += size
			n += utf8.EncodeRune(out[n:], r)
		case b[i] == '"' || b[i] < ' ':
			return n, i
		default:
			out[n] = b[i]
			i++
			n++
		}
	}
	return n, i
}

// wholeRunes cuts b, which is valid UTF-8, to at most n bytes.
func wholeRunes(b []byte, n int) []byte {
	for n > 0 && !utf8.RuneStart(b[n]) {
		n--
	}
	return b[:n]
}

// unescape reads the escape at the start of b, which must be valid, and the second half of a surrogate pair.
func unescape(b []byte) (r rune, size int) {
	if c := simpleEscape[b[1]]; c != 0 {
		return rune(c), 2
	}
	r = hex4(b[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(b[8:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// view is b as a string, without a copy: it changes when b does.
func view(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return unsafe.String(&b[0], len(b))
}

// maxName is the longest field name, decoded, that anything here asks for.
const maxName = 64

// nameOf is the decoded key k of b; buf takes it when it is written with escapes. A key too long to be asked for is
// given as written.
func nameOf(b []byte, k span, buf *[maxName]byte) []byte {
	raw := k.of(b)
	if !k.escaped || len(raw) > 6*maxName {
		return raw
	}
	if name := appendString(buf[:0], raw, maxName); len(name) < maxName {
		return name
	}
	return raw
}
