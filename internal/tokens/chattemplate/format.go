package chattemplate

import (
	"math"
	"strconv"
	"strings"
)

// percent is s % v: the conversions s, r, d, i and f, the last with a precision.
func (r *run) percent(format, v Value) Value {
	if format.markup {
		return r.fail(unsupported("operators on escaped text"))
	}
	values := []Value{v}
	if v.kind == KindTuple {
		values = v.Items()
	}
	mark, used := len(r.out), 0
	for s := format.Text(); r.err == nil; {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			r.out = append(r.out, s...)
			break
		}
		r.out = append(r.out, s[:i]...)
		s = s[i+1:]
		if strings.HasPrefix(s, "%") {
			r.out = append(r.out, '%')
			s = s[1:]
			continue
		}
		precision, size := conversion(s)
		switch {
		case size == 0:
			r.fail(unsupported("a conversion of a format string"))
		case used == len(values):
			r.typeError("not enough arguments for format string")
		default:
			r.convert(s[size-1], precision, values[used])
			used++
			s = s[size:]
		}
	}
	if used < len(values) && r.err == nil {
		switch v.kind {
		case KindDict, KindList, KindUndefined, kindRange: // as good as a dict, from which nothing must be used
		default:
			r.typeError("not all arguments converted during string formatting")
		}
	}
	return r.cut(mark)
}

// conversion reads what follows a percent sign; size 0 if it is not known here.
func conversion(s string) (precision, size int) {
	if s == "" {
		return 0, 0
	}
	if strings.IndexByte("srdif", s[0]) >= 0 {
		return 6, 1
	}
	if s[0] == '.' && len(s) > 2 && isDigit(s[1]) && s[2] == 'f' {
		return int(s[1] - '0'), 3
	}
	return 0, 0
}

func (r *run) convert(verb byte, precision int, v Value) {
	switch verb {
	case 's':
		r.print(v)
		return
	case 'r':
		r.printRepr(v)
		return
	}
	switch {
	case v.kind == KindUndefined:
		r.fail(unsupported("numbers from undefined values"))
	case !v.isNumber() && verb == 'f':
		r.typeError("must be real number, not %s", v.typeName())
	case !v.isNumber():
		r.typeError("%%%c format: a real number is required, not %s", verb, v.typeName())
	case verb == 'f' && v.kind == KindBigInt:
		r.fail(errWide)
	case verb == 'f':
		f := asFloat(v)
		if math.IsInf(f, 0) || math.IsNaN(f) {
			r.out = appendFloat(r.out, f)
			return
		}
		r.out = strconv.AppendFloat(r.out, f, 'f', precision, 64)
	case v.kind == KindFloat:
		if f := math.Trunc(v.float()); math.Abs(f) < 1<<53 {
			r.out = strconv.AppendInt(r.out, int64(f), 10)
			return
		}
		r.fail(errWide)
	case v.kind == KindBool:
		r.out = strconv.AppendInt(r.out, v.int(), 10)
	default:
		r.print(v)
	}
}

// format is s.format(...): fields by position or name, without attributes and specifications.
func (r *run) format(s string, a *args) Value {
	mark, auto := len(r.out), 0
	for s != "" && r.err == nil {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			r.out = append(r.out, s...)
			break
		}
		r.out = append(r.out, s[:i]...)
		c := s[i]
		s = s[i+1:]
		if s != "" && s[0] == c {
			r.out = append(r.out, c)
			s = s[1:]
			continue
		}
		end := strings.IndexAny(s, "{}")
		if c == '}' || end < 0 || s[end] == '{' {
			return r.fail(unsupported("a field of a format string"))
		}
		auto = r.field(s[:end], a, auto)
		s = s[end+1:]
	}
	return r.cut(mark)
}

// field prints a field of a format string. auto is the number of fields without a name before; -1 once there is one
// with a number.
func (r *run) field(field string, a *args, auto int) int {
	name, representation := strings.CutSuffix(field, "!r")
	name = strings.TrimSuffix(name, "!s")
	var v Value
	at, err := strconv.Atoi(name)
	switch {
	case strings.ContainsAny(name, ".[]!:") || err == nil && strconv.Itoa(at) != name:
		r.fail(unsupported("a field of a format string"))
	case name == "" && auto < 0 || err == nil && auto > 0:
		r.fail(unsupported("a format string that numbers only some fields"))
	case name == "" || err == nil:
		if name == "" {
			at = auto
			auto++
		} else {
			auto = -1
		}
		if at < 0 || at >= len(a.positional) {
			r.raise("IndexError", "Replacement index %d out of range for positional args tuple", at)
			break
		}
		v = a.positional[at]
	default:
		for i, key := range a.names {
			if key == name {
				v = a.keyword[i]
			}
		}
		if v.kind == KindMissing {
			r.raise("KeyError", "%s", appendQuoted(nil, name))
		}
	}
	if r.err != nil {
		return auto
	}
	if representation {
		r.convert('r', 0, v)
	} else {
		r.print(v)
	}
	return auto
}
