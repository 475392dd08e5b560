package chattemplate

import (
	"fmt"
	"slices"
)

// Bounds of a template.
const (
	// MaxSource is the longest template, bytes.
	MaxSource = 1 << 20
	// maxDepth is how deep its expressions and statements can nest.
	maxDepth = 100
	// maxChain is how many operators of one level, or subscripts, can follow each other.
	maxChain = 2000
)

// parser builds the tree of a template. It stops by panicking with a parseError, which parse recovers.
type parser struct {
	tokens []token
	at     int
	depth  int
	// loops open around the current place, in the same function
	loops int
}

// parseError carries an error out of the parser.
type parseError struct{ err error }

func parse(source string) (body block, err error) {
	if len(source) > MaxSource {
		return block{}, fmt.Errorf("%w: a template of %d bytes", ErrLimit, len(source))
	}
	tokens, err := lex(source)
	if err != nil {
		return block{}, err
	}
	defer func() {
		if r := recover(); r != nil {
			stop, ok := r.(parseError)
			if !ok {
				panic(r)
			}
			body, err = block{}, stop.err
		}
	}()
	p := &parser{tokens: tokens}
	return p.statements(), nil
}

func (p *parser) stop(err error) { panic(parseError{err}) }

func (p *parser) fail(format string, args ...any) {
	p.stop(&SyntaxError{Line: p.cur().line, Msg: fmt.Sprintf(format, args...)})
}

// unsupported stops with something that Jinja might know.
func (p *parser) unsupported(format string, args ...any) {
	p.stop(unsupported("template line %d: %s", p.cur().line, fmt.Sprintf(format, args...)))
}

func (p *parser) cur() token { return p.tokens[p.at] }

func (p *parser) look() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

func (p *parser) is(kind tokenKind) bool { return p.tokens[p.at].kind == kind }

func (p *parser) isText(kind tokenKind, text string) bool {
	t := &p.tokens[p.at]
	return t.kind == kind && t.text == text
}

func (p *parser) isOp(op string) bool    { return p.isText(tokenOperator, op) }
func (p *parser) isWord(w string) bool   { return p.isText(tokenName, w) }
func (p *parser) skipOp(op string) bool  { return p.skip(tokenOperator, op) }
func (p *parser) skipWord(w string) bool { return p.skip(tokenName, w) }

func (p *parser) skip(kind tokenKind, text string) bool {
	if !p.isText(kind, text) {
		return false
	}
	p.at++
	return true
}

func (p *parser) expectOp(op string) {
	if !p.skipOp(op) {
		p.fail("expected token %q, got %s", op, p.cur())
	}
}

func (p *parser) expect(kind tokenKind) token {
	t := p.cur()
	if t.kind != kind {
		p.fail("expected %s, got %s", [...]string{
			tokenBlockEnd: "end of statement block", tokenVariableEnd: "end of print statement", tokenName: "a name",
		}[kind], t)
	}
	p.at++
	return t
}

// enter counts a level of nesting; the caller leaves it.
func (p *parser) enter() {
	p.depth++
	if p.depth > maxDepth {
		p.stop(fmt.Errorf("%w: nested too deep", ErrLimit))
	}
}

func (p *parser) leave() { p.depth-- }

// chain bounds the links of a chain, which become levels of the tree.
func (p *parser) chain(n int) {
	if n > maxChain {
		p.stop(fmt.Errorf("%w: a chain of operators too long", ErrLimit))
	}
}

// statements reads up to the end, or to a tag that is one of ends, whose name is then the current token.
func (p *parser) statements(ends ...string) block {
	p.enter()
	defer p.leave()
	var body []stmt
	var text *output
	emit := func(e expr) {
		if text == nil {
			text = &output{}
			body = append(body, text)
		}
		text.parts = append(text.parts, e)
	}
	for {
		switch t := p.cur(); t.kind {
		case tokenEOF:
			if len(ends) > 0 {
				p.fail("Unexpected end of template, looking for %q", ends)
			}
			return block{body, costOf(body)}
		case tokenData:
			emit(&constant{String(t.text)})
			p.at++
		case tokenVariable:
			p.at++
			emit(p.tuple(tupleRules{withCondition: true}))
			p.expect(tokenVariableEnd)
		default:
			text = nil
			p.at++
			if p.is(tokenName) && slices.Contains(ends, p.cur().text) {
				return block{body, costOf(body)}
			}
			body = append(body, p.statement())
			p.expect(tokenBlockEnd)
		}
	}
}

// block reads a tag's end and the statements up to one of ends, whose name it skips and returns.
func (p *parser) block(ends ...string) (block, string) {
	p.skipOp(":")
	p.expect(tokenBlockEnd)
	body := p.statements(ends...)
	end := p.cur().text
	p.at++
	return body, end
}

func (p *parser) statement() stmt {
	if !p.is(tokenName) {
		p.fail("tag name expected")
	}
	tag := p.cur()
	p.at++
	switch tag.text {
	case "for":
		return p.forStatement()
	case "if":
		return p.ifStatement()
	case "set":
		return p.setStatement()
	case "macro":
		return p.macroStatement()
	case "call":
		return p.callBlock()
	case "filter":
		f := &filterBlock{filter: p.filters(nil, true)}
		f.body, _ = p.block("endfilter")
		return f
	case "with":
		return p.withStatement()
	case "generation":
		g := &macroStmt{generation: true}
		g.macro.body = p.function("endgeneration")
		return g
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%q outside of a loop", tag.text)
		}
		control := &loopControl{signal: breaks}
		if tag.text == "continue" {
			control.signal = continues
		}
		return control
	}
	p.at--
	switch tag.text {
	case "autoescape", "block", "extends", "from", "import", "include", "print":
		p.unsupported("the tag %q", tag.text)
	}
	p.fail("Encountered unknown tag %q", tag.text)
	return nil
}

// function reads a body that is a function of its own, so that break and continue do not reach out of it.
func (p *parser) function(end string) block {
	loops := p.loops
	p.loops = 0
	body, _ := p.block(end)
	p.loops = loops
	return body
}

func (p *parser) forStatement() stmt {
	f := &forStmt{target: p.assignTarget()}
	if !p.skipWord("in") {
		p.fail(`expected "in", got %s`, p.cur())
	}
	f.iter = p.tuple(tupleRules{})
	if p.skipWord("if") {
		f.test = p.expression()
	}
	if p.isWord("recursive") {
		p.unsupported("recursive loops")
	}
	p.loops++
	var end string
	f.body, end = p.block("endfor", "else")
	p.loops--
	if end == "else" {
		f.otherwise, _ = p.block("endfor")
	}
	if storesLoop(f) {
		p.fail("Can't assign to special loop variable in for-loop target")
	}
	return f
}

// storesLoop reports whether something in the loop assigns to the variable loop.
func storesLoop(f *forStmt) (found bool) {
	walk(f, func(n node) {
		if v, ok := n.(*name); ok && v.ctx == store && v.id == "loop" {
			found = true
		}
	})
	return found
}

func (p *parser) ifStatement() stmt {
	top := &ifStmt{}
	for s := top; ; {
		s.test = p.tuple(tupleRules{})
		var end string
		s.body, end = p.block("elif", "else", "endif")
		switch end {
		case "elif":
			s = &ifStmt{}
			top.elifs = append(top.elifs, s)
			continue
		case "else":
			top.otherwise, _ = p.block("endif")
		}
		return top
	}
}

func (p *parser) setStatement() stmt {
	var to target
	if look := p.look(); p.is(tokenName) && look.kind == tokenOperator && look.text == "." {
		ns := &nsTarget{ns: p.newName(p.cur().text, load)}
		p.at += 2
		ns.attr = p.expect(tokenName).text
		to = ns
		if p.isOp(",") {
			p.unsupported("attributes of namespaces in tuples")
		}
	} else {
		to = p.assignTarget()
	}
	if p.skipOp("=") {
		return &setStmt{to, p.tuple(tupleRules{withCondition: true})}
	}
	s := &setBlock{target: to}
	if p.isOp("|") {
		s.filter = p.filters(nil, false)
	}
	s.body, _ = p.block("endset")
	return s
}

// assignTarget reads the names that a loop or an assignment fills.
func (p *parser) assignTarget() target {
	t := p.targetOf(p.tuple(tupleRules{simple: true}))
	if t == nil {
		p.fail("can't assign to this")
	}
	return t
}

// targetOf turns an expression into what it is when it is assigned to, nil if it cannot be.
func (p *parser) targetOf(e expr) target {
	switch e := e.(type) {
	case *name:
		e.ctx = store
		return e
	case *listExpr:
		if !e.tuple {
			return nil
		}
		t := &tupleTarget{}
		for _, item := range e.items {
			to := p.targetOf(item)
			if to == nil {
				return nil
			}
			t.items = append(t.items, to)
		}
		return t
	}
	return nil
}

func (p *parser) macroStatement() stmt {
	id := p.expect(tokenName).text
	if isReserved(id) {
		p.fail("can't assign to %q", id)
	}
	m := &macroStmt{name: p.newName(id, store), macro: macroCode{name: id}}
	p.signature(&m.macro)
	m.macro.body = p.function("endmacro")
	return m
}

func (p *parser) callBlock() stmt {
	m := &macroStmt{}
	if p.isOp("(") {
		p.signature(&m.macro)
	}
	invoke, ok := p.expression().(*call)
	if !ok {
		p.fail("expected call")
	}
	m.invoke = invoke
	m.macro.body = p.function("endcall")
	return m
}

// signature reads the parameters of a macro.
func (p *parser) signature(m *macroCode) {
	p.expectOp("(")
	for !p.isOp(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
		}
		id := p.expect(tokenName).text
		if isReserved(id) || slices.ContainsFunc(m.params, func(n *name) bool { return n.id == id }) {
			p.fail("%q cannot be a parameter", id)
		}
		m.params = append(m.params, p.newName(id, param))
		if p.skipOp("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.fail("non-default argument follows default argument")
		}
	}
	p.expectOp(")")
}

func (p *parser) withStatement() stmt {
	w := &withStmt{}
	for !p.is(tokenBlockEnd) {
		if len(w.targets) > 0 {
			p.expectOp(",")
		}
		to := p.assignTarget()
		walk(to, func(n node) {
			if v, ok := n.(*name); ok {
				v.ctx = param
			}
		})
		w.targets = append(w.targets, to)
		p.expectOp("=")
		w.values = append(w.values, p.expression())
	}
	w.body, _ = p.block("endwith")
	return w
}

// newName makes the node of a variable.
func (p *parser) newName(id string, ctx nameContext) *name {
	return &name{id: id, ctx: ctx, undef: undefined{name: String(id)}}
}

// isReserved reports whether a name is a constant.
func isReserved(id string) bool {
	switch id {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}
