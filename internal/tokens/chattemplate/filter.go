package chattemplate

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filter is a filter after a bar: v|filter(args).
type filter func(r *run, v Value, a *args) Value

// filters are those of Jinja that are known here. It is filled by init, because some of them lead back to it.
var filters map[string]filter

func init() {
	filters = map[string]filter{
		"abs":        filterAbs,
		"capitalize": textFilter("capitalize", capitalize),
		"count":      filterLength,
		"d":          filterDefault,
		"default":    filterDefault,
		"dictsort":   filterDictSort,
		"e":          filterEscape,
		"escape":     filterEscape,
		"first":      filterFirst,
		"float":      filterFloat,
		"format":     filterFormat,
		"indent":     filterIndent,
		"int":        filterInt,
		"items":      filterItems,
		"join":       filterJoin,
		"last":       filterLast,
		"length":     filterLength,
		"list":       filterList,
		"lower":      textFilter("lower", lower),
		"map":        filterMap,
		"max":        extremeFilter("max", 1),
		"min":        extremeFilter("min", -1),
		"reject":     selectFilter(false, false),
		"rejectattr": selectFilter(false, true),
		"replace":    filterReplace,
		"reverse":    filterReverse,
		"round":      filterRound,
		"safe":       filterSafe,
		"select":     selectFilter(true, false),
		"selectattr": selectFilter(true, true),
		"sort":       filterSort,
		"string":     filterString,
		"sum":        filterSum,
		"title":      textFilter("title", title),
		"tojson":     filterToJSON,
		"trim":       filterTrim,
		"unique":     filterUnique,
		"upper":      textFilter("upper", upper),
	}
}

func (n *filterExpr) eval(r *run) Value {
	v := r.filterText
	if n.of != nil {
		v = n.of.eval(r)
	}
	a := r.args(&n.args)
	if !r.spend(4) {
		return Value{}
	}
	return n.filter(r, v, a)
}

// textOf is str(v), for filters that work on texts.
func (r *run) textOf(v Value) (string, bool) {
	if v.markup {
		r.fail(unsupported("changing escaped text"))
	}
	s := r.str(v)
	return s, r.err == nil
}

func textFilter(name string, f func(r *run, s string) Value) filter {
	return func(r *run, v Value, a *args) Value {
		if _, ok := r.bind(a, name, 0); !ok {
			return Value{}
		}
		s, ok := r.textOf(v)
		if !ok {
			return Value{}
		}
		return f(r, s)
	}
}

// title is the filter, which unlike the method begins words only behind white space, hyphens and opening brackets.
func title(r *run, s string) Value {
	beyond := func(c rune) bool { return odd(c) || oddLower(c) }
	if !r.spend(len(s)) {
		return Value{}
	}
	return r.mapped(s, func(s string) string {
		var out strings.Builder
		begins := true
		for _, c := range s {
			word := string(c)
			separates := isSpace(c) || strings.ContainsRune("-({[<", c)
			if begins && !separates {
				word = strings.ToUpper(word)
			} else {
				word = strings.ToLower(word)
			}
			out.WriteString(word)
			begins = separates
		}
		return out.String()
	}, beyond)
}

func filterAbs(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "abs", 0); !ok {
		return Value{}
	}
	switch {
	case v.kind == KindFloat:
		return Float(math.Abs(v.float()))
	case v.isInt() && v.int() < 0:
		return r.sign('-', v)
	case v.isInt():
		return Int(v.int())
	case v.kind == KindBigInt:
		return r.fail(errWide)
	case v.kind == KindUndefined:
		return r.typeError("bad operand type for abs(): 'Undefined'")
	}
	return r.typeError("bad operand type for abs(): '%s'", v.typeName())
}

func filterLength(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "len", 0); !ok {
		return Value{}
	}
	n, _ := r.length(v)
	return Int(int64(n))
}

func filterDefault(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "default", 0, "default_value", "boolean")
	if !ok {
		return Value{}
	}
	if v.kind == KindUndefined || p[1].Truth() && !v.Truth() {
		return p[0].or(String(""))
	}
	return v
}

func filterEscape(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "escape", 0); !ok || v.markup {
		return v
	}
	s, ok := r.textOf(v)
	if !ok {
		return Value{}
	}
	for _, pair := range [...][2]string{{"&", "&amp;"}, {">", "&gt;"}, {"<", "&lt;"}, {"'", "&#39;"}, {`"`, "&#34;"}} {
		s = r.replace(s, pair[0], pair[1], -1).Text()
	}
	return String(s).withMarkup()
}

func filterSafe(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "safe", 0); !ok || v.markup {
		return v
	}
	s, ok := r.textOf(v)
	if !ok {
		return Value{}
	}
	return String(s).withMarkup()
}

func filterString(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "string", 0); !ok || v.kind == KindString {
		return v
	}
	return String(r.str(v))
}

func filterTrim(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "trim", 0, "chars")
	if !ok {
		return Value{}
	}
	s, ok := r.textOf(v)
	if !ok {
		return Value{}
	}
	return r.strip(s, p[0], true, true)
}

func filterReplace(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "replace", 2, "old", "new", "count")
	if !ok {
		return Value{}
	}
	if p[2].kind == KindNone {
		p[2] = Value{}
	}
	n, ok := r.integer(p[2], -1)
	if !ok {
		return Value{}
	}
	return r.replace(r.str(v), r.str(p[0]), r.str(p[1]), n)
}

func filterFormat(r *run, v Value, a *args) Value {
	if len(a.names) > 0 {
		return r.fail(unsupported("format by names"))
	}
	s, ok := r.textOf(v)
	if !ok {
		return Value{}
	}
	return r.percent(String(s), tuple(a.positional))
}

func filterIndent(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "indent", 0, "width", "first", "blank")
	switch {
	case !ok:
		return Value{}
	case v.kind == KindUndefined:
		return r.fail(v.undefined().error())
	case v.markup || p[0].markup:
		return r.fail(unsupported("changing escaped text"))
	}
	indent := "    "
	if p[0].kind == KindString {
		indent = p[0].Text()
	} else if p[0].kind != KindMissing {
		spaces := r.binary("*", String(" "), p[0])
		if r.err != nil {
			return Value{}
		}
		indent = spaces.Text()
	}
	switch v.kind {
	case KindString:
	case KindList:
		return r.raise("AttributeError", "'list' object has no attribute 'splitlines'")
	default:
		return r.binary("+", v, String("\n")) // an error, as in Python
	}
	if !r.spend(1+int(v.n)/16) || !r.room(countRunes(v.Text(), isLineEnd)) {
		return Value{}
	}
	lines := splitLines(v.Text()+"\n", false)
	if len(indent) > r.maxMemory/(len(lines)+1) {
		return r.fail(errMemory)
	}
	mark := len(r.out)
	if p[1].Truth() {
		r.out = append(r.out, indent...)
	}
	for i, line := range lines {
		if i > 0 {
			r.out = append(r.out, '\n')
			if line != "" || p[2].Truth() {
				r.out = append(r.out, indent...)
			}
		}
		r.out = append(r.out, line...)
	}
	return r.cut(mark)
}

func filterInt(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "int", 0, "default", "base")
	switch {
	case !ok:
		return Value{}
	case p[1].kind != KindMissing:
		return r.fail(unsupported("numbers in other bases than ten"))
	case v.kind == KindUndefined:
		return r.fail(v.undefined().error())
	case v.isInt():
		return Int(v.int())
	case v.kind == KindBigInt:
		return v
	case v.kind == KindFloat:
		return r.truncated(v.float(), p[0])
	case v.kind != KindString:
		return p[0].or(Int(0))
	}
	s := strings.TrimFunc(v.Text(), isSpace)
	if !r.spend(len(s)) {
		return Value{}
	}
	if digits, ok := plainDigits(s); ok {
		i, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return r.fail(errWide)
		}
		return Int(i)
	}
	f, ok := r.parseFloat(s)
	if !ok {
		return p[0].or(Int(0))
	}
	if math.IsInf(f, 0) {
		return r.fail(unsupported("whole numbers from infinity")) // releases of Jinja differ
	}
	return r.truncated(f, p[0])
}

// truncated is int(f), where f was made from a number or a text.
func (r *run) truncated(f float64, otherwise Value) Value {
	switch {
	case math.IsNaN(f):
		return otherwise.or(Int(0))
	case math.IsInf(f, 0):
		return r.fail(unsupported("whole numbers from infinity"))
	case math.Abs(f) >= 1<<63:
		return r.fail(errWide)
	}
	return Int(int64(f))
}

// plainDigits removes the underscores of an integer as Python reads it, which can have a sign.
func plainDigits(s string) (string, bool) {
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	if s == "" || s[0] == '_' || s[len(s)-1] == '_' || strings.Contains(s, "__") {
		return "", false
	}
	s = strings.ReplaceAll(s, "_", "")
	for i := range len(s) {
		if !isDigit(s[i]) {
			return "", false
		}
	}
	return sign + s, true
}

// parseFloat is float(s), without white space around it.
func (r *run) parseFloat(s string) (float64, bool) {
	if !r.spend(len(s)) {
		return 0, false
	}
	if strings.ContainsFunc(s, func(c rune) bool { return c >= utf8.RuneSelf }) || strings.Contains(s, "_") {
		r.fail(unsupported("an unusual number"))
		return 0, false
	}
	if strings.ContainsAny(s, "xXpP") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func filterFloat(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "float", 0, "default")
	switch {
	case !ok:
		return Value{}
	case v.kind == KindUndefined:
		return r.fail(v.undefined().error())
	case v.isNumber():
		return Float(asFloat(v))
	case v.kind == KindString:
		if f, ok := r.parseFloat(strings.TrimFunc(v.Text(), isSpace)); ok {
			return Float(f)
		}
	}
	return p[0].or(Float(0))
}

func filterRound(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "round", 0, "precision", "method")
	precision, isInt := r.integer(p[0], 0)
	switch {
	case !ok || !isInt:
		return Value{}
	case p[1].kind != KindMissing && (p[1].kind != KindString || p[1].Text() != "common"):
		return r.fail(unsupported("rounding up or down"))
	case v.isInt() && precision >= 0:
		return Int(v.int())
	case v.kind == KindUndefined:
		return r.typeError("type Undefined doesn't define __round__ method")
	case v.kind != KindFloat && !v.isNumber():
		return r.typeError("type %s doesn't define __round__ method", v.typeName())
	case v.kind != KindFloat || precision < 0 || precision > 15 || math.IsNaN(v.float()) || math.IsInf(v.float(), 0):
		return r.fail(unsupported("rounding to %d digits", precision))
	}
	f, _ := strconv.ParseFloat(strconv.FormatFloat(v.float(), 'f', precision, 64), 64)
	return Float(f)
}

func filterToJSON(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	if !ok {
		return Value{}
	}
	d := dump{r: r, comma: ", ", colon: ": ", ascii: p[0].Truth(), sorted: p[3].Truth(), dst: r.out, limit: r.maxOut}
	switch p[1].kind {
	case KindMissing, KindNone:
	case KindString:
		if p[1].n > maxIndent {
			return r.fail(errMemory)
		}
		d.indented, d.indent, d.comma = true, p[1].Text(), ","
	default:
		n, ok := r.integer(p[1], 0)
		if !ok {
			return Value{}
		}
		if n > maxIndent {
			return r.fail(errMemory)
		}
		d.indented, d.indent, d.comma = true, strings.Repeat(" ", max(n, 0)), ","
	}
	if p[2].kind != KindMissing && p[2].kind != KindNone {
		both := p[2].Items()
		if len(both) != 2 || both[0].kind != KindString || both[1].kind != KindString {
			return r.fail(unsupported("these separators of JSON"))
		}
		d.comma, d.colon = both[0].Text(), both[1].Text()
	}
	mark := len(r.out)
	err := d.value(v, 0)
	r.out = d.dst
	if err != nil {
		r.fail(err)
	}
	r.spend((len(r.out) - mark) / 16)
	return r.cut(mark)
}

// maxIndent is the longest indentation of one level, bytes.
const maxIndent = 1000

func filterReverse(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "reverse", 0); !ok {
		return Value{}
	}
	switch v.kind {
	case KindString:
		s := slice{step: &constant{Int(-1)}}
		return s.of(r, v)
	case KindUndefined:
		return (&iterator{name: "reversed", next: endOfIterator}).value()
	case kindIterator:
		items := slices.Clone(r.list(v))
		reverse(items)
		return List(items)
	case KindList, KindTuple, KindDict, kindRange, kindView:
		items := r.list(v)
		i := len(items)
		return (&iterator{name: "reversed", next: func(*run) (Value, bool) {
			if i == 0 {
				return Value{}, false
			}
			i--
			return items[i], true
		}}).value()
	case kindLoop:
		return r.fail(unsupported("reversing loop"))
	}
	return r.raise("FilterArgumentError", "argument must be iterable")
}

func endOfIterator(*run) (Value, bool) { return Value{}, false }
