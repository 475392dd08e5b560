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

// appendStr appends str(v).
func appendStr(dst []byte, v Value) ([]byte, error) {
	switch v.kind {
	case KindString:
		return append(dst, v.Text()...), nil
	case KindMissing, KindUndefined:
		return dst, nil
	}
	return appendRepr(dst, v, 0)
}

// appendRepr appends repr(v). What shows addresses of memory is refused.
func appendRepr(dst []byte, v Value, depth int) ([]byte, error) {
	if depth > maxNesting {
		return dst, errNesting
	}
	switch v.kind {
	case KindUndefined:
		return append(dst, "Undefined"...), nil
	case KindNone:
		return append(dst, "None"...), nil
	case KindBool:
		if v.n != 0 {
			return append(dst, "True"...), nil
		}
		return append(dst, "False"...), nil
	case KindInt:
		return strconv.AppendInt(dst, v.int(), 10), nil
	case KindBigInt:
		return v.big().Append(dst, 10), nil
	case KindFloat:
		return appendFloat(dst, v.float()), nil
	case KindString:
		if v.markup {
			dst = append(dst, "Markup("...)
			return append(appendQuoted(dst, v.Text()), ')'), nil
		}
		return appendQuoted(dst, v.Text()), nil
	case KindList:
		return appendItems(dst, '[', v.Items(), ']', depth)
	case KindTuple:
		if v.n != 1 {
			return appendItems(dst, '(', v.Items(), ')', depth)
		}
		dst, err := appendRepr(append(dst, '('), v.Items()[0], depth+1)
		return append(dst, ",)"...), err
	case KindDict:
		return appendDict(dst, v.Dict(), depth)
	case kindRange:
		return appendRange(dst, v.rangeOf()), nil
	case kindView:
		return appendView(dst, v.view(), depth)
	case kindNamespace:
		dst, err := appendDict(append(dst, "<Namespace "...), v.namespace(), depth+1)
		return append(dst, '>'), err
	case kindMacro:
		if v.macro().code.name == "" {
			return append(dst, "<Macro anonymous>"...), nil
		}
		dst = append(dst, "<Macro "...)
		return append(appendQuoted(dst, v.macro().code.name), '>'), nil
	}
	return dst, unsupported("the text of a %s", v.typeName())
}

func appendItems(dst []byte, open byte, items []Value, end byte, depth int) ([]byte, error) {
	dst = append(dst, open)
	for i, item := range items {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		var err error
		if dst, err = appendRepr(dst, item, depth+1); err != nil {
			return dst, err
		}
	}
	return append(dst, end), nil
}

func appendDict(dst []byte, d *Dict, depth int) ([]byte, error) {
	dst = append(dst, '{')
	for i := range d.entries {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		var err error
		if dst, err = appendRepr(dst, d.entries[i].key, depth+1); err != nil {
			return dst, err
		}
		dst = append(dst, ": "...)
		if dst, err = appendRepr(dst, d.entries[i].value, depth+1); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
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

func appendView(dst []byte, x *viewValue, depth int) ([]byte, error) {
	var a Arena
	items := make([]Value, x.dict.Len())
	for i := range items {
		items[i] = x.at(&a, i)
	}
	dst = append(dst, x.of.String()...)
	dst, err := appendItems(append(dst, '('), '[', items, ']', depth)
	return append(dst, ')'), err
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
