package chattemplate

import (
	"fmt"
	"slices"
)

// args are the values that a call, filter or test is given.
type args struct {
	positional []Value
	names      []string
	keyword    []Value
}

// function is a builtin, or a method of self.
type function struct {
	name string
	self Value
	call method
}

// method is what a function does for self.
type method func(r *run, self Value, a *args) Value

// macroValue is a macro in the frame that it was defined in.
type macroValue struct {
	code *macroCode
	up   *frame
}

// noArgs is what most calls have.
var noArgs args

// args evaluates the arguments of a call.
func (r *run) args(n *arguments) *args {
	if n.empty() {
		return &noArgs
	}
	a := &r.a.args.take(1)[0]
	if len(n.positional) > 0 {
		a.positional = r.a.values.take(len(n.positional))
		for i, e := range n.positional {
			a.positional[i] = e.eval(r)
		}
	}
	if len(n.keyword) > 0 {
		a.names = n.names
		a.keyword = r.a.values.take(len(n.keyword))
		for i, e := range n.keyword {
			a.keyword[i] = e.eval(r)
		}
	}
	if n.star != nil {
		a.positional = slices.Concat(a.positional, r.list(n.star.eval(r)))
	}
	if n.starStar != nil {
		r.spread(n.starStar.eval(r), a)
	}
	return a
}

func (n *arguments) empty() bool {
	return len(n.positional) == 0 && len(n.names) == 0 && n.star == nil && n.starStar == nil
}

// maxSpread is the most keyword arguments that a dict gives.
const maxSpread = 1000

// spread adds the entries of a dict as keyword arguments.
func (r *run) spread(v Value, a *args) {
	d := v.Dict()
	if d == nil {
		r.fail(unsupported("** with a %s", v.typeName()))
		return
	}
	if d.Len() > maxSpread {
		r.fail(fmt.Errorf("%w: too many arguments", ErrLimit))
		return
	}
	a.names, a.keyword = slices.Clone(a.names), slices.Clone(a.keyword)
	for _, e := range d.entries {
		if e.key.kind != KindString || slices.Contains(a.names, e.key.Text()) {
			r.typeError("wrong or repeated keyword argument")
			return
		}
		a.names = append(a.names, e.key.Text())
		a.keyword = append(a.keyword, e.value)
	}
}

// maxParams is the most parameters that a builtin has.
const maxParams = 6

// bind gives each parameter of a builtin its argument, the zero Value where there is none. The first required ones
// must be there. not ok after an error.
func (r *run) bind(a *args, name string, required int, params ...string) (v [maxParams]Value, ok bool) {
	if len(a.positional) > len(params) {
		r.typeError("%s() takes at most %d arguments", name, len(params))
		return v, false
	}
	copy(v[:], a.positional)
	for i, key := range a.names {
		p := slices.Index(params, key)
		if p < 0 || v[p].kind != KindMissing {
			r.typeError("%s() got an unexpected keyword argument '%s'", name, key)
			return v, false
		}
		v[p] = a.keyword[i]
	}
	for i := range required {
		if v[i].kind == KindMissing {
			r.typeError("%s() missing 1 required argument: '%s'", name, params[i])
			return v, false
		}
	}
	return v, r.err == nil
}

func (n *call) eval(r *run) Value {
	fn, a, done := n.prepare(r, nil)
	if done {
		return fn
	}
	return r.call(fn, a)
}

// emit prints the call's result; a macro prints itself.
func (n *call) emit(r *run) { n.emitWith(r, nil) }

// emitWith prints the call's result, with the macro that a call block passes as caller.
func (n *call) emitWith(r *run, caller *macroValue) {
	v, a, done := n.prepare(r, caller)
	switch {
	case r.err != nil:
	case done:
		r.print(v)
	case v.kind == kindMacro:
		r.invoke(v.macro(), a)
	default:
		r.print(r.call(v, a))
	}
}

// prepare evaluates what is called and the arguments. Methods of strings and dicts are called at once, without a value
// for the method: done.
func (n *call) prepare(r *run, caller *macroValue) (v Value, a *args, done bool) {
	var of Value
	at, isAttribute := n.fn.(*attribute)
	switch {
	case !isAttribute:
		v = n.fn.eval(r)
	default:
		of = at.of.eval(r)
		if caller == nil && (of.isPlainString() && at.method != nil || of.kind == KindDict && at.dictMethod != nil) {
			break
		}
		v = r.attribute(of, at)
		isAttribute = false
	}
	a = r.args(&n.args)
	if caller != nil {
		a = &args{
			positional: a.positional,
			names:      append(slices.Clone(a.names), "caller"),
			keyword:    append(slices.Clone(a.keyword), caller.value()),
		}
	}
	if r.err != nil {
		return Value{}, a, true
	}
	if !isAttribute {
		return v, a, false
	}
	if of.kind == KindDict {
		return at.dictMethod(r, of, a), a, true
	}
	return at.method(r, of.Text(), a), a, true
}

func (r *run) call(fn Value, a *args) Value {
	if !r.spend(4) {
		return Value{}
	}
	switch fn.kind {
	case kindFunction:
		f := fn.function()
		return f.call(r, f.self, a)
	case kindMacro:
		mark := len(r.out)
		r.invoke(fn.macro(), a)
		return r.cut(mark)
	case KindUndefined:
		return r.fail(fn.undefined().error())
	case kindLoop:
		return r.typeError("The loop must have the 'recursive' marker to be called recursively.")
	}
	return r.typeError("'%s' object is not callable", fn.typeName())
}

func (n *macroStmt) exec(r *run) signal {
	m := &macroValue{code: &n.macro, up: r.frame}
	switch {
	case n.generation:
		r.invoke(m, &noArgs)
	case n.invoke != nil:
		n.invoke.emitWith(r, m)
	default:
		n.name.assign(r, r.frame, m.value())
	}
	return goesOn
}

// invoke calls a macro, which prints.
func (r *run) invoke(m *macroValue, a *args) {
	if r.calls++; r.calls > maxCalls {
		r.fail(errCalls)
	}
	f := r.newFrame(m.code.slots, m.up)
	if r.err != nil || !r.bindMacro(m.code, f, a) {
		return
	}
	outer := r.frame
	r.frame = f
	r.enter(&m.code.scope)
	code := m.code
	for i, p := range code.params {
		if f.slots[p.ref.slot].kind != KindMissing {
			continue
		}
		if d := i - len(code.params) + len(code.defaults); d >= 0 {
			f.slots[p.ref.slot] = code.defaults[d].eval(r)
		} else {
			f.slots[p.ref.slot] = r.newUndefined(undefined{
				hint: "parameter " + string(appendQuoted(nil, p.id)) + " was not provided",
			})
		}
	}
	if r.err == nil {
		r.exec(&code.body)
	}
	r.frame = outer
	r.calls--
}

// bindMacro binds a macro's parameters to their arguments, as Jinja's Macro does.
func (r *run) bindMacro(code *macroCode, f *frame, a *args) bool {
	count := min(len(a.positional), len(code.params))
	for i, v := range a.positional[:count] {
		f.slots[code.params[i].ref.slot] = v
	}
	var taken []bool
	if len(a.names) > 0 {
		taken = make([]bool, len(a.names))
	}
	take := func(name string) Value {
		if i := slices.Index(a.names, name); i >= 0 && !taken[i] {
			taken[i] = true
			return a.keyword[i]
		}
		return Value{}
	}
	foundCaller := count == len(code.params) && code.explicitCaller
	for _, p := range code.params[count:] {
		f.slots[p.ref.slot] = take(p.id)
		foundCaller = foundCaller || p.id == "caller"
	}
	if code.hasCaller && !foundCaller {
		caller := take("caller")
		if caller.kind == KindMissing || caller.kind == KindNone {
			caller = r.newUndefined(undefined{hint: "No caller defined"})
		}
		f.slots[code.caller.slot] = caller
	}
	var rest *Dict
	if code.hasKwargs || slices.Contains(taken, false) {
		rest = r.a.NewDict(len(a.names))
	}
	for i, name := range a.names {
		if !taken[i] {
			rest.Set(name, a.keyword[i])
		}
	}
	switch {
	case code.hasKwargs:
		f.slots[code.kwargs.slot] = rest.Value()
	case rest.find("caller") >= 0:
		r.typeError("macro %s was invoked with two values for the special caller argument. This is most likely a bug.", code.quoted())
	case rest.Len() > 0:
		r.typeError("macro %s takes no keyword argument %s", code.quoted(), appendQuoted(nil, rest.entries[0].key.Text()))
	}
	switch {
	case code.hasVarargs:
		f.slots[code.varargs.slot] = tuple(a.positional[count:])
	case len(a.positional) > count:
		r.typeError("macro %s takes not more than %d argument(s)", code.quoted(), len(code.params))
	}
	return r.err == nil
}

// quoted is the name as messages have it.
func (m *macroCode) quoted() string {
	if m.name == "" {
		return "None"
	}
	return string(appendQuoted(nil, m.name))
}
