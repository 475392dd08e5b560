package chattemplate

import (
	"fmt"
	"math"
)

// Jinja gives every name its place when it compiles a template, and so do we, because what a template prints depends on
// it. A frame is a scope: the template itself, the body of a loop, of a macro, of a block. Assignments in it stay in
// it. Each frame lists the names that it stores or loads; where it begins, these are filled: with the variable of the
// enclosing frame that has the same name, with what the caller passed to Render, or with nothing. Frames of one
// function (the template, a macro, the test of a loop) share the function's slots; a macro reaches the slots around it
// through the frame that it was defined in, and sees what is there when it runs.

// refPlace is where a variable is stored.
type refPlace uint8

const (
	nowhere     refPlace = iota // nothing is there
	inFrame                     // a slot of the running function, or of one around it
	fromContext                 // what was passed to Render
)

// ref is the place of a variable.
type ref struct {
	place refPlace
	hops  uint8  // functions outwards
	slot  uint16 // or the index of the context
}

// slotLoad fills a slot at the beginning of a frame.
type slotLoad struct {
	slot uint16
	from ref
}

// scope is what happens to the slots where a frame begins and ends.
type scope struct {
	enter []slotLoad
	leave []uint16 // become missing
}

// funcInfo is a function while the template is resolved.
type funcInfo struct {
	up     *funcInfo
	idents map[identKey]*ident
}

type identKey struct {
	level int
	name  string
}

// ident is a slot of a function.
type ident struct {
	fn   *funcInfo
	slot uint16
}

type loadKind uint8

const (
	loadParameter loadKind = iota
	loadResolve
	loadAlias
	loadUndefined
)

type loadInfo struct {
	kind  loadKind
	outer *symbols // of an alias: where the name was found
	name  string
}

// symbols are the names of a frame, or what a branch of an if adds to them.
type symbols struct {
	fn     *funcInfo
	parent *symbols // the enclosing frame
	base   *symbols // of a branch: what it adds to
	level  int
	refs   map[string]*ident
	loads  map[*ident]loadInfo
	order  []*ident // of loads
	stores map[string]bool
}

func newSymbols(fn *funcInfo, parent, base *symbols, level int) *symbols {
	return &symbols{
		fn: fn, parent: parent, base: base, level: level,
		refs: map[string]*ident{}, loads: map[*ident]loadInfo{}, stores: map[string]bool{},
	}
}

// own finds a name in this frame.
func (s *symbols) own(name string) *ident {
	for ; s != nil; s = s.base {
		if id, ok := s.refs[name]; ok {
			return id
		}
	}
	return nil
}

// find finds a name in this frame or one around it, and the frame that has it.
func (s *symbols) find(name string) (*symbols, *ident) {
	for ; s != nil; s = s.parent {
		if id := s.own(name); id != nil {
			return s, id
		}
	}
	return nil, nil
}

func (s *symbols) define(name string, load loadInfo) {
	key := identKey{s.level, name}
	id := s.fn.idents[key]
	if id == nil {
		id = &ident{fn: s.fn, slot: uint16(len(s.fn.idents))}
		s.fn.idents[key] = id
	}
	s.refs[name] = id
	s.setLoad(id, load)
}

func (s *symbols) setLoad(id *ident, load loadInfo) {
	if _, ok := s.loads[id]; !ok {
		s.order = append(s.order, id)
	}
	s.loads[id] = load
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if s.own(name) != nil {
		return
	}
	if outer, _ := s.parent.find(name); outer != nil {
		s.define(name, loadInfo{loadAlias, outer, name})
		return
	}
	s.define(name, loadInfo{kind: loadUndefined})
}

func (s *symbols) parameter(name string) {
	s.stores[name] = true
	s.define(name, loadInfo{kind: loadParameter})
}

func (s *symbols) load(name string) {
	if _, id := s.find(name); id == nil {
		s.define(name, loadInfo{kind: loadResolve, name: name})
	}
}

// merge takes over what the branches of an if added. What one of them stores might keep its old value.
func (s *symbols) merge(branches ...*symbols) {
	fresh := map[string]bool{}
	for _, b := range branches {
		for name := range b.stores {
			if !s.hasStore(name) {
				fresh[name] = true
			}
		}
	}
	for _, b := range branches {
		for name, id := range b.refs {
			s.refs[name] = id
		}
		for _, id := range b.order {
			s.setLoad(id, b.loads[id])
		}
		for name := range b.stores {
			s.stores[name] = true
		}
	}
	for name := range fresh {
		id := s.own(name)
		if outer, _ := s.parent.find(name); outer != nil {
			s.setLoad(id, loadInfo{loadAlias, outer, name})
		} else {
			s.setLoad(id, loadInfo{kind: loadResolve, name: name})
		}
	}
}

func (s *symbols) hasStore(name string) bool {
	for ; s != nil; s = s.base {
		if s.stores[name] {
			return true
		}
	}
	return false
}

// collect notes the names that a part of a frame loads and stores, without those of the frames in it.
func (s *symbols) collect(n node) {
	switch n := n.(type) {
	case *name:
		switch n.ctx {
		case load:
			s.load(n.id)
		case store:
			s.store(n.id)
		case param:
			s.parameter(n.id)
		}
	case *nsTarget:
		s.load(n.ns.id)
	case *ifStmt:
		s.collect(n.test)
		body, elifs, otherwise := s.branch(), s.branch(), s.branch()
		collectAll(body, n.body.stmts)
		collectAll(elifs, n.elifs)
		collectAll(otherwise, n.otherwise.stmts)
		s.merge(body, elifs, otherwise)
	case *macroStmt:
		switch {
		case n.invoke != nil:
			s.collect(n.invoke)
		case !n.generation:
			s.store(n.name.id)
		}
	case *setStmt:
		s.collect(n.value)
		s.collect(n.target)
	case *forStmt:
		s.collect(n.iter)
	case *filterBlock:
		s.collect(n.filter)
	case *withStmt:
		collectAll(s, n.values)
	case *setBlock:
		s.collect(n.target)
	default:
		n.children(s.collect)
	}
}

func collectAll[T node](s *symbols, nodes []T) {
	for _, n := range nodes {
		s.collect(n)
	}
}

func (s *symbols) branch() *symbols { return newSymbols(s.fn, s.parent, s, s.level) }

// parameters declares the names of a target.
func (s *symbols) parameters(t target) {
	walk(t, func(n node) {
		if v, ok := n.(*name); ok {
			s.parameter(v.id)
		}
	})
}

// resolver assigns places to the names of a template.
type resolver struct {
	context []string
	index   map[string]uint16
	err     error
}

func (r *resolver) inner(s *symbols) *symbols { return newSymbols(s.fn, s, nil, s.level+1) }

// function begins a function inside of the frame s.
func (r *resolver) function(s *symbols) *symbols {
	return newSymbols(&funcInfo{up: s.fn, idents: map[identKey]*ident{}}, s, nil, s.level+1)
}

func (r *resolver) slots(s *symbols) int {
	if len(s.fn.idents) > math.MaxUint16 {
		r.err = fmt.Errorf("%w: too many names", ErrLimit)
	}
	return len(s.fn.idents)
}

func (r *resolver) contextRef(name string) ref {
	i, ok := r.index[name]
	if !ok {
		if len(r.context) == math.MaxUint16 {
			r.err = fmt.Errorf("%w: too many names", ErrLimit)
			return ref{}
		}
		i = uint16(len(r.context))
		r.index[name] = i
		r.context = append(r.context, name)
	}
	return ref{place: fromContext, slot: i}
}

// ref is where name is stored, for code of the frame s.
func (r *resolver) ref(s *symbols, name string) ref {
	frame, id := s.find(name)
	if id == nil {
		if r.err == nil {
			r.err = unsupported("the name %q, which its scope does not know", name)
		}
		return ref{}
	}
	if l := frame.loads[id]; l.kind == loadResolve && !frame.stores[name] {
		return r.contextRef(name) // never stored: no slot is needed
	}
	hops := 0
	for fn := s.fn; fn != id.fn; fn = fn.up {
		hops++
	}
	return ref{place: inFrame, hops: uint8(hops), slot: id.slot}
}

// scope is what the frame s does where it begins and ends.
func (r *resolver) scope(s *symbols) (out scope) {
	for _, id := range s.order {
		l := s.loads[id]
		if l.kind == loadResolve {
			from := r.contextRef(l.name)
			if s.stores[l.name] {
				out.enter = append(out.enter, slotLoad{id.slot, from})
				out.leave = append(out.leave, id.slot)
			}
			continue
		}
		out.leave = append(out.leave, id.slot)
		switch l.kind {
		case loadAlias:
			from := r.ref(l.outer, l.name)
			for fn := s.fn; fn != l.outer.fn; fn = fn.up {
				from.hops++
			}
			out.enter = append(out.enter, slotLoad{id.slot, from})
		case loadUndefined:
			out.enter = append(out.enter, slotLoad{slot: id.slot})
		}
	}
	return out
}

// template resolves an entire template.
func (r *resolver) template(body []stmt) (scope, int) {
	s := newSymbols(&funcInfo{idents: map[identKey]*ident{}}, nil, nil, 0)
	collectAll(s, body)
	out := r.scope(s)
	resolveAll(r, s, body)
	return out, r.slots(s)
}

func resolveAll[T node](r *resolver, s *symbols, nodes []T) {
	for _, n := range nodes {
		r.node(s, n)
	}
}

// node assigns places to the names in n, n being in the frame s.
func (r *resolver) node(s *symbols, n node) {
	switch n := n.(type) {
	case *name:
		n.ref = r.ref(s, n.id)
	case *nsTarget:
		r.node(s, n.ns)
	case *forStmt:
		r.loop(s, n)
	case *macroStmt:
		if n.invoke != nil {
			r.node(s, n.invoke)
		}
		if n.name != nil {
			r.node(s, n.name)
		}
		r.macro(s, &n.macro)
	case *setBlock:
		r.node(s, n.target)
		in := r.inner(s)
		collectAll(in, n.body.stmts)
		n.scope = r.scope(in)
		resolveAll(r, in, n.body.stmts)
		if n.filter != nil {
			r.node(in, n.filter)
		}
	case *filterBlock:
		in := r.inner(s)
		collectAll(in, n.body.stmts)
		in.collect(n.filter)
		n.scope = r.scope(in)
		resolveAll(r, in, n.body.stmts)
		r.node(in, n.filter)
	case *withStmt:
		resolveAll(r, s, n.values)
		in := r.inner(s)
		collectAll(in, n.targets)
		collectAll(in, n.body.stmts)
		n.scope = r.scope(in)
		resolveAll(r, in, n.targets)
		resolveAll(r, in, n.body.stmts)
	default:
		n.children(func(c node) { r.node(s, c) })
	}
}

func (r *resolver) loop(s *symbols, n *forStmt) {
	r.node(s, n.iter)
	in := r.inner(s)
	n.usesLoop = mentions(n.body.stmts, "loop")
	if n.usesLoop {
		in.parameter("loop")
	}
	in.parameters(n.target)
	collectAll(in, n.body.stmts)
	n.scope = r.scope(in)
	if n.usesLoop {
		n.loop = r.ref(in, "loop")
	}
	r.node(in, n.target)
	resolveAll(r, in, n.body.stmts)

	if n.otherwise.stmts != nil {
		otherwise := r.inner(s)
		collectAll(otherwise, n.otherwise.stmts)
		n.elseScope = r.scope(otherwise)
		resolveAll(r, otherwise, n.otherwise.stmts)
	}
	if n.test != nil {
		test := r.function(s)
		test.parameters(n.target)
		test.collect(n.test)
		n.testScope = r.scope(test)
		r.node(test, n.test)
		n.testTarget = copyTarget(n.target)
		r.node(test, n.testTarget)
		n.testSlots = r.slots(test)
	}
}

func copyTarget(t target) target {
	if tuple, ok := t.(*tupleTarget); ok {
		out := &tupleTarget{}
		for _, item := range tuple.items {
			out.items = append(out.items, copyTarget(item))
		}
		return out
	}
	out := *t.(*name)
	return &out
}

func (r *resolver) macro(s *symbols, m *macroCode) {
	in := r.function(s)
	m.children(in.collect)
	m.explicitCaller = false
	special := map[string]bool{"caller": true, "kwargs": true, "varargs": true}
	used := mentioned(m.body.stmts, special)
	for i, p := range m.params {
		if p.id == "caller" {
			m.explicitCaller = true
			if used["caller"] && i < len(m.params)-len(m.defaults) && r.err == nil {
				r.err = &SyntaxError{Line: 1, Msg: "the parameter caller of a macro needs a default"}
			}
		}
		used[p.id] = used[p.id] && p.id == "caller"
	}
	m.hasCaller = used["caller"]
	m.hasKwargs, m.hasVarargs = used["kwargs"], used["varargs"]
	for _, name := range []string{"caller", "kwargs", "varargs"} {
		if used[name] && (name != "caller" || !m.explicitCaller) {
			in.parameter(name)
		}
	}
	m.scope = r.scope(in)
	if m.hasCaller {
		m.caller = r.ref(in, "caller")
	}
	if m.hasKwargs {
		m.kwargs = r.ref(in, "kwargs")
	}
	if m.hasVarargs {
		m.varargs = r.ref(in, "varargs")
	}
	m.children(func(c node) { r.node(in, c) })
	m.slots = r.slots(in)
}
