package chattemplate

import (
	"strings"
	"unicode/utf8"
)

func splitMethod(fromRight bool) strMethod {
	return func(r *run, s string, a *args) Value {
		v, ok := r.bind(a, "split", 0, "sep", "maxsplit")
		if !ok || !r.spend(1+len(s)/8) {
			return Value{}
		}
		limit, ok := r.integer(v[1], -1)
		if !ok {
			return Value{}
		}
		if limit < 0 {
			limit = len(s) + 1
		}
		if v[0].kind == KindMissing || v[0].kind == KindNone {
			switch {
			case !r.room(countRunes(s, isSpace)):
				return Value{}
			case fromRight:
				return r.strings(rightFields(s, limit))
			}
			return r.strings(fields(s, limit))
		}
		sep, ok := r.text(v[0], "sep")
		switch {
		case !ok:
			return Value{}
		case sep == "":
			return r.raise("ValueError", "empty separator")
		case !r.room(strings.Count(s, sep)):
			return Value{}
		case !fromRight:
			return r.strings(strings.SplitN(s, sep, limit+1))
		}
		var parts []string
		for ; limit > 0; limit-- {
			i := strings.LastIndex(s, sep)
			if i < 0 {
				break
			}
			parts = append(parts, s[i+len(sep):])
			s = s[:i]
		}
		parts = append(parts, s)
		reverse(parts)
		return r.strings(parts)
	}
}

func reverse[T any](s []T) {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
}

// fields splits at white space, at most limit times.
func fields(s string, limit int) (parts []string) {
	s = trimLeft(s)
	for s != "" {
		i := strings.IndexFunc(s, isSpace)
		if i < 0 || len(parts) == limit {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		s = trimLeft(s[i:])
	}
	return parts
}

// rightFields splits at white space from the end, at most limit times.
func rightFields(s string, limit int) (parts []string) {
	s = trimRight(s)
	for s != "" {
		i := strings.LastIndexFunc(s, isSpace)
		if i < 0 || len(parts) == limit {
			parts = append(parts, s)
			break
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		parts = append(parts, s[i+size:])
		s = trimRight(s[:i])
	}
	reverse(parts)
	return parts
}

func splitLinesMethod(r *run, s string, a *args) Value {
	v, ok := r.bind(a, "splitlines", 0, "keepends")
	if !ok || !r.spend(1+len(s)/16) || !r.room(countRunes(s, isLineEnd)) {
		return Value{}
	}
	return r.strings(splitLines(s, v[0].Truth()))
}

// splitLines splits where Python sees the end of a line.
func splitLines(s string, keepEnds bool) (lines []string) {
	for s != "" {
		i := strings.IndexFunc(s, isLineEnd)
		if i < 0 {
			return append(lines, s)
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			size = 2
		}
		if keepEnds {
			lines = append(lines, s[:i+size])
		} else {
			lines = append(lines, s[:i])
		}
		s = s[i+size:]
	}
	return lines
}

func isLineEnd(c rune) bool {
	return c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

func partitionMethod(name string, find func(s, sep string) int) strMethod {
	return func(r *run, s string, a *args) Value {
		v, ok := r.bind(a, name, 1, "sep")
		if !ok || !r.spend(1+len(s)/32) {
			return Value{}
		}
		sep, ok := r.text(v[0], "sep")
		switch {
		case !ok:
			return Value{}
		case sep == "":
			return r.raise("ValueError", "empty separator")
		}
		parts := []Value{String(s), String(""), String("")}
		if i := find(s, sep); i >= 0 {
			parts = []Value{String(s[:i]), v[0], String(s[i+len(sep):])}
		} else if name == "rpartition" {
			parts[0], parts[2] = parts[2], parts[0]
		}
		return tuple(parts)
	}
}

func joinMethod(r *run, s string, a *args) Value {
	v, ok := r.bind(a, "join", 1, "iterable")
	if !ok {
		return Value{}
	}
	if !iterable(v[0]) {
		return r.typeError("can only join an iterable")
	}
	mark := len(r.out)
	c, _ := r.iterate(v[0])
	for i := 0; ; i++ {
		item, ok := c.next(r)
		if !ok || !r.spend(1) || len(r.out) > r.maxOut {
			break
		}
		if item.kind != KindString {
			r.typeError("sequence item %d: expected str instance, %s found", i, item.typeName())
			break
		}
		if i > 0 {
			r.out = append(r.out, s...)
		}
		r.out = append(r.out, item.Text()...)
	}
	if len(r.out) > r.maxOut {
		r.fail(errOutput)
	}
	return r.cut(mark)
}
