package chattemplate

import (
	"cmp"
	"math"
	"math/big"
	"strings"
)

// equal is a == b.
func (r *run) equal(a, b Value) bool { return r.equalAt(a, b, 0) }

// equalAt compares values at nesting depth depth. It takes a step for each value, because lists that a template builds can
// contain one another many times over.
func (r *run) equalAt(a, b Value, depth int) bool {
	if a.isNumber() {
		return b.isNumber() && compareNumbers(a, b) == 0
	}
	if a.kind != b.kind {
		return false
	}
	switch a.kind {
	case KindUndefined, KindNone, KindMissing:
		return true
	case KindString:
		return a.n == b.n && r.spend(int(a.n)/64) && a.Text() == b.Text()
	case kindRange:
		return equalRanges(a.rangeOf(), b.rangeOf())
	case KindList, KindTuple, KindDict:
	default:
		return a.p == b.p
	}
	switch {
	case !r.spend(1):
		return false
	case depth > maxNesting:
		r.fail(errNesting)
		return false
	case a.kind == KindDict:
		return a.p == b.p || r.equalDicts(a.Dict(), b.Dict(), depth)
	}
	x, y := a.Items(), b.Items()
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if !r.equalAt(x[i], y[i], depth+1) {
			return false
		}
	}
	return true
}

func (r *run) equalDicts(a, b *Dict, depth int) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.entries {
		j := r.find(b, a.entries[i].key)
		if j < 0 || !r.equalAt(a.entries[i].value, b.entries[j].value, depth+1) {
			return false
		}
	}
	return true
}

func equalRanges(a, b *rangeValue) bool {
	n := a.len()
	return n == b.len() && (n == 0 || a.start == b.start && (n == 1 || a.step == b.step))
}

// notComparable is what compareNumbers gives where one of the numbers is NaN.
const notComparable = 2

// compareNumbers compares exactly, however different the types are.
func compareNumbers(a, b Value) int {
	switch {
	case a.isInt() && b.isInt():
		return cmp.Compare(a.int(), b.int())
	case a.kind == KindFloat && b.kind == KindFloat, a.kind == KindFloat && isSmall(b), isSmall(a) && b.kind == KindFloat:
		x, y := asFloat(a), asFloat(b)
		if math.IsNaN(x) || math.IsNaN(y) {
			return notComparable
		}
		return cmp.Compare(x, y)
	case a.kind == KindFloat:
		c := compareNumbers(b, a)
		if c == notComparable {
			return c
		}
		return -c
	case b.kind == KindFloat:
		y := b.float()
		switch {
		case math.IsNaN(y):
			return notComparable
		case math.IsInf(y, 0):
			return -cmp.Compare(y, 0)
		}
		exact, _ := new(big.Float).SetPrec(maxBits).SetFloat64(y).SetMode(big.ToZero).Int(nil)
		if c := asBig(a).Cmp(exact); c != 0 {
			return c
		}
		return -cmp.Compare(y, math.Trunc(y))
	}
	return asBig(a).Cmp(asBig(b))
}

// maxBits holds any float64 exactly.
const maxBits = 1100

// isSmall reports whether v is an integer that a float holds exactly.
func isSmall(v Value) bool {
	return v.isInt() && v.int() <= 1<<53 && v.int() >= -1<<53
}

// asFloat is a number as a float, rounded if it must be.
func asFloat(v Value) float64 {
	switch v.kind {
	case KindFloat:
		return v.float()
	case KindBigInt:
		f, _ := new(big.Float).SetInt(v.big()).Float64()
		return f
	}
	return float64(v.int())
}

func asBig(v Value) *big.Int {
	if v.kind == KindBigInt {
		return v.big()
	}
	return big.NewInt(v.int())
}

// order compares a and b for op ("<", "<=", ">" or ">="), which only the message needs. Beside -1, 0 and 1 it gives
// notComparable, for which every op is false; also after an error.
func (r *run) order(a, b Value, op string) int { return r.orderAt(a, b, op, 0) }

func (r *run) orderAt(a, b Value, op string, depth int) int {
	switch {
	case !r.spend(1):
		return notComparable
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b)
	case a.kind == KindString && b.kind == KindString:
		r.spend(min(int(a.n), int(b.n)) / 64)
		return strings.Compare(a.Text(), b.Text()) // UTF-8 sorts as its characters do
	case a.kind == b.kind && (a.kind == KindList || a.kind == KindTuple):
		x, y := a.Items(), b.Items()
		for i := range min(len(x), len(y)) {
			if !r.equalAt(x[i], y[i], depth+1) {
				return r.orderAt(x[i], y[i], op, depth+1)
			}
		}
		return cmp.Compare(len(x), len(y))
	case a.kind == KindUndefined:
		r.fail(a.undefined().error())
	case b.kind == KindUndefined:
		r.fail(b.undefined().error())
	case a.kind == kindView && b.kind == kindView:
		r.fail(unsupported("the order of views"))
	default:
		r.typeError("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
	}
	return notComparable
}

// hashable reports whether v can be a key, or an element of a set. Tuples are looked into, a step for each element.
func (r *run) hashable(v Value) bool {
	switch v.kind {
	case KindList, KindDict:
		return false
	case kindView:
		return v.view().of == viewValues
	case KindTuple:
		for _, item := range v.Items() {
			if !r.spend(1) || !r.hashable(item) {
				return false
			}
		}
	}
	return true
}

// key checks that v can be a key.
func (r *run) key(v Value) bool {
	if v.kind == KindString {
		return r.spend(int(v.n) / 64)
	}
	if !r.hashable(v) {
		r.typeError("unhashable type: '%s'", v.typeName())
		return false
	}
	return true
}

// find finds a key of any hashable type.
func (r *run) find(d *Dict, key Value) int {
	if key.kind == KindString {
		return d.find(key.Text())
	}
	for i := range d.Len() {
		if k := d.entries[i].key; k.kind != KindString && r.spend(1) && r.equal(k, key) {
			return i
		}
	}
	return -1
}

// put adds an entry to a dict that is being made.
func (r *run) put(d *Dict, key, value Value) bool {
	switch {
	case !r.key(key):
		return false
	case key.kind == KindString:
		d.set(key, value)
		return true
	}
	if i := r.find(d, key); i >= 0 {
		d.entries[i].value = value
	} else {
		d.add(key, value)
	}
	return r.err == nil
}
