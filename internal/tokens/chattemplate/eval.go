package chattemplate

import (
	"slices"
	"strings"
	"unicode/utf8"
)

func (n *constant) eval(*run) Value { return n.value }

func (n *name) eval(r *run) Value {
	var v Value
	switch n.ref.place {
	case inFrame:
		f := r.frame
		for range n.ref.hops {
			f = f.up
		}
		v = f.slots[n.ref.slot]
	case fromContext:
		v = r.context[n.ref.slot]
	}
	if v.kind == KindMissing {
		return n.undef.value()
	}
	return v
}

func (n *listExpr) eval(r *run) Value {
	items := r.values(len(n.items))
	if r.err != nil {
		return Value{}
	}
	for i, e := range n.items {
		items[i] = e.eval(r)
	}
	if n.tuple {
		return tuple(items)
	}
	return List(items)
}

func (n *dictExpr) eval(r *run) Value {
	d := r.a.NewDict(len(n.keys))
	for i := range n.keys {
		key, value := n.keys[i].eval(r), n.values[i].eval(r)
		if r.err != nil || !r.put(d, key, value) {
			return Value{}
		}
	}
	return d.Value()
}

func (n *unary) eval(r *run) Value {
	v := n.of.eval(r)
	if n.op == '!' {
		return Bool(!v.Truth())
	}
	return r.sign(n.op, v)
}

func (n *logic) eval(r *run) Value {
	v := n.left.eval(r)
	if v.Truth() == n.or {
		return v
	}
	return n.right.eval(r)
}

func (n *condition) eval(r *run) Value {
	switch {
	case n.test.eval(r).Truth():
		return n.then.eval(r)
	case n.otherwise != nil:
		return n.otherwise.eval(r)
	}
	return noElse.value()
}

var noElse = undefined{hint: "the inline if-expression evaluated to false and no else section was defined."}

func (n *concat) eval(r *run) Value {
	mark := len(r.out)
	for _, p := range n.parts {
		r.print(p.eval(r))
	}
	return r.cut(mark)
}

func (n *binaryExpr) eval(r *run) Value {
	if n.op == "+" {
		if left, ok := n.left.(*binaryExpr); ok && left.op == "+" {
			mark := len(r.out)
			v, printed := n.sum(r)
			if printed {
				return r.cut(mark)
			}
			return v
		}
	}
	left := n.left.eval(r)
	return r.binary(n.op, left, n.right.eval(r))
}

// sum adds up a chain of additions. A text is printed piece by piece, instead of made again and again.
func (n *binaryExpr) sum(r *run) (v Value, printed bool) {
	if left, ok := n.left.(*binaryExpr); ok && left.op == "+" {
		v, printed = left.sum(r)
	} else {
		v = n.left.eval(r)
	}
	right := n.right.eval(r)
	if r.err != nil {
		return Value{}, false
	}
	if !printed && v.isPlainString() && right.isPlainString() {
		r.print(v)
		printed = true
	}
	switch {
	case printed && right.isPlainString():
		r.print(right)
		return Value{}, true
	case printed:
		v = String("")
	}
	return r.binary("+", v, right), false
}

func (v Value) isPlainString() bool { return v.kind == KindString && !v.markup }

func (n *compare) eval(r *run) Value {
	left := n.first.eval(r)
	for i, op := range n.ops {
		right := n.rest[i].eval(r)
		if r.err != nil || !r.compare(op, left, right) {
			return Bool(false)
		}
		left = right
	}
	return Bool(true)
}

func (r *run) compare(op string, a, b Value) bool {
	switch op {
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	if a.kind == kindView && b.kind == kindView {
		r.fail(unsupported("comparing views of dicts"))
		return false
	}
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	}
	c := r.order(a, b, op)
	switch op {
	case "<":
		return c == -1
	case "<=":
		return c == -1 || c == 0
	case ">":
		return c == 1
	}
	return c == 1 || c == 0
}

// contains is v in c.
func (r *run) contains(c, v Value) bool {
	switch c.kind {
	case KindString:
		if v.kind != KindString {
			r.typeError("'in <string>' requires string as left operand, not %s", v.typeName())
			return false
		}
		return r.spend(1+int(c.n)/64) && strings.Contains(c.Text(), v.Text())
	case KindDict:
		return r.hasKey(c.Dict(), v)
	case kindView:
		if c.view().of == viewKeys {
			return r.hasKey(c.view().dict, v)
		}
	}
	if !iterable(c) {
		r.typeError("argument of type '%s' is not iterable", c.typeName())
		return false
	}
	cursor, _ := r.iterate(c)
	for {
		item, ok := cursor.next(r)
		if !ok || !r.spend(1) {
			return false
		}
		if r.equal(item, v) {
			return true
		}
	}
}

func (r *run) hasKey(d *Dict, key Value) bool {
	return r.key(key) && r.find(d, key) >= 0
}

func (n *slice) eval(r *run) Value { return r.fail(errInternal) }

func (n *subscript) eval(r *run) Value {
	of := n.of.eval(r)
	if s, ok := n.index.(*slice); ok {
		return s.of(r, of)
	}
	return r.item(of, n.index.eval(r), &n.undef)
}

// item is of[index]; missing is what a dict gives that lacks a constant index.
func (r *run) item(of, index Value, missing *undefined) Value {
	switch of.kind {
	case KindMissing:
		return of
	case KindUndefined:
		return r.fail(of.undefined().error())
	case KindDict:
		d := of.Dict()
		if r.hashable(index) && (index.kind != KindString || r.spend(int(index.n)/64)) {
			if i := r.find(d, index); i >= 0 {
				return d.entries[i].value
			}
		}
		if index.kind == KindString {
			if v, ok := r.method(of, index.Text()); ok {
				return v
			}
		}
		if missing != nil && missing.of != "" {
			return missing.value()
		}
		return r.lacks(of, index)
	case KindString, KindList, KindTuple, kindRange:
		if index.isInt() {
			return r.element(of, index)
		}
	}
	if index.kind == KindString {
		if v, ok := r.pythonAttribute(of, index.Text()); ok {
			return v
		}
	}
	return r.lacks(of, index)
}

// element is the index-th element of a sequence, from the end if it is negative.
func (r *run) element(of, index Value) Value {
	n, ok := r.length(of)
	i := index.int()
	if i < 0 {
		i += int64(n)
	}
	if !ok || i < 0 || i >= int64(n) {
		return r.lacks(of, index)
	}
	switch of.kind {
	case KindString:
		s := of.Text()
		if len(s) == n {
			return String(s[i : i+1])
		}
		if !r.spend(int(i) / 8) {
			return Value{}
		}
		at := runeOffset(s, int(i))
		_, size := utf8.DecodeRuneInString(s[at:])
		return String(s[at : at+size])
	case kindRange:
		return of.rangeOf().at(int(i))
	}
	return of.Items()[i]
}

// runeOffset is where the n-th character of s begins; the length of s if it has no more.
func runeOffset(s string, n int) int {
	at := 0
	for ; n > 0 && at < len(s); n-- {
		_, size := utf8.DecodeRuneInString(s[at:])
		at += size
	}
	return at
}

// of is the part of v that the slice selects.
func (n *slice) of(r *run, v Value) Value {
	if v.kind == KindUndefined {
		return r.fail(v.undefined().error())
	}
	start, hasStart := n.bound(r, n.start)
	stop, hasStop := n.bound(r, n.stop)
	step, hasStep := n.bound(r, n.step)
	if r.err != nil {
		return Value{}
	}
	if !hasStep {
		step = 1
	}
	switch v.kind {
	case KindString, KindList, KindTuple:
	case kindRange:
		return r.fail(unsupported("slices of ranges"))
	case KindDict:
		return r.typeError("unhashable type: 'slice'")
	default:
		return r.typeError("'%s' object is not subscriptable", v.typeName())
	}
	if step == 0 {
		return r.raise("ValueError", "slice step cannot be zero")
	}
	length, ok := r.length(v)
	if !ok {
		return Value{}
	}
	first, count := slicePlan(start, hasStart, stop, hasStop, step, int64(length))
	if v.kind == KindString {
		return r.sliceString(v, first, count, step, length)
	}
	items := v.Items()
	if step != 1 {
		picked := r.values(count)
		for i := range picked {
			picked[i] = items[first+int64(i)*step]
		}
		items = picked
	} else {
		items = items[first : first+int64(count)]
	}
	if v.kind == KindTuple {
		return tuple(items)
	}
	return List(items)
}

// bound evaluates a part of the slice; None is as good as nothing.
func (n *slice) bound(r *run, e expr) (int64, bool) {
	if e == nil {
		return 0, false
	}
	switch v := e.eval(r); {
	case v.kind == KindNone || r.err != nil:
	case v.isInt():
		return v.int(), true
	case v.kind == KindBigInt:
		r.fail(unsupported("numbers beyond 64 bits"))
	default:
		r.typeError("slice indices must be integers or None or have an __index__ method")
	}
	return 0, false
}

// slicePlan is the first of the selected elements and their number.
func slicePlan(start int64, hasStart bool, stop int64, hasStop bool, step, length int64) (first int64, count int) {
	lowest, highest := int64(0), length
	if step < 0 {
		lowest, highest = -1, length-1
	}
	clamp := func(i int64) int64 {
		if i < 0 {
			i += length
		}
		return min(max(i, lowest), highest)
	}
	first, last := lowest, highest
	if step < 0 {
		first, last = highest, lowest
	}
	if hasStart {
		first = clamp(start)
	}
	if hasStop {
		last = clamp(stop)
	}
	r := rangeValue{first, last, step}
	return first, r.len()
}

func (r *run) sliceString(v Value, first int64, count int, step int64, length int) Value {
	s := v.Text()
	if count == 0 {
		return v.part("")
	}
	if step == 1 {
		if len(s) == length {
			return v.part(s[first : first+int64(count)])
		}
		if !r.spend(length / 8) {
			return Value{}
		}
		from := runeOffset(s, int(first))
		to := from + runeOffset(s[from:], count)
		return v.part(s[from:to])
	}
	if !r.spend(length) {
		return Value{}
	}
	runes := []rune(s)
	picked := make([]rune, count)
	for i := range picked {
		picked[i] = runes[first+int64(i)*step]
	}
	if step == -1 && count == length {
		slices.Reverse(runes)
		picked = runes
	}
	out := r.bytes(len(string(picked)))
	copy(out, string(picked))
	return v.part(view(out))
}

// part is s as a string of v's kind.
func (v Value) part(s string) Value {
	out := String(s)
	out.markup = v.markup
	return out
}
