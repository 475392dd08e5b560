package chattemplate

// test is a test after is: v is test(args).
type test func(r *run, v Value, a *args) bool

// tests are those of Jinja that are known here.
var tests map[string]test

func init() {
	simple := func(f func(v Value) bool) test {
		return func(r *run, v Value, a *args) bool {
			_, ok := r.bind(a, "test", 0)
			return ok && f(v)
		}
	}
	operator := func(op string) test {
		return func(r *run, v Value, a *args) bool {
			p, ok := r.bind(a, "test", 1, "other")
			return ok && r.compare(op, v, p[0])
		}
	}
	remainder := func(divisor, want int64) test {
		return func(r *run, v Value, a *args) bool {
			_, ok := r.bind(a, "test", 0)
			return ok && r.equal(r.binary("%", v, Int(divisor)), Int(want))
		}
	}
	tests = map[string]test{
		"boolean":  simple(func(v Value) bool { return v.kind == KindBool }),
		"callable": simple(isCallable),
		"defined":  simple(func(v Value) bool { return v.kind != KindUndefined }),
		"divisibleby": func(r *run, v Value, a *args) bool {
			p, ok := r.bind(a, "divisibleby", 1, "num")
			return ok && r.equal(r.binary("%", v, p[0]), Int(0))
		},
		"escaped":  simple(func(v Value) bool { return v.markup }),
		"even":     remainder(2, 0),
		"false":    simple(func(v Value) bool { return v.kind == KindBool && v.n == 0 }),
		"float":    simple(func(v Value) bool { return v.kind == KindFloat }),
		"in":       operator("in"),
		"integer":  simple(func(v Value) bool { return v.kind == KindInt || v.kind == KindBigInt }),
		"iterable": simple(iterable),
		"lower":    caseTest("islower"),
		"mapping":  simple(func(v Value) bool { return v.kind == KindDict }),
		"none":     simple(func(v Value) bool { return v.kind == KindNone }),
		"number":   simple(Value.isNumber),
		"odd":      remainder(2, 1),
		"sameas":   sameAs,
		"sequence": simple(func(v Value) bool {
			switch v.kind {
			case KindString, KindList, KindTuple, KindDict, kindRange, KindUndefined:
				return true
			}
			return false
		}),
		"string":    simple(func(v Value) bool { return v.kind == KindString }),
		"true":      simple(func(v Value) bool { return v.kind == KindBool && v.n != 0 }),
		"undefined": simple(func(v Value) bool { return v.kind == KindUndefined }),
		"upper":     caseTest("isupper"),
	}
	for op, names := range map[string][]string{
		"==": {"==", "eq", "equalto"}, "!=": {"!=", "ne"},
		"<": {"<", "lt", "lessthan"}, "<=": {"<=", "le"}, ">": {">", "gt", "greaterthan"}, ">=": {">=", "ge"},
	} {
		for _, name := range names {
			tests[name] = operator(op)
		}
	}
}

func (n *testExpr) eval(r *run) Value {
	v := n.of.eval(r)
	a := r.args(&n.args)
	if r.err != nil {
		return Value{}
	}
	return Bool(n.test(r, v, a))
}

func isCallable(v Value) bool {
	switch v.kind {
	case kindFunction, kindMacro, kindLoop, KindUndefined:
		return true
	}
	return false
}

// caseTest asks a method of strings.
func caseTest(method string) test {
	return func(r *run, v Value, a *args) bool {
		s := r.str(v)
		return r.err == nil && strMethods[method](r, s, a).Truth()
	}
}

// sameAs is Python's `is`, for singleton values.
func sameAs(r *run, v Value, a *args) bool {
	p, ok := r.bind(a, "sameas", 1, "other")
	if !ok {
		return false
	}
	other := p[0]
	switch {
	case v.kind != other.kind:
		return false
	case v.kind == KindNone:
		return true
	case v.kind == KindBool:
		return v.n == other.n
	}
	r.fail(unsupported("whether two values are the same object"))
	return false
}
