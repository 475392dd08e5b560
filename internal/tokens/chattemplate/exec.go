package chattemplate

func (n *output) exec(r *run) signal {
	for _, p := range n.parts {
		emit(r, p)
		if r.err != nil {
			return stops
		}
	}
	return goesOn
}

// emit prints an expression, without making its text a value where that can be avoided.
func emit(r *run, e expr) {
	switch e := e.(type) {
	case *constant:
		r.print(e.value)
	case *concat:
		for _, p := range e.parts {
			emit(r, p)
		}
	case *binaryExpr:
		if e.op == "+" {
			if v, printed := e.sum(r); !printed {
				r.print(v)
			}
			return
		}
		r.print(e.eval(r))
	case *condition:
		switch {
		case e.test.eval(r).Truth():
			emit(r, e.then)
		case e.otherwise != nil:
			emit(r, e.otherwise)
		}
	case *call:
		e.emit(r)
	default:
		r.print(e.eval(r))
	}
}

func (n *ifStmt) exec(r *run) signal {
	if n.test.eval(r).Truth() {
		return r.exec(&n.body)
	}
	for _, e := range n.elifs {
		if e.test.eval(r).Truth() {
			return r.exec(&e.body)
		}
	}
	if n.otherwise.stmts == nil {
		return goesOn
	}
	return r.exec(&n.otherwise)
}

func (n *setStmt) exec(r *run) signal {
	if ns, ok := n.target.(*nsTarget); ok && ns.ns.eval(r).kind != kindNamespace {
		r.raise("TemplateRuntimeError", "cannot assign attribute on non-namespace object")
		return stops
	}
	v := n.value.eval(r)
	if r.err != nil {
		return stops
	}
	n.target.assign(r, r.frame, v)
	return goesOn
}

func (n *setBlock) exec(r *run) signal {
	v, sig := r.captured(&n.scope, &n.body, n.filter)
	if sig == goesOn && r.err == nil {
		n.target.assign(r, r.frame, v)
	}
	return sig
}

func (n *filterBlock) exec(r *run) signal {
	v, sig := r.captured(&n.scope, &n.body, n.filter)
	if sig == goesOn {
		r.print(v)
	}
	return sig
}

// captured is the text of a block, through a filter if there is one.
func (r *run) captured(s *scope, body *block, filter expr) (Value, signal) {
	mark := len(r.out)
	r.enter(s)
	sig := r.exec(body)
	v := r.cut(mark)
	if filter != nil && sig == goesOn {
		outer := r.filterText
		r.filterText = v
		v = filter.eval(r)
		r.filterText = outer
	}
	r.leave(s)
	return v, sig
}

func (n *withStmt) exec(r *run) signal {
	r.enter(&n.scope)
	for i, e := range n.values {
		n.targets[i].assign(r, r.frame, e.eval(r)) // in which names are those of the scope around this one
		if r.err != nil {
			return stops
		}
	}
	sig := r.exec(&n.body)
	r.leave(&n.scope)
	return sig
}

func (n *loopControl) exec(*run) signal { return n.signal }

func (n *name) assign(_ *run, f *frame, v Value) {
	for range n.ref.hops {
		f = f.up
	}
	f.slots[n.ref.slot] = v
}

func (n *name) value(_ *run, f *frame) Value { return f.slots[n.ref.slot] }

func (n *nsTarget) value(r *run, _ *frame) Value { return r.fail(errInternal) }

// value is a new tuple.
func (n *tupleTarget) value(r *run, f *frame) Value {
	items := r.values(len(n.items))
	if r.err != nil {
		return Value{}
	}
	for i, t := range n.items {
		items[i] = t.value(r, f)
	}
	return tuple(items)
}

func (n *nsTarget) assign(r *run, _ *frame, v Value) {
	ns := n.ns.eval(r)
	if ns.kind != kindNamespace {
		r.fail(unsupported("attributes of a %s", ns.typeName())) // releases of Jinja differ
		return
	}
	ns.namespace().Set(n.attr, v)
}

func (n *tupleTarget) assign(r *run, f *frame, v Value) {
	if !iterable(v) {
		r.typeError("cannot unpack non-iterable %s object", v.typeName())
		return
	}
	c, _ := r.iterate(v)
	want := len(n.items)
	items := r.values(want)
	for got := 0; ; got++ {
		item, more := c.next(r)
		switch {
		case r.err != nil:
			return
		case !more && got < want:
			r.raise("ValueError", "not enough values to unpack (expected %d, got %d)", want, got)
			return
		case more && got == want:
			r.raise("ValueError", "too many values to unpack (expected %d)", want)
			return
		case !more:
			for i, t := range n.items {
				t.assign(r, f, items[i])
			}
			return
		}
		items[got] = item
	}
}
