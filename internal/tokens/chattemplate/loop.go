package chattemplate

import (
	"strconv"
	"unicode/utf8"
)

// cursor goes over the elements of a value once.
type cursor struct {
	items []Value // of a list or tuple
	of    Value   // of another kind
	at    int
	// iterator, which others can also advance
	it *iterator
}

// iterator is a Python generator or iterator: each of its elements can be had once.
type iterator struct {
	name  string // of its type
	depth int    // iterators that it goes through, itself included
	next  func(r *run) (Value, bool)
}

// iterate begins to go over v; not ok after an error.
func (r *run) iterate(v Value) (cursor, bool) {
	switch v.kind {
	case KindList, KindTuple:
		return cursor{items: v.Items()}, true
	case KindDict, KindString, kindRange, kindView:
		return cursor{of: v}, true
	case KindUndefined:
		return cursor{}, true
	case kindIterator:
		return cursor{it: v.iterator()}, true
	case kindLoop:
		loop := v.loop()
		return cursor{it: &iterator{name: "LoopContext", next: func(r *run) (Value, bool) {
			item, ok := loop.next(r)
			if !ok {
				return Value{}, false
			}
			return tuple([]Value{item, v}), true
		}}}, true
	case KindMissing:
		r.fail(errInternal)
	default:
		r.typeError("'%s' object is not iterable", v.typeName())
	}
	return cursor{}, false
}

// iterable reports whether iterate works.
func iterable(v Value) bool {
	switch v.kind {
	case KindUndefined, KindString, KindList, KindTuple, KindDict, kindRange, kindView, kindIterator, kindLoop:
		return true
	}
	return false
}

// next is the next element; not ok at the end and after an error.
func (c *cursor) next(r *run) (Value, bool) {
	if c.it != nil {
		if !r.spend(1) {
			return Value{}, false
		}
		return c.it.next(r)
	}
	i := c.at
	switch c.of.kind {
	case KindMissing:
		if i == len(c.items) {
			return Value{}, false
		}
		c.at++
		return c.items[i], true
	case KindString:
		s := c.of.Text()
		if i == len(s) {
			return Value{}, false
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		c.at += size
		return String(s[i : i+size]), true
	case KindDict:
		if d := c.of.Dict(); i < d.Len() {
			c.at++
			return d.entries[i].key, true
		}
	case kindView:
		if x := c.of.view(); i < x.dict.Len() {
			c.at++
			return x.at(r.a, i), true
		}
	case kindRange:
		if x := c.of.rangeOf(); i < x.len() {
			c.at++
			return x.at(i), true
		}
	}
	return Value{}, false
}

// list is what remains, as a list.
func (c *cursor) list(r *run) []Value {
	if c.it == nil && c.of.kind == KindMissing {
		rest := c.items[c.at:]
		c.at = len(c.items)
		return rest
	}
	var out []Value
	for {
		v, ok := c.next(r)
		if !ok {
			return out
		}
		out = append(out, v)
		if len(out)&1023 == 0 && !r.spendMemory(1024*32) {
			return nil
		}
	}
}

// spendMemory counts memory that the arena does not.
func (r *run) spendMemory(n int) bool {
	r.maxMemory -= n
	return r.spend(n / 64)
}

// list is list(v), which might share v's memory.
func (r *run) list(v Value) []Value {
	c, ok := r.iterate(v)
	if !ok {
		return nil
	}
	return c.list(r)
}

// length is len(v); not ok after an error.
func (r *run) length(v Value) (int, bool) {
	switch v.kind {
	case KindString:
		s := v.Text()
		if !r.spend(1 + len(s)/64) {
			return 0, false
		}
		return utf8.RuneCountInString(s), true
	case KindList, KindTuple:
		return int(v.n), true
	case KindDict:
		return v.Dict().Len(), true
	case kindRange:
		return v.rangeOf().len(), true
	case kindView:
		return v.view().dict.Len(), true
	case KindUndefined:
		return 0, true
	case kindLoop:
		return v.loop().len(r), r.err == nil
	}
	r.typeError("object of type '%s' has no len()", v.typeName())
	return 0, false
}

// loopState is the variable loop.
type loopState struct {
	source      Value // what is looped over, to ask for its length
	c           cursor
	index0      int
	length      int // or -1 before the first request
	before      Value
	current     Value
	after       Value // looked at already
	hasAfter    bool
	lastChanged Value // what changed() was called with last
}

func (l *loopState) next(r *run) (Value, bool) {
	v, ok := l.after, l.hasAfter
	l.after, l.hasAfter = Value{}, false
	if !ok {
		if v, ok = l.c.next(r); !ok {
			return v, false
		}
	}
	l.index0++
	l.before, l.current = l.current, v
	return v, true
}

// peek looks at the next element.
func (l *loopState) peek(r *run) (Value, bool) {
	if !l.hasAfter {
		l.after, l.hasAfter = l.c.next(r)
	}
	return l.after, l.hasAfter
}

func (l *loopState) len(r *run) int {
	if l.length < 0 {
		if l.c.it == nil {
			l.length, _ = r.length(l.source)
		} else {
			rest := l.c.list(r)
			l.c = cursor{items: rest}
			l.length = len(rest) + l.index0 + 1
			if l.hasAfter {
				l.length++
			}
		}
	}
	return l.length
}

// get is an attribute of loop; not ok for names that it has not.
func (l *loopState) get(r *run, name string) (Value, bool) {
	switch name {
	case "index":
		return Int(int64(l.index0 + 1)), true
	case "index0":
		return Int(int64(l.index0)), true
	case "first":
		return Bool(l.index0 == 0), true
	case "last":
		_, more := l.peek(r)
		return Bool(!more), true
	case "length":
		return Int(int64(l.len(r))), true
	case "revindex":
		return Int(int64(l.len(r) - l.index0)), true
	case "revindex0":
		return Int(int64(l.len(r) - l.index0 - 1)), true
	case "previtem":
		if l.index0 == 0 {
			return r.newUndefined(undefined{hint: "there is no previous item"}), true
		}
		return l.before, true
	case "nextitem":
		v, ok := l.peek(r)
		if !ok {
			return r.newUndefined(undefined{hint: "there is no next item"}), true
		}
		return v, true
	case "depth":
		return Int(1), true
	case "depth0":
		return Int(0), true
	case "cycle", "changed":
		return (&function{name: name, self: l.value(), call: loopMethods[name]}).value(), true
	}
	return Value{}, false
}

// loopText is str(loop).
func (r *run) loopText(l *loopState) Value {
	n := l.len(r)
	return String("<LoopContext " + strconv.Itoa(l.index0+1) + "/" + strconv.Itoa(n) + ">")
}

func (n *forStmt) exec(r *run) signal {
	v := n.iter.eval(r)
	if r.err != nil {
		return stops
	}
	c, ok := r.iterate(v)
	if !ok {
		return stops
	}
	if n.test != nil {
		c = cursor{it: n.filtered(r, c)}
	}
	var loop *loopState
	if n.usesLoop {
		loop = &loopState{source: v, c: c, index0: -1, length: -1}
	}
	completed := false
	slots := r.frame.slots
	for {
		var item Value
		if loop != nil {
			item, ok = loop.next(r)
		} else {
			item, ok = c.next(r)
		}
		if !ok {
			break
		}
		// The scope's own names become what they are at its beginning; the target and loop are parameters.
		n.target.assign(r, r.frame, item)
		if loop != nil {
			slots[n.loop.slot] = loop.value()
		}
		if r.err != nil {
			return stops
		}
		r.enter(&n.scope)
		sig := r.exec(&n.body)
		if sig == stops {
			return stops
		}
		if sig == breaks {
			break
		}
		completed = completed || sig == goesOn
	}
	if r.err != nil {
		return stops
	}
	r.leave(&n.scope)
	// As in Jinja, passes that are cut short do not count.
	if completed || n.otherwise.stmts == nil {
		return goesOn
	}
	r.enter(&n.elseScope)
	sig := r.exec(&n.otherwise)
	r.leave(&n.elseScope)
	return sig
}

// filtered returns the elements of c that pass the loop's test, each on request.
func (n *forStmt) filtered(r *run, c cursor) *iterator {
	f := r.newFrame(n.testSlots, r.frame)
	entered := false
	return &iterator{name: "generator", next: func(r *run) (Value, bool) {
		outer := r.frame
		r.frame = f
		defer func() { r.frame = outer }()
		if !entered && r.err == nil {
			r.enter(&n.testScope)
			entered = true
		}
		for r.spend(4) {
			item, ok := c.next(r)
			if !ok {
				break
			}
			n.testTarget.assign(r, f, item)
			if n.test.eval(r).Truth() && r.err == nil {
				return n.testTarget.value(r, f), true
			}
		}
		return Value{}, false
	}}
}
