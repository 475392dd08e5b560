package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// The functions here walk over JSON that json.Valid has accepted. They exist because a tokenizer.json is megabytes of
// short strings: decoded into maps it would cost many times its size.

// eachField calls do for each field of the object raw. key and value hold until the next call.
func eachField(raw []byte, do func(key, value []byte) error) error {
	if kindOf(raw) != '{' {
		return fmt.Errorf("%w: not a JSON object", ErrInvalid)
	}
	var buf []byte
	for i := skipSpace(raw, 1); raw[i] != '}'; {
		end := stringEnd(raw, i)
		key, b := unquote(raw[i:end], buf)
		buf = b
		i = skipSpace(raw, skipSpace(raw, end)+1) // the colon
		end = valueEnd(raw, i)
		if err := do(key, raw[i:end]); err != nil {
			return err
		}
		if i = skipSpace(raw, end); raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return nil
}

// eachElement calls do for each element of the list raw.
func eachElement(raw []byte, do func(value []byte) error) error {
	if kindOf(raw) != '[' {
		return fmt.Errorf("%w: not a JSON list", ErrInvalid)
	}
	for i := skipSpace(raw, 1); raw[i] != ']'; {
		end := valueEnd(raw, i)
		if err := do(raw[i:end]); err != nil {
			return err
		}
		if i = skipSpace(raw, end); raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return nil
}

// kindOf is the first byte of a value without space around it; 0 for none.
func kindOf(raw []byte) byte {
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

func isNull(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }

func skipSpace(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r' {
		i++
	}
	return i
}

// stringEnd is the offset behind the string at i.
func stringEnd(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// valueEnd is the offset behind the value at i.
func valueEnd(b []byte, i int) int {
	depth := 0
	for {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\t', '\r':
			i++
			continue
		default:
			for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != ']' && b[i] != '}' {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// unquote is the text of the string raw. It is in raw, or in buf, which is grown and returned, when there are escapes.
func unquote(raw, buf []byte) (text, grown []byte) {
	raw = raw[1 : len(raw)-1]
	n := bytes.IndexByte(raw, '\\')
	if n < 0 {
		return raw, buf
	}
	out := buf[:0]
	for ; n >= 0; n = bytes.IndexByte(raw, '\\') {
		out = append(out, raw[:n]...)
		c := raw[n+1]
		raw = raw[n+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				pair := utf8.RuneError
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					pair = utf16.DecodeRune(r, hex4(raw[2:]))
				}
				if r = pair; r != utf8.RuneError {
					raw = raw[6:]
				}
			}
			out = utf8.AppendRune(out, r)
			continue
		}
		out = append(out, c)
	}
	out = append(out, raw...)
	return out, out
}

func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			c -= '0'
		default:
			c = c | 0x20 - 'a' + 10
		}
		r = r<<4 | rune(c)
	}
	return r
}

// decode is json.Unmarshal for small values that refuses fields unknown to into.
func decode(raw []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return nil
}
