package chattemplate

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// globals are the functions that every template has, unless a variable of that name is passed.
var globals = map[string]Value{}

// unknownGlobals are functions of Jinja that are not known here.
var unknownGlobals = []string{"cycler", "joiner", "lipsum"}

func init() {
	for name, f := range map[string]method{
		"dict":            builtinDict,
		"namespace":       builtinNamespace,
		"raise_exception": builtinRaise,
		"range":           builtinRange,
		"strftime_now":    builtinNow,
	} {
		globals[name] = (&function{name: name, call: f}).value()
	}
}

// newDict is dict(...), which takes a dict or pairs, and keyword arguments.
func (r *run) newDict(a *args) *Dict {
	d := r.a.NewDict(len(a.names))
	if len(a.positional) > 1 {
		r.typeError("dict expected at most 1 argument, got %d", len(a.positional))
		return nil
	}
	if len(a.positional) == 1 {
		v := a.positional[0]
		switch v.kind {
		case KindDict:
			for _, e := range v.Dict().entries {
				if !r.put(d, e.key, e.value) {
					return nil
				}
			}
		case KindUndefined:
			r.fail(unsupported("a dict from an undefined value"))
		default:
			for _, pair := range r.list(v) {
				both := pair.Items()
				if len(both) != 2 {
					r.fail(unsupported("a dict from something else than pairs"))
				}
				if r.err != nil || !r.put(d, both[0], both[1]) {
					return nil
				}
			}
		}
	}
	for i, name := range a.names {
		d.Set(name, a.keyword[i])
	}
	if !r.spendMemory(64 * d.Len()) {
		return nil
	}
	return d
}

func builtinDict(r *run, _ Value, a *args) Value {
	if d := r.newDict(a); d != nil {
		return d.Value()
	}
	return Value{}
}

func builtinNamespace(r *run, _ Value, a *args) Value {
	d := r.newDict(a)
	switch {
	case d == nil:
		return Value{}
	case slices.ContainsFunc(d.entries, func(e entry) bool { return e.key.kind != KindString }):
		return r.fail(unsupported("names of attributes that are no strings"))
	}
	return namespaceValue(d)
}

func builtinRaise(r *run, _ Value, a *args) Value {
	p, ok := r.bind(a, "raise_exception", 1, "message")
	if !ok {
		return Value{}
	}
	text := r.str(p[0])
	return r.raise("TemplateError", "%s", strings.Clone(text))
}

func builtinRange(r *run, _ Value, a *args) Value {
	if len(a.names) > 0 {
		return r.typeError("range() takes no keyword arguments")
	}
	x := rangeValue{step: 1}
	var n [3]int64
	for i, v := range a.positional {
		if i == 3 {
			return r.typeError("range expected at most 3 arguments, got %d", len(a.positional))
		}
		if !v.isInt() {
			if v.kind == KindBigInt {
				return r.fail(errWide)
			}
			return r.typeError("'%s' object cannot be interpreted as an integer", v.typeName())
		}
		n[i] = v.int()
	}
	switch len(a.positional) {
	case 0:
		return r.typeError("range expected at least 1 argument, got 0")
	case 1:
		x.stop = n[0]
	case 2:
		x.start, x.stop = n[0], n[1]
	case 3:
		x = rangeValue{n[0], n[1], n[2]}
		if x.step == 0 {
			return r.raise("ValueError", "range() arg 3 must not be zero")
		}
	}
	if length := x.len(); length > maxRange || length < 0 {
		return r.raise("OverflowError",
			"Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return x.value()
}

func builtinNow(r *run, _ Value, a *args) Value {
	p, ok := r.bind(a, "strftime_now", 1, "format")
	if !ok {
		return Value{}
	}
	format, ok := r.text(p[0], "strftime() argument 1")
	switch {
	case !ok:
		return Value{}
	case r.in.Now.IsZero():
		return r.fail(unsupported("the time, without a clock"))
	}
	out, err := strftime(r.in.Now, format)
	if err != nil {
		return r.fail(err)
	}
	return String(out)
}

// layouts are the conversions of strftime in terms of the time package, in the C locale.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'D': "01/02/06", 'e': "_2", 'F': "2006-01-02",
	'h': "Jan", 'H': "15", 'I': "03", 'm': "01", 'M': "04", 'p': "PM", 'R': "15:04", 'S': "05", 'T': "15:04:05", 'y': "06",
	'Y': "2006",
}

// strftime is Python's, for a time without a zone, on Linux.
func strftime(t time.Time, format string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			out.WriteByte(format[i])
			continue
		}
		i++
		noPadding := i < len(format) && format[i] == '-'
		if noPadding {
			i++
		}
		if i >= len(format) {
			return "", unsupported("a format of the time")
		}
		var text string
		layout, ok := layouts[format[i]]
		switch {
		case ok && t.Year() >= 1000 && t.Year() <= 9999:
			text = t.Format(layout)
		case format[i] == '%' && !noPadding:
			text = "%"
		case format[i] == 'j':
			text = strconv.Itoa(1000 + t.YearDay())[1:]
		default:
			return "", unsupported("a format of the time")
		}
		if noPadding {
			if !isDigit(text[0]) && text[0] != ' ' || len(text) > 3 {
				return "", unsupported("a format of the time")
			}
			text = strings.TrimLeft(text[:len(text)-1], "0 ") + text[len(text)-1:]
		}
		out.WriteString(text)
	}
	return out.String(), nil
}
