package chattemplate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxJSONDepth is how deep lists and dicts of DecodeJSON can nest.
const MaxJSONDepth = 128

// maxDigits is the longest integer that Python reads.
const maxDigits = 4300

var errJSON = errors.New("invalid JSON")

// DecodeJSON makes the value that Python's json.loads makes of data: dicts keep the order of their keys, the last value of
// a repeated key counts, and integers stay integers. Strings without escapes share the memory of data, which must not
// change while the value is used. NaN, Infinity, unpaired surrogates and more than MaxJSONDepth levels are refused, and the
// error wraps ErrLimit if the values take more than MaxDecoded.
func (a *Arena) DecodeJSON(data []byte) (Value, error) {
	if !utf8.Valid(data) {
		return Value{}, fmt.Errorf("%w: not UTF-8", errJSON)
	}
	return a.DecodeSpan(context.Background(), data, 0, len(data), nil)
}

// MaxDecoded is the most memory that the decoded values of an Arena can take, in bytes. A JSON value can be written with
// two bytes and takes 24 or more.
const MaxDecoded = 16 << 20

// Texts has strings that were decoded already.
type Texts interface {
	// TextAt returns the decoded string whose opening quote is at the offset at, and the offset behind its closing one; not
	// ok where that is not known. The text must not change while values made of it are used.
	TextAt(at int) (text string, end int, ok bool)
}

// DecodeSpan is DecodeJSON of data[at:end], which must be UTF-8. known, if it is not nil, has strings of data that are not
// read again. If ctx ends before the value is complete, the error is that of ctx.
func (a *Arena) DecodeSpan(ctx context.Context, data []byte, at, end int, known Texts) (Value, error) {
	d := decoder{a: a, b: data[:end], i: at, known: known, ctx: ctx, checkAt: at + checkBytes}
	items, pairs := len(a.items), len(a.pairs)
	v, ok := d.value(0)
	if ok {
		d.space()
		if d.i < len(d.b) {
			ok = d.fail("bytes after the end")
		}
	}
	a.items, a.pairs = a.items[:items], a.pairs[:pairs]
	if !ok {
		return Value{}, d.err
	}
	return v, nil
}

// The context and the memory are looked at after checkBytes of text or checkValues values.
const (
	checkBytes  = 1 << 16
	checkValues = 1 << 8
)

// decoder reads one JSON text. Its methods return false once err is set.
type decoder struct {
	a    *Arena
	b    []byte
	i    int
	text []byte // memory for texts with escapes
	err  error

	known Texts

	ctx     context.Context // lives as long as one call of DecodeSpan
	checkAt int             // where in b the limits are looked at next
	values  int             // since they were looked at
}

// check checks the limits and reports whether decoding can continue.
func (d *decoder) check() bool {
	d.checkAt, d.values = d.i+checkBytes, 0
	if d.err != nil {
		return false
	}
	if d.err = d.ctx.Err(); d.err == nil && d.a.decodedSize() > MaxDecoded {
		d.err = errDecoded
	}
	return d.err == nil
}

func (d *decoder) fail(what string) bool {
	if d.err == nil {
		d.err = fmt.Errorf("%w at byte %d: %s", errJSON, d.i, what)
	}
	return false
}

// space skips white space and returns the byte behind it, 0 at the end.
func (d *decoder) space() byte {
	for d.i < len(d.b) {
		c := d.b[d.i]
		if c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c
		}
		d.i++
	}
	return 0
}

func (d *decoder) value(depth int) (Value, bool) {
	if d.values++; (d.values >= checkValues || d.i >= d.checkAt) && !d.check() {
		return Value{}, false
	}
	switch c := d.space(); {
	case c == '"':
		if d.known != nil {
			if s, end, ok := d.known.TextAt(d.i); ok {
				d.i = end
				return String(s), true
			}
		}
		s, ok := d.string()
		return String(s), ok
	case c == '{':
		return d.object(depth + 1)
	case c == '[':
		return d.array(depth + 1)
	case c == 't':
		return Bool(true), d.word("true")
	case c == 'f':
		return Bool(false), d.word("false")
	case c == 'n':
		return None(), d.word("null")
	case c == '-' || c-'0' <= 9:
		return d.number()
	}
	return Value{}, d.fail("expected a value")
}

func (d *decoder) word(w string) bool {
	if len(d.b)-d.i < len(w) || string(d.b[d.i:d.i+len(w)]) != w {
		return d.fail("expected a value")
	}
	d.i += len(w)
	return true
}

func (d *decoder) array(depth int) (Value, bool) {
	if depth > MaxJSONDepth {
		return Value{}, d.fail("too deep")
	}
	a := d.a
	base := len(a.items)
	d.i++
	if d.space() == ']' {
		d.i++
		return List(nil), true
	}
	for {
		v, ok := d.value(depth)
		if !ok {
			return v, false
		}
		a.items = append(a.items, v)
		switch d.space() {
		case ',':
			d.i++
		case ']':
			d.i++
			out := a.values.take(len(a.items) - base)
			copy(out, a.items[base:])
			a.items = a.items[:base]
			return List(out), true
		default:
			return Value{}, d.fail("expected a comma or the end of the list")
		}
	}
}

func (d *decoder) object(depth int) (Value, bool) {
	if depth > MaxJSONDepth {
		return Value{}, d.fail("too deep")
	}
	a := d.a
	base := len(a.pairs)
	d.i++
	if d.space() == '}' {
		d.i++
		return a.NewDict(0).Value(), true
	}
	for {
		if d.space() != '"' {
			return Value{}, d.fail("expected a key")
		}
		key, ok := d.string()
		if !ok {
			return Value{}, false
		}
		if d.space() != ':' {
			return Value{}, d.fail("expected a colon")
		}
		d.i++
		v, ok := d.value(depth)
		if !ok {
			return v, false
		}
		a.pairs = append(a.pairs, entry{String(key), v})
		switch d.space() {
		case ',':
			d.i++
		case '}':
			d.i++
			out := a.dictOf(a.pairs[base:])
			a.pairs = a.pairs[:base]
			return out.Value(), true
		default:
			return Value{}, d.fail("expected a comma or the end of the object")
		}
	}
}

// dictOf makes a dict of pairs with string keys. Of several equal keys the last counts.
func (a *Arena) dictOf(pairs []entry) *Dict {
	d := a.NewDict(len(pairs))
	if len(pairs) >= indexFrom {
		for _, p := range pairs {
			d.set(p.key, p.value)
		}
		return d
	}
	for _, p := range pairs {
		if i := d.find(p.key.Text()); i >= 0 {
			d.entries[i].value = p.value
		} else {
			d.entries = append(d.entries, p)
		}
	}
	return d
}

func (d *decoder) number() (Value, bool) {
	start := d.i
	if d.b[d.i] == '-' {
		d.i++
	}
	first := d.i
	if !d.digits() {
		return Value{}, d.fail("expected a digit")
	}
	if d.b[first] == '0' && d.i > first+1 {
		return Value{}, d.fail("a number begins with 0")
	}
	whole := true
	if d.i < len(d.b) && d.b[d.i] == '.' {
		whole = false
		d.i++
		if !d.digits() {
			return Value{}, d.fail("expected a digit")
		}
	}
	if d.i < len(d.b) && d.b[d.i]|0x20 == 'e' {
		whole = false
		d.i++
		if d.i < len(d.b) && (d.b[d.i] == '+' || d.b[d.i] == '-') {
			d.i++
		}
		if !d.digits() {
			return Value{}, d.fail("expected a digit")
		}
	}
	text := d.b[start:d.i]
	if !whole {
		f, _ := strconv.ParseFloat(view(text), 64) // infinite beyond the largest, as in Python
		return Float(f), true
	}
	if i, err := strconv.ParseInt(view(text), 10, 64); err == nil {
		return Int(i), true
	}
	if len(text) > maxDigits {
		return Value{}, d.fail("too many digits")
	}
	i, ok := new(big.Int).SetString(string(text), 10)
	if !ok {
		return Value{}, d.fail("unreadable number")
	}
	return bigInt(i), true
}

func (d *decoder) digits() bool {
	start := d.i
	for d.i < len(d.b) && d.b[d.i]-'0' <= 9 {
		d.i++
	}
	return d.i > start
}

// string reads the string that begins at i.
func (d *decoder) string() (string, bool) {
	d.i++
	start := d.i
	d.i += plain(d.b[d.i:])
	if d.i < len(d.b) && d.b[d.i] == '"' {
		d.i++
		return view(d.b[start : d.i-1]), true
	}
	return d.escaped(start)
}

// escaped continues at the first byte of a string that is part of an escape. A text is at most as long as its encoding, so
// one block of memory is enough for all texts with escapes.
func (d *decoder) escaped(start int) (string, bool) {
	if d.text == nil {
		if len(d.b)-start > MaxDecoded {
			d.err = errDecoded
			return "", false
		}
		d.text = d.a.reserve(len(d.b) - start + 8)
	}
	b, out := d.b, d.text
	i, n := d.i, copy(out, d.b[start:d.i])
	for {
		for len(b)-i >= 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			binary.LittleEndian.PutUint64(out[n:], w)
			m := special(w)
			if m != 0 {
				run := bits.TrailingZeros64(m) / 8
				i += run
				n += run
				break
			}
			i += 8
			n += 8
		}
		for len(b)-i >= 2 && b[i] == '\\' && simpleEscape[b[i+1]] != 0 && i < d.checkAt {
			out[n] = simpleEscape[b[i+1]]
			i += 2
			n++
		}
		switch {
		case i == len(b):
			d.i = i
			return "", d.fail("the string does not end")
		case b[i] == '"':
			d.i = i + 1
			d.text = out[n:]
			return view(out[:n]), true
		case b[i] < ' ':
			d.i = i
			return "", d.fail("control character in a string")
		case b[i] != '\\':
			out[n] = b[i]
			i++
			n++
			continue
		}
		d.i = i
		if i >= d.checkAt && !d.check() {
			return "", false
		}
		r, ok := d.escape()
		if !ok {
			return "", false
		}
		n += utf8.EncodeRune(out[n:], r)
		i = d.i
	}
}

// escape reads the escape at i, both halves of a surrogate pair together.
func (d *decoder) escape() (rune, bool) {
	if len(d.b)-d.i < 2 {
		return 0, d.fail("unknown escape")
	}
	if c := simpleEscape[d.b[d.i+1]]; c != 0 {
		d.i += 2
		return rune(c), true
	}
	r := hex4(d.b[d.i+2:])
	if d.b[d.i+1] != 'u' || r < 0 {
		return 0, d.fail("unknown escape")
	}
	d.i += 6
	if !utf16.IsSurrogate(r) {
		return r, true
	}
	if rest := d.b[d.i:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(rest[2:])); pair != utf8.RuneError {
			d.i += 6
			return pair, true
		}
	}
	d.err = unsupported("an unpaired surrogate")
	return 0, false
}

// simpleEscape maps the second byte of an escape of two bytes to its meaning.
var simpleEscape = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// hex4 is the value of four hexadecimal digits, or -1.
func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
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

// special marks, with the highest bit of each, the bytes of w that are not literal in a string: quotes, backslashes and
// control characters. Only the lowest mark is certain, on a little-endian w the first one.
func special(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^(ones*'"'), w^(ones*'\\')
	return ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w) & highs
}

// plain is the length of b before the first byte that is not literal.
func plain(b []byte) int {
	i := 0
	for ; len(b)-i >= 8; i += 8 {
		if m := special(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < ' ' {
			break
		}
	}
	return i
}
