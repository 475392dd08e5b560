package chattemplate

import (
	"slices"
	"strconv"
	"strings"
)

func filterList(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "list", 0); !ok {
		return Value{}
	}
	return List(r.list(v))
}

func filterFirst(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "first", 0); !ok {
		return Value{}
	}
	c, ok := r.iterate(v)
	if !ok {
		return Value{}
	}
	if first, ok := c.next(r); ok {
		return first
	}
	return r.newUndefined(undefined{hint: "No first item, sequence was empty."})
}

func filterLast(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "last", 0); !ok {
		return Value{}
	}
	switch v.kind {
	case KindList, KindTuple, KindDict, KindString, kindRange, kindView, KindUndefined:
		if items := r.list(v); len(items) > 0 {
			return items[len(items)-1]
		}
		return r.newUndefined(undefined{hint: "No last item, sequence was empty."})
	}
	return r.typeError("'%s' object is not reversible", v.typeName())
}

func filterJoin(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "join", 0, "d", "attribute")
	if !ok {
		return Value{}
	}
	sep := r.str(p[0].or(String("")))
	c, ok := r.iterate(v)
	if !ok {
		return Value{}
	}
	path := attributePath(p[1])
	mark := len(r.out)
	for i := 0; ; i++ {
		item, ok := c.next(r)
		if !ok || !r.spend(1) {
			break
		}
		if i > 0 {
			r.out = append(r.out, sep...)
		}
		r.print(r.follow(item, path))
		if len(r.out) > r.maxOut {
			r.fail(errOutput)
		}
	}
	return r.cut(mark)
}

// maxPath bounds the parts of a name with points. The last one keeps what would be more.
const maxPath = 1000

// attributePath splits a name with points into its parts. Parts of digits are indices.
func attributePath(v Value) []Value {
	switch v.kind {
	case KindMissing, KindNone:
		return nil
	case KindString:
		var path []Value
		for _, part := range strings.SplitN(v.Text(), ".", maxPath) {
			if i, err := strconv.ParseUint(part, 10, 31); err == nil {
				path = append(path, Int(int64(i)))
			} else {
				path = append(path, String(part))
			}
		}
		return path
	}
	return []Value{v}
}

// follow goes along a path of attributes and elements.
func (r *run) follow(v Value, path []Value) Value {
	for _, part := range path {
		if r.err != nil {
			return Value{}
		}
		v = r.item(v, part, nil)
	}
	return v
}

// folded is v for a comparison that ignores case.
func (r *run) folded(v Value) Value {
	if v.kind == KindString {
		return lower(r, v.Text())
	}
	return v
}

// sorted is items in the order of their keys, equal ones as they were.
func (r *run) sorted(items, keys []Value, reversed bool) []Value {
	if !r.spend(len(items) * 4) {
		return nil
	}
	at := make([]int, len(items))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int {
		c := r.order(keys[i], keys[j], "<")
		if reversed {
			return -c
		}
		return c
	})
	out := make([]Value, len(items))
	for i, j := range at {
		out[i] = items[j]
	}
	return out
}

func filterSort(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "sort", 0, "reverse", "case_sensitive", "attribute")
	if !ok {
		return Value{}
	}
	if p[2].kind == KindString && strings.Contains(p[2].Text(), ",") {
		return r.fail(unsupported("sorting by several attributes"))
	}
	items, path := r.list(v), attributePath(p[2])
	// Jinja2 compares lists of one key each: keys that are equal need no order, whatever they are.
	all, keys := make([]Value, len(items)), make([]Value, len(items))
	for i, item := range items {
		all[i] = r.follow(item, path)
		if !p[1].Truth() {
			all[i] = r.folded(all[i])
		}
		keys[i] = List(all[i : i+1])
	}
	if r.err != nil {
		return Value{}
	}
	return List(r.sorted(items, keys, p[0].Truth()))
}

func filterDictSort(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "dictsort", 0, "case_sensitive", "by", "reverse")
	if !ok {
		return Value{}
	}
	by := 0
	if p[1].kind != KindMissing {
		switch {
		case p[1].Text() == "value":
			by = 1
		case p[1].Text() != "key":
			return r.raise("FilterArgumentError", `You can only sort by either "key" or "value"`)
		}
	}
	d := v.Dict()
	if d == nil {
		if v.kind == KindUndefined {
			return r.fail(v.undefined().error())
		}
		return r.raise("AttributeError", "'%s' object has no attribute 'items'", v.typeName())
	}
	x := viewValue{dict: d, of: viewItems}
	items, keys := make([]Value, d.Len()), make([]Value, d.Len())
	for i := range items {
		items[i] = x.at(r.a, i)
		keys[i] = items[i].Items()[by]
		if !p[0].Truth() {
			keys[i] = r.folded(keys[i])
		}
	}
	if r.err != nil {
		return Value{}
	}
	return List(r.sorted(items, keys, p[2].Truth()))
}

func extremeFilter(name string, want int) filter {
	return func(r *run, v Value, a *args) Value {
		p, ok := r.bind(a, name, 0, "case_sensitive", "attribute")
		if !ok {
			return Value{}
		}
		c, ok := r.iterate(v)
		if !ok {
			return Value{}
		}
		path := attributePath(p[1])
		var best, bestKey Value
		for {
			item, ok := c.next(r)
			if !ok || !r.spend(1) {
				break
			}
			key := r.follow(item, path)
			if !p[0].Truth() {
				key = r.folded(key)
			}
			if best.kind == KindMissing {
				best, bestKey = item, key
				continue
			}
			op := ">"
			if want < 0 {
				op = "<"
			}
			if r.order(key, bestKey, op) == want {
				best, bestKey = item, key
			}
		}
		if best.kind == KindMissing {
			return r.newUndefined(undefined{hint: "No aggregated item, sequence was empty."})
		}
		return best
	}
}

func filterSum(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "sum", 0, "attribute", "start")
	if !ok {
		return Value{}
	}
	c, ok := r.iterate(v)
	if !ok {
		return Value{}
	}
	total := p[1].or(Int(0))
	if total.kind == KindString {
		return r.typeError("sum() can't sum strings [use ''.join(seq) instead]")
	}
	path := attributePath(p[0])
	for {
		item, ok := c.next(r)
		if !ok || !r.spend(1) {
			return total
		}
		item = r.follow(item, path)
		if total.kind == KindFloat || item.kind == KindFloat {
			return r.fail(unsupported("sums of floating-point numbers")) // Python 3.12 adds them up in another way
		}
		total = r.binary("+", total, item)
	}
}

// lazily makes a generator over v. start is called when its first element is asked for, and might give no cursor.
func (r *run) lazily(v Value, start func(r *run) (cursor, bool), step func(r *run, v Value) (Value, bool)) Value {
	var c cursor
	state := 0 // not started, running, ended
	depth := 1
	if v.kind == kindIterator {
		depth = v.iterator().depth + 1
	}
	if depth > maxCalls {
		return r.fail(errCalls)
	}
	return (&iterator{name: "generator", depth: depth, next: func(r *run) (Value, bool) {
		if state == 0 {
			state = 1
			var ok bool
			if c, ok = start(r); !ok {
				state = 2
			}
		}
		for state == 1 && r.spend(4) {
			item, ok := c.next(r)
			if !ok || r.err != nil {
				state = 2
				break
			}
			if v, ok := step(r, item); ok && r.err == nil {
				return v, true
			}
		}
		return Value{}, false
	}}).value()
}

// truthy starts a generator over v, unless v is false or empty.
func truthy(v Value) func(r *run) (cursor, bool) {
	return func(r *run) (cursor, bool) {
		if !v.Truth() {
			return cursor{}, false
		}
		return r.iterate(v)
	}
}

func filterItems(r *run, v Value, a *args) Value {
	if _, ok := r.bind(a, "items", 0); !ok {
		return Value{}
	}
	return r.lazily(v, func(r *run) (cursor, bool) {
		switch v.kind {
		case KindUndefined:
			return cursor{}, false
		case KindDict:
			return cursor{of: (&viewValue{dict: v.Dict(), of: viewItems}).value()}, true
		}
		r.typeError("Can only get item pairs from a mapping.")
		return cursor{}, false
	}, func(_ *run, item Value) (Value, bool) { return item, true })
}

func filterUnique(r *run, v Value, a *args) Value {
	p, ok := r.bind(a, "unique", 0, "case_sensitive", "attribute")
	if !ok {
		return Value{}
	}
	path := attributePath(p[1])
	var seen Dict
	return r.lazily(v, func(r *run) (cursor, bool) { return r.iterate(v) }, func(r *run, item Value) (Value, bool) {
		key := r.follow(item, path)
		if !p[0].Truth() {
			key = r.folded(key)
		}
		if r.err != nil || !r.key(key) || r.find(&seen, key) >= 0 || !r.spendMemory(64) {
			return Value{}, false
		}
		seen.add(key, None())
		return item, true
	})
}

func filterMap(r *run, v Value, a *args) Value {
	var f func(r *run, item Value) (Value, bool)
	return r.lazily(v, truthy(v), func(r *run, item Value) (Value, bool) {
		if f == nil {
			f = r.mapper(a)
		}
		if r.err != nil {
			return Value{}, false
		}
		return f(r, item)
	})
}

// mapper is what the filter map does with each element.
func (r *run) mapper(a *args) func(r *run, item Value) (Value, bool) {
	if len(a.positional) == 0 && slices.Contains(a.names, "attribute") {
		p, ok := r.bind(a, "map", 0, "attribute", "default")
		if !ok {
			r.err = nil
			r.raise("FilterArgumentError", "Unexpected keyword argument")
		}
		path := attributePath(p[0])
		hasDefault := p[1].kind != KindMissing && p[1].kind != KindNone
		return func(r *run, item Value) (Value, bool) {
			for _, part := range path {
				if item = r.item(item, part, nil); r.err != nil {
					return Value{}, false
				}
				if hasDefault && item.kind == KindUndefined {
					item = p[1]
				}
			}
			return item, true
		}
	}
	if len(a.positional) == 0 {
		r.raise("FilterArgumentError", "map requires a filter argument")
		return nil
	}
	f := filters[a.positional[0].Text()]
	if f == nil {
		r.fail(unsupported("the filter that map asks for"))
		return nil
	}
	rest := &args{positional: a.positional[1:], names: a.names, keyword: a.keyword}
	return func(r *run, item Value) (Value, bool) {
		out := f(r, item, rest)
		return out, r.err == nil
	}
}

// selectFilter makes select, reject, selectattr and rejectattr.
func selectFilter(keep, byAttribute bool) filter {
	return func(r *run, v Value, a *args) Value {
		var passes func(r *run, item Value) bool
		return r.lazily(v, truthy(v), func(r *run, item Value) (Value, bool) {
			if passes == nil {
				passes = r.selector(a, byAttribute)
			}
			if r.err != nil {
				return Value{}, false
			}
			return item, passes(r, item) == keep
		})
	}
}

// selector is the test that such a filter makes.
func (r *run) selector(a *args, byAttribute bool) func(r *run, item Value) bool {
	positional := a.positional
	var path []Value
	if byAttribute {
		if len(positional) == 0 {
			r.raise("FilterArgumentError", "Missing parameter for attribute name")
			return nil
		}
		path = attributePath(positional[0])
		positional = positional[1:]
	}
	if len(positional) == 0 {
		return func(r *run, item Value) bool { return r.follow(item, path).Truth() }
	}
	t := tests[positional[0].Text()]
	if t == nil {
		r.fail(unsupported("the test that a selection asks for"))
		return nil
	}
	rest := &args{positional: positional[1:], names: a.names, keyword: a.keyword}
	return func(r *run, item Value) bool {
		item = r.follow(item, path)
		return r.err == nil && t(r, item, rest)
	}
}
