package chattemplate

import (
	"math"
	"math/bits"
)

var errWide = unsupported("whole numbers beyond 64 bits")

// sign is -v or +v.
func (r *run) sign(op byte, v Value) Value {
	switch v.kind {
	case KindMissing:
		return v
	case KindUndefined:
		return r.fail(v.undefined().error())
	case KindBool, KindInt:
		switch {
		case op == '+':
			return Int(v.int())
		case v.int() == math.MinInt64:
			return r.fail(errWide)
		}
		return Int(-v.int())
	case KindFloat:
		if op == '-' {
			return Float(-v.float())
		}
		return v
	case KindBigInt:
		return r.fail(errWide)
	}
	return r.typeError("bad operand type for unary %c: '%s'", op, v.typeName())
}

// binary is a op b for an arithmetic operator.
func (r *run) binary(op string, a, b Value) Value {
	if r.err != nil {
		return Value{}
	}
	if a.isNumber() && b.isNumber() {
		return r.arithmetic(op, a, b)
	}
	if a.kind == KindString && op == "%" {
		return r.percent(a, b)
	}
	if a.markup || b.markup {
		return r.fail(unsupported("operators on escaped text"))
	}
	if a.kind == KindUndefined {
		return r.fail(a.undefined().error())
	}
	if b.kind == KindUndefined {
		return r.fail(b.undefined().error())
	}
	switch op {
	case "+":
		return r.add(a, b)
	case "*":
		switch {
		case a.isSequence() && b.isInt():
			return r.repeat(a, b.int())
		case b.isSequence() && a.isInt():
			return r.repeat(b, a.int())
		case a.isSequence() && b.kind == KindBigInt, b.isSequence() && a.kind == KindBigInt:
			return r.raise("OverflowError", "cannot fit 'int' into an index-sized integer")
		case a.isSequence():
			return r.typeError("can't multiply sequence by non-int of type '%s'", b.typeName())
		case b.isSequence():
			return r.typeError("can't multiply sequence by non-int of type '%s'", a.typeName())
		}
	case "-":
		if a.kind == kindView && b.kind == kindView {
			return r.fail(unsupported("differences of views"))
		}
	case "**":
		op = "** or pow()"
	}
	return r.typeError("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

func (v Value) isSequence() bool {
	return v.kind == KindString || v.kind == KindList || v.kind == KindTuple
}

func (r *run) add(a, b Value) Value {
	if a.kind == b.kind {
		switch a.kind {
		case KindString:
			return r.concat(a.Text(), b.Text())
		case KindList, KindTuple:
			x, y := a.Items(), b.Items()
			out := r.values(len(x) + len(y))
			if r.err != nil {
				return Value{}
			}
			copy(out, x)
			copy(out[len(x):], y)
			v := List(out)
			v.kind = a.kind
			return v
		}
	}
	if a.isSequence() {
		return r.typeError("can only concatenate %s (not \"%s\") to %s", a.typeName(), b.typeName(), a.typeName())
	}
	return r.typeError("unsupported operand type(s) for +: '%s' and '%s'", a.typeName(), b.typeName())
}

func (r *run) repeat(v Value, times int64) Value {
	if times <= 0 || v.n == 0 {
		out := v
		out.n = 0
		return out
	}
	if times > int64(r.maxMemory) || int64(v.n) > int64(r.maxMemory)/times {
		return r.fail(errMemory)
	}
	if v.kind == KindString {
		s := v.Text()
		out := r.bytes(len(s) * int(times))
		for i := 0; i < len(out); i += len(s) {
			copy(out[i:], s)
		}
		return String(view(out))
	}
	items := v.Items()
	out := r.values(len(items) * int(times))
	for i := 0; i < len(out); i += len(items) {
		copy(out[i:], items)
	}
	w := List(out)
	w.kind = v.kind
	return w
}

// arithmetic works on numbers. Integer results beyond 64 bits are unsupported.
func (r *run) arithmetic(op string, a, b Value) Value {
	if a.kind == KindBigInt || b.kind == KindBigInt {
		return r.fail(errWide)
	}
	if a.kind == KindFloat || b.kind == KindFloat {
		return r.floatArithmetic(op, asFloat(a), asFloat(b))
	}
	x, y := a.int(), b.int()
	switch op {
	case "+":
		if sum := x + y; (sum > x) == (y > 0) {
			return Int(sum)
		}
		return r.fail(errWide)
	case "-":
		if diff := x - y; (diff < x) == (y > 0) {
			return Int(diff)
		}
		return r.fail(errWide)
	case "*":
		if p, ok := multiply(x, y); ok {
			return Int(p)
		}
		return r.fail(errWide)
	case "/":
		switch {
		case y == 0:
			return r.raise("ZeroDivisionError", "division by zero")
		case !isSmall(a) || !isSmall(b):
			return r.fail(errWide)
		}
		return Float(float64(x) / float64(y))
	case "**":
		return r.power(x, y)
	}
	// // and %
	if y == 0 {
		return r.raise("ZeroDivisionError", "integer division or modulo by zero")
	}
	if x == math.MinInt64 && y == -1 {
		return r.fail(errWide)
	}
	q, m := x/y, x%y
	if m != 0 && (m < 0) != (y < 0) {
		q--
		m += y
	}
	if op == "%" {
		return Int(m)
	}
	return Int(q)
}

func multiply(x, y int64) (int64, bool) {
	neg := (x < 0) != (y < 0)
	hi, lo := bits.Mul64(magnitude(x), magnitude(y))
	switch {
	case hi != 0 || lo > 1<<63 || lo == 1<<63 && !neg:
		return 0, false
	case neg:
		return -int64(lo), true
	}
	return int64(lo), true
}

func magnitude(x int64) uint64 {
	if x < 0 {
		return -uint64(x)
	}
	return uint64(x)
}

func (r *run) power(x, y int64) Value {
	if y < 0 {
		if x == 0 {
			return r.raise("ZeroDivisionError", "0.0 cannot be raised to a negative power")
		}
		return r.fail(unsupported("negative powers"))
	}
	p, ok := int64(1), true
	for ; y > 0 && ok; y-- {
		if x == 0 || x == 1 {
			return Int(x)
		}
		if x == -1 {
			return Int(1 - 2*(y&1))
		}
		p, ok = multiply(p, x)
	}
	if !ok {
		return r.fail(errWide)
	}
	return Int(p)
}

func (r *run) floatArithmetic(op string, x, y float64) Value {
	switch op {
	case "+":
		return Float(x + y)
	case "-":
		return Float(x - y)
	case "*":
		return Float(x * y)
	case "/":
		if y == 0 {
			return r.raise("ZeroDivisionError", "float division by zero")
		}
		return Float(x / y)
	case "**":
		return r.fail(unsupported("powers of floating-point numbers"))
	}
	if y == 0 {
		if op == "%" {
			return r.raise("ZeroDivisionError", "float modulo")
		}
		return r.raise("ZeroDivisionError", "float floor division by zero")
	}
	// As in Python: the remainder has the sign of y, and the quotient is an integer.
	m := math.Mod(x, y)
	div := (x - m) / y
	if m != 0 {
		if (y < 0) != (m < 0) {
			m += y
			div--
		}
	} else {
		m = math.Copysign(0, y)
	}
	if op == "%" {
		return Float(m)
	}
	if div == 0 {
		return Float(math.Copysign(0, x/y))
	}
	q := math.Floor(div)
	if div-q > 0.5 {
		q++
	}
	return Float(q)
}
