package chattemplate

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// strMethod is a method of strings.
type strMethod func(r *run, s string, a *args) Value

// strMethods are the methods of Python's str that are known here. It is filled by init, because some of them lead back
// to it.
var strMethods map[string]strMethod

func init() {
	strMethods = map[string]strMethod{
		"strip":        stripMethod(true, true),
		"lstrip":       stripMethod(true, false),
		"rstrip":       stripMethod(false, true),
		"upper":        caseMethod(upper),
		"lower":        caseMethod(lower),
		"title":        caseMethod(titleMethod),
		"capitalize":   caseMethod(capitalize),
		"startswith":   affixMethod("startswith", strings.HasPrefix),
		"endswith":     affixMethod("endswith", strings.HasSuffix),
		"removeprefix": cutMethod("removeprefix", strings.TrimPrefix),
		"removesuffix": cutMethod("removesuffix", strings.TrimSuffix),
		"find":         findMethod("find", strings.Index, false),
		"rfind":        findMethod("rfind", strings.LastIndex, false),
		"index":        findMethod("index", strings.Index, true),
		"rindex":       findMethod("rindex", strings.LastIndex, true),
		"count":        countMethod,
		"replace":      replaceMethod,
		"split":        splitMethod(false),
		"rsplit":       splitMethod(true),
		"splitlines":   splitLinesMethod,
		"partition":    partitionMethod("partition", strings.Index),
		"rpartition":   partitionMethod("rpartition", strings.LastIndex),
		"join":         joinMethod,
		"format":       (*run).format,
		"isdigit":      isMethod(unicode.IsDigit),
		"isalpha":      isMethod(unicode.IsLetter),
		"isalnum":      isMethod(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }),
		"isspace":      isMethod(isSpace),
		"isupper":      casedMethod(unicode.IsUpper, unicode.IsLower),
		"islower":      casedMethod(unicode.IsLower, unicode.IsUpper),
		"center":       nil, "ljust": nil, "rjust": nil, "zfill": nil,
	}
	for name, m := range strMethods {
		if m == nil {
			strMethods[name] = func(r *run, _ string, _ *args) Value {
				return r.fail(unsupported("the method %q of a str", name))
			}
		}
	}
}

// text checks that an argument is a string.
func (r *run) text(v Value, what string) (string, bool) {
	if v.kind != KindString {
		r.typeError("%s must be str, not %s", what, v.typeName())
		return "", false
	}
	return v.Text(), true
}

func stripMethod(left, right bool) strMethod {
	return func(r *run, s string, a *args) Value {
		v, ok := r.bind(a, "strip", 0, "chars")
		if !ok {
			return Value{}
		}
		return r.strip(s, v[0], left, right)
	}
}

// strip takes characters off: white space, or those of chars.
func (r *run) strip(s string, chars Value, left, right bool) Value {
	in := isSpace
	switch chars.kind {
	case KindMissing, KindNone:
	case KindString:
		in = inSet(chars.Text())
		if !r.spend(int(chars.n) / 8) {
			return Value{}
		}
	default:
		return r.typeError("strip arg must be None or str")
	}
	length := len(s)
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	r.spend((length - len(s)) / 4)
	return String(s)
}

// inSet reports whether a character is one of set.
func inSet(set string) func(c rune) bool {
	if len(set) < 16 {
		return func(c rune) bool { return strings.ContainsRune(set, c) }
	}
	chars := make(map[rune]bool)
	for _, c := range set {
		chars[c] = true
	}
	return func(c rune) bool { return chars[c] }
}

func caseMethod(f func(r *run, s string) Value) strMethod {
	return func(r *run, s string, a *args) Value {
		if _, ok := r.bind(a, "method", 0); !ok {
			return Value{}
		}
		return f(r, s)
	}
}

// odd reports whether the upper or title case of a character is several characters. Some around them are refused with them.
func odd(c rune) bool {
	switch c {
	case 0xdf, 0x149, 0x1f0, 0x390, 0x3b0, 0x587:
		return true
	}
	return c >= 0x1e96 && c <= 0x1e9e || c >= 0x1f50 && c <= 0x1fff || c >= 0xfb00 && c <= 0xfb17
}

// oddLower reports whether the lower case of a character depends on its neighbours, or is several characters.
func oddLower(c rune) bool { return c == 0x130 || c == 0x3a3 }

// mapped is s with a change of case.
func (r *run) mapped(s string, f func(string) string, odd func(rune) bool) Value {
	if !r.spend(1+len(s)/4) || strings.ContainsFunc(s, odd) {
		return r.fail(unsupported("the case of unusual characters"))
	}
	out := f(s)
	if len(out) > 64 && !r.spendMemory(len(out)) {
		return Value{}
	}
	return String(out)
}

func upper(r *run, s string) Value { return r.mapped(s, strings.ToUpper, odd) }
func lower(r *run, s string) Value { return r.mapped(s, strings.ToLower, oddLower) }

func capitalize(r *run, s string) Value {
	return r.mapped(s, capitalized, func(c rune) bool { return odd(c) || oddLower(c) })
}

func capitalized(s string) string {
	c, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return s
	}
	return string(unicode.ToTitle(c)) + strings.ToLower(s[size:])
}

// titleMethod makes the first of each run of letters a capital.
func titleMethod(r *run, s string) Value {
	beyondASCII := func(c rune) bool { return c >= utf8.RuneSelf }
	return r.mapped(s, func(s string) string {
		out := []byte(s)
		inside := false
		for i, c := range out {
			letter := c|0x20 >= 'a' && c|0x20 <= 'z'
			switch {
			case letter && inside:
				out[i] = c | 0x20
			case letter:
				out[i] = c &^ 0x20
			}
			inside = letter
		}
		return string(out)
	}, beyondASCII)
}

func affixMethod(name string, has func(s, affix string) bool) strMethod {
	return func(r *run, s string, a *args) Value {
		v, ok := r.bind(a, name, 1, "prefix", "start", "end")
		switch {
		case !ok:
			return Value{}
		case v[1].kind != KindMissing:
			return r.fail(unsupported("%s with bounds", name))
		case v[0].kind == KindString:
			return Bool(r.spend(int(v[0].n)/64) && has(s, v[0].Text()))
		case v[0].kind != KindTuple:
			return r.typeError("%s first arg must be str or a tuple of str, not %s", name, v[0].typeName())
		}
		for _, affix := range v[0].Items() {
			if affix.kind != KindString {
				return r.typeError("tuple for %s must only contain str, not %s", name, affix.typeName())
			}
			if r.spend(1+int(affix.n)/64) && has(s, affix.Text()) {
				return Bool(true)
			}
		}
		return Bool(false)
	}
}

func cutMethod(name string, cut func(s, affix string) string) strMethod {
	return func(r *run, s string, a *args) Value {
		v, ok := r.bind(a, name, 1, "affix")
		if !ok {
			return Value{}
		}
		affix, ok := r.text(v[0], name+"() argument")
		if !ok || !r.spend(len(affix)/64) {
			return Value{}
		}
		return String(cut(s, affix))
	}
}

func findMethod(name string, find func(s, sub string) int, must bool) strMethod {
	return func(r *run, s string, a *args) Value {
		v, ok := r.bind(a, name, 1, "sub", "start", "end")
		if !ok || !r.spend(1+len(s)/32) {
			return Value{}
		}
		if v[1].kind != KindMissing {
			return r.fail(unsupported("%s with bounds", name))
		}
		sub, ok := r.text(v[0], "argument")
		if !ok {
			return Value{}
		}
		i := find(s, sub)
		switch {
		case i > 0:
			i = utf8.RuneCountInString(s[:i])
		case i < 0 && must:
			return r.raise("ValueError", "substring not found")
		}
		return Int(int64(i))
	}
}

func countMethod(r *run, s string, a *args) Value {
	v, ok := r.bind(a, "count", 1, "sub", "start", "end")
	if !ok || !r.spend(1+len(s)/32) {
		return Value{}
	}
	if v[1].kind != KindMissing {
		return r.fail(unsupported("count with bounds"))
	}
	sub, ok := r.text(v[0], "argument")
	if !ok {
		return Value{}
	}
	return Int(int64(strings.Count(s, sub)))
}

func replaceMethod(r *run, s string, a *args) Value {
	v, ok := r.bind(a, "replace", 2, "old", "new", "count")
	if !ok {
		return Value{}
	}
	from, ok := r.text(v[0], "replace() argument 1")
	if !ok {
		return Value{}
	}
	to, ok := r.text(v[1], "replace() argument 2")
	if !ok {
		return Value{}
	}
	n, ok := r.integer(v[2], -1)
	if !ok {
		return Value{}
	}
	return r.replace(s, from, to, n)
}

// replace puts to in the place of the first n occurrences of from, of all for a negative n.
func (r *run) replace(s, from, to string, n int) Value {
	if !r.spend(1 + len(s)/32) {
		return Value{}
	}
	count := strings.Count(s, from)
	if n >= 0 {
		count = min(count, n)
	}
	if count == 0 {
		return String(s)
	}
	if grown := len(to) - len(from); grown > 0 && count > r.maxMemory/grown {
		return r.fail(errMemory)
	}
	out := r.bytes(len(s) + count*(len(to)-len(from)))
	if r.err != nil {
		return Value{}
	}
	out = out[:0]
	for i := range count {
		at := strings.Index(s, from)
		if from == "" && i > 0 {
			_, at = utf8.DecodeRuneInString(s)
		}
		out = append(append(out, s[:at]...), to...)
		s = s[at+len(from):]
	}
	return String(view(append(out, s...)))
}

// integer is an argument that must be an integer; otherwise is its value if it is absent.
func (r *run) integer(v Value, otherwise int) (int, bool) {
	switch {
	case v.kind == KindMissing:
		return otherwise, true
	case v.isInt() && int64(int32(v.int())) == v.int():
		return int(v.int()), true
	case v.isInt() || v.kind == KindBigInt:
		r.fail(errWide)
		return 0, false
	}
	r.typeError("'%s' object cannot be interpreted as an integer", v.typeName())
	return 0, false
}

// strings makes a list of strings.
func (r *run) strings(parts []string) Value {
	items := r.values(len(parts))
	if r.err != nil {
		return Value{}
	}
	for i, p := range parts {
		items[i] = String(p)
	}
	return List(items)
}

// room reports whether there is memory for a list of n texts.
func (r *run) room(n int) bool {
	if n > 1000 && r.a.Size()+64*n > r.maxMemory {
		r.fail(errMemory)
	}
	return r.err == nil
}

func countRunes(s string, is func(rune) bool) (n int) {
	for _, c := range s {
		if is(c) {
			n++
		}
	}
	return n
}

// isMethod reports whether all characters are of a class, and there is one. Numbers beyond ASCII have too many classes.
func isMethod(is func(rune) bool) strMethod {
	return func(r *run, s string, a *args) Value {
		if _, ok := r.bind(a, "method", 0); !ok || !r.spend(1+len(s)/4) {
			return Value{}
		}
		if strings.ContainsFunc(s, func(c rune) bool { return c >= utf8.RuneSelf && unicode.IsNumber(c) }) {
			return r.fail(unsupported("classes of unusual characters"))
		}
		return Bool(s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !is(c) }))
	}
}

// casedMethod reports whether there is a letter of a case, and none of the other.
func casedMethod(is, isOther func(rune) bool) strMethod {
	return func(r *run, s string, a *args) Value {
		if _, ok := r.bind(a, "method", 0); !ok || !r.spend(1+len(s)/4) {
			return Value{}
		}
		if strings.ContainsFunc(s, func(c rune) bool { return c >= utf8.RuneSelf }) {
			return r.fail(unsupported("classes of unusual characters"))
		}
		return Bool(strings.ContainsFunc(s, is) && !strings.ContainsFunc(s, isOther))
	}
}
