package chattemplate

import (
	"strconv"
	"unicode"
	"unicode/utf8"
)

// string reads a string literal, with Python's escapes.
func (l *lexer) string() {
	quote := l.src[l.at]
	var out []byte
	for i := l.at + 1; i < len(l.src); {
		switch c := l.src[i]; {
		case c == quote:
			l.at = i + 1
			l.add(tokenString, string(out))
			return
		case c != '\\':
			out = append(out, c)
			i++
		case i+1 < len(l.src):
			var size int
			if out, size = l.unescape(out, l.src[i:]); l.err != nil {
				return
			}
			i += size
		default:
			i++
		}
	}
	l.fail("the string does not end")
}

// escapes of one character.
var escapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape appends the meaning of the escape at the start of s; size is its length. An unknown escape is kept unchanged.
func (l *lexer) unescape(dst []byte, s string) (out []byte, size int) {
	c := s[1]
	if text, ok := escapes[c]; ok {
		return append(dst, text...), 2
	}
	digits, base := 0, 16
	switch {
	case c == 'x':
		digits = 2
	case c == 'u':
		digits = 4
	case c == 'U':
		digits = 8
	case c == 'N' || c >= utf8.RuneSelf:
		l.err = unsupported("the escape of a string")
		return dst, 2
	case c >= '0' && c <= '7':
		base = 8
	default:
		return append(dst, s[:2]...), 2
	}
	number := s[2:]
	if base == 8 {
		number = s[1:]
		for digits < 3 && digits < len(number) && number[digits] >= '0' && number[digits] <= '7' {
			digits++
		}
	}
	size = len(s) - len(number) + digits
	if len(number) < digits {
		l.fail("truncated escape of a string")
		return dst, size
	}
	v, err := strconv.ParseUint(number[:digits], base, 32)
	if err != nil || v > unicode.MaxRune {
		l.fail("wrong escape of a string")
		return dst, size
	}
	if !utf8.ValidRune(rune(v)) {
		l.err = unsupported("surrogates in strings")
		return dst, size
	}
	return utf8.AppendRune(dst, rune(v)), size
}
