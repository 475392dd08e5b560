package chattemplate

import (
	"cmp"
	"math"
	"math/big"
	"strings"
)

// equal is a == b. Values too deep to compare count as different.
func equal(a, b Value, depth int) bool {
	if depth > maxNesting {
		return false
	}
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
		return a.Text() == b.Text()
	case KindList, KindTuple:
		x, y := a.Items(), b.Items()
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if !equal(x[i], y[i], depth+1) {
				return false
			}
		}
		return true
	case KindDict:
		return a.p == b.p || equalDicts(a.Dict(), b.Dict(), depth)
	case kindRange:
		return equalRanges(a.rangeOf(), b.rangeOf())
	}
	return a.p == b.p
}

func equalDicts(a, b *Dict, depth int) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.entries {
		j := b.findValue(a.entries[i].key)
		if j < 0 || !equal(a.entries[i].value, b.entries[j].value, depth+1) {
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

// isSmall tells whole numbers that a float holds exactly.
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
// notComparable, for which every op is false.
func order(a, b Value, op string, depth int) (int, error) {
	switch {
	case depth > maxNesting:
		return 0, errNesting
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b), nil
	case a.kind == KindString && b.kind == KindString:
		return strings.Compare(a.Text(), b.Text()), nil // UTF-8 sorts as its characters do
	case a.kind == b.kind && (a.kind == KindList || a.kind == KindTuple):
		x, y := a.Items(), b.Items()
		for i := range min(len(x), len(y)) {
			if !equal(x[i], y[i], depth+1) {
				return order(x[i], y[i], op, depth+1)
			}
		}
		return cmp.Compare(len(x), len(y)), nil
	case a.kind == KindUndefined:
		return 0, a.undefined().error()
	case b.kind == KindUndefined:
		return 0, b.undefined().error()
	case a.kind == kindView && b.kind == kindView:
		return 0, unsupported("the order of views")
	}
	return 0, &RaisedError{Class: "TypeError", Msg: "'" + op + "' not supported between instances of '" +
		a.typeName() + "' and '" + b.typeName() + "'"}
}
