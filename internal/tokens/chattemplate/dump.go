package chattemplate

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// dump is json.dumps.
type dump struct {
	r             *run
	ascii, sorted bool
	indented      bool
	indent        string // of one level
	comma, colon  string
	dst           []byte
	limit         int // of dst, bytes
}

// value appends v, which is at nesting depth depth.
func (d *dump) value(v Value, depth int) error {
	if depth > maxNesting {
		return errNesting
	}
	if len(d.dst) > d.limit {
		return errMemory
	}
	switch v.kind {
	case KindNone:
		d.dst = append(d.dst, "null"...)
	case KindBool:
		d.dst = strconv.AppendBool(d.dst, v.n != 0)
	case KindInt:
		d.dst = strconv.AppendInt(d.dst, v.int(), 10)
	case KindBigInt:
		d.dst = v.big().Append(d.dst, 10)
	case KindFloat:
		d.dst = appendJSONFloat(d.dst, v.float())
	case KindString:
		d.string(v.Text())
	case KindList, KindTuple:
		return d.list(v.Items(), depth)
	case KindDict:
		return d.dict(v.Dict(), depth)
	default:
		return &RaisedError{Class: "TypeError", Msg: "Object of type " + v.typeName() + " is not JSON serializable"}
	}
	return nil
}

func (d *dump) list(items []Value, depth int) error {
	if len(items) == 0 {
		d.dst = append(d.dst, "[]"...)
		return nil
	}
	d.dst = append(d.dst, '[')
	for i, item := range items {
		if i > 0 {
			d.dst = append(d.dst, d.comma...)
		}
		d.line(depth + 1)
		if err := d.value(item, depth+1); err != nil {
			return err
		}
	}
	d.line(depth)
	d.dst = append(d.dst, ']')
	return nil
}

func (d *dump) dict(x *Dict, depth int) error {
	if x.Len() == 0 {
		d.dst = append(d.dst, "{}"...)
		return nil
	}
	entries := x.entries
	if d.sorted {
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, func(a, b entry) int {
			return d.r.order(a.key, b.key, "<")
		})
		if d.r.err != nil {
			return d.r.err
		}
	}
	d.dst = append(d.dst, '{')
	for i := range entries {
		if i > 0 {
			d.dst = append(d.dst, d.comma...)
		}
		d.line(depth + 1)
		if err := d.key(entries[i].key); err != nil {
			return err
		}
		d.dst = append(d.dst, d.colon...)
		if err := d.value(entries[i].value, depth+1); err != nil {
			return err
		}
	}
	d.line(depth)
	d.dst = append(d.dst, '}')
	return nil
}

// key appends a key: numbers and the like become strings.
func (d *dump) key(k Value) error {
	switch k.kind {
	case KindString:
		d.string(k.Text())
		return nil
	case KindNone, KindBool, KindInt, KindBigInt, KindFloat:
		d.dst = append(d.dst, '"')
		err := d.value(k, 0)
		d.dst = append(d.dst, '"')
		return err
	}
	return &RaisedError{Class: "TypeError", Msg: "keys must be str, int, float, bool or None, not " + k.typeName()}
}

// line begins a new line, depth levels deep.
func (d *dump) line(depth int) {
	if !d.indented {
		return
	}
	d.dst = append(d.dst, '\n')
	for range depth {
		d.dst = append(d.dst, d.indent...)
	}
}

func appendJSONFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	return appendFloat(dst, f)
}

func (d *dump) string(s string) {
	dst := d.dst
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		n := plain(bytesOf(s[i:]))
		if d.ascii {
			n = printable(s[i : i+n])
		}
		dst = append(dst, s[i:i+n]...)
		i += n
		if i == len(s) {
			break
		}
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			i += size
			if r > 0xffff {
				high, low := utf16.EncodeRune(r)
				dst = appendHex(append(dst, `\u`...), high, 4)
				r = low
			}
			dst = appendHex(append(dst, `\u`...), r, 4)
			continue
		}
		i++
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		default:
			dst = appendHex(append(dst, `\u`...), rune(c), 4)
		}
	}
	dst = append(dst, '"')
	d.dst = dst
}

// printable is the length of s before the first byte that is not printable ASCII.
func printable(s string) int {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return i
		}
	}
	return len(s)
}

func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// AppendJSON appends v as Python's json.dumps writes it, up to MaxDecoded bytes.
func AppendJSON(dst []byte, v Value) ([]byte, error) {
	d := dump{comma: ", ", colon: ": ", ascii: true, dst: dst, limit: len(dst) + MaxDecoded}
	if err := d.value(v, 0); err != nil {
		return dst, err
	}
	return d.dst, nil
}
