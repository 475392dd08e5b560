package chattemplate

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxNesting bounds the depth of values that are printed or compared.
const maxNesting = 2 * MaxJSONDepth

// printer appends the text of values to dst, up to a limit of bytes, because lists that a template builds can hold one
// another many times over.
type printer struct {
	dst   []byte
	limit int
	err   error
}

// shortRepr is repr(v), for messages; a question mark where it is too long.
func shortRepr(v Value) string {
	p := printer{limit: 4096}
	p.repr(v, 0)
	if p.err != nil {
		return "?"
	}
	return string(p.dst)
}

// repr appends repr(v). What shows addresses of memory is refused.
func (p *printer) repr(v Value, depth int) {
	switch {
	case p.err != nil:
		return
	case depth > maxNesting:
		p.err = errNesting
		return
	case len(p.dst) > p.limit:
		p.err = errOutput
		return
	}
	switch v.kind {
	case KindUndefined:
		p.dst = append(p.dst, "Undefined"...)
	case KindNone:
		p.dst = append(p.dst, "None"...)
	case KindBool:
		if v.n != 0 {
			p.dst = append(p.dst, "True"...)
		} else {
			p.dst = append(p.dst, "False"...)
		}
	case KindInt:
		p.dst = strconv.AppendInt(p.dst, v.int(), 10)
	case KindBigInt:
		p.dst = v.big().Append(p.dst, 10)
	case KindFloat:
		p.dst = appendFloat(p.dst, v.float())
	case KindString:
		p.string(v)
	case KindList:
		p.items("[", v.Items(), "]", depth)
	case KindTuple:
		if v.n == 1 {
			p.items("(", v.Items(), ",)", depth)
		} else {
			p.items("(", v.Items(), ")", depth)
		}
	case KindDict:
		p.dict(v.Dict(), depth)
	default:
		p.other(v, depth)
	}
}

func (p *printer) string(v Value) {
	if v.markup {
		p.dst = append(p.dst, "Markup("...)
	}
	p.dst = appendQuoted(p.dst, v.Text())
	if v.markup {
		p.dst = append(p.dst, ')')
	}
}

// other appends what only a render has.
func (p *printer) other(v Value, depth int) {
	switch v.kind {
	case kindRange:
		p.dst = appendRange(p.dst, v.rangeOf())
	case kindView:
		p.view(v.view(), depth)
	case kindNamespace:
		p.dst = append(p.dst, "<Namespace "...)
		p.dict(v.namespace(), depth+1)
		p.dst = append(p.dst, '>')
	case kindMacro:
		name := v.macro().code.name
		if name == "" {
			p.dst = append(p.dst, "<Macro anonymous>"...)
			return
		}
		p.dst = append(appendQuoted(append(p.dst, "<Macro "...), name), '>')
	default:
		p.err = unsupported("the text of a %s", v.typeName())
	}
}

func (p *printer) items(begin string, items []Value, end string, depth int) {
	p.dst = append(p.dst, begin...)
	for i, item := range items {
		if i > 0 {
			p.dst = append(p.dst, ", "...)
		}
		p.repr(item, depth+1)
	}
	p.dst = append(p.dst, end...)
}

func (p *printer) dict(d *Dict, depth int) {
	p.dst = append(p.dst, '{')
	for i := range d.entries {
		if i > 0 {
			p.dst = append(p.dst, ", "...)
		}
		p.repr(d.entries[i].key, depth+1)
		p.dst = append(p.dst, ": "...)
		p.repr(d.entries[i].value, depth+1)
	}
	p.dst = append(p.dst, '}')
}

func (p *printer) view(x *viewValue, depth int) {
	var a Arena
	items := make([]Value, x.dict.Len())
	for i := range items {
		items[i] = x.at(&a, i)
	}
	p.dst = append(p.dst, x.of.String()...)
	p.items("([", items, "])", depth)
}

func appendRange(dst []byte, x *rangeValue) []byte {
	dst = append(dst, "range("...)
	dst = strconv.AppendInt(dst, x.start, 10)
	dst = append(dst, ", "...)
	dst = strconv.AppendInt(dst, x.stop, 10)
	if x.step != 1 {
		dst = append(dst, ", "...)
		dst = strconv.AppendInt(dst, x.step, 10)
	}
	return append(dst, ')')
}

// appendFloat appends repr(f): the shortest digits that read back as f, with an exponent below 1e-4 and from 1e16.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	case math.IsNaN(f):
		return append(dst, "nan"...)
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[start:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

const hexDigits = "0123456789abcdef"

// appendQuoted appends repr(s).
func appendQuoted(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	dst = append(dst, quote)
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if unicode.IsPrint(r) {
				dst = append(dst, s[i:i+size]...)
			} else {
				dst = appendHexEscape(dst, r)
			}
			i += size
			continue
		}
		i++
		switch {
		case c == quote || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < ' ' || c == 0x7f:
			dst = appendHexEscape(dst, rune(c))
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, quote)
}

// appendHexEscape appends \x, \u or \U with as many digits as r needs.
func appendHexEscape(dst []byte, r rune) []byte {
	prefix, digits := `\x`, 2
	switch {
	case r > 0xffff:
		prefix, digits = `\U`, 8
	case r > 0xff:
		prefix, digits = `\u`, 4
	}
	return appendHex(append(dst, prefix...), r, digits)
}

func appendHex(dst []byte, r rune, digits int) []byte {
	for i := digits - 1; i >= 0; i-- {
		dst = append(dst, hexDigits[r>>(4*i)&15])
	}
	return dst
}
