package chattemplate

import (
	"slices"
	"strconv"
)

// tupleRules define how a tuple that can lack its parentheses is read.
type tupleRules struct {
	simple        bool // only names and literals
	withCondition bool // then-if-else is allowed
	parenthesized bool // so that it can be empty
}

func (p *parser) tupleEnd() bool { return p.is(tokenVariableEnd) || p.is(tokenBlockEnd) || p.isOp(")") }

// tuple reads an expression, or several with commas between.
func (p *parser) tuple(rules tupleRules) expr {
	var items []expr
	isTuple := false
	for {
		if len(items) > 0 {
			p.expectOp(",")
		}
		if p.tupleEnd() {
			break
		}
		switch {
		case rules.simple:
			items = append(items, p.primary())
		case rules.withCondition:
			items = append(items, p.expression())
		default:
			items = append(items, p.or())
		}
		if !p.isOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) > 0 {
			return items[0]
		}
		if !rules.parenthesized {
			p.fail("Expected an expression, got %s", p.cur())
		}
	}
	return &listExpr{items: items, tuple: true}
}

// expression reads anything but a bare tuple.
func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	e := p.or()
	for n := 0; p.skipWord("if"); n++ {
		p.chain(n)
		c := &condition{test: p.or(), then: e}
		if p.skipWord("else") {
			c.otherwise = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for n := 0; p.skipWord("or"); n++ {
		p.chain(n)
		e = &logic{or: true, left: e, right: p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for n := 0; p.skipWord("and"); n++ {
		p.chain(n)
		e = &logic{left: e, right: p.not()}
	}
	return e
}

func (p *parser) not() expr {
	p.enter()
	defer p.leave()
	if p.skipWord("not") {
		return &unary{'!', p.not()}
	}
	return p.comparison()
}

func (p *parser) comparison() expr {
	first := p.sum()
	var c *compare
	add := func(op string) {
		if c == nil {
			c = &compare{first: first}
		}
		p.chain(len(c.ops))
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
	for {
		t, look := p.cur(), p.look()
		switch {
		case t.kind == tokenOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			p.at++
			add(t.text)
		case p.skipWord("in"):
			add("in")
		case p.isWord("not") && look.kind == tokenName && look.text == "in":
			p.at += 2
			add("not in")
		case c != nil:
			return c
		default:
			return first
		}
	}
}

// operators reads operands of one level with the given operators between them.
func (p *parser) operators(operand func() expr, ops ...string) expr {
	e := operand()
	for n := 0; p.is(tokenOperator) && slices.Contains(ops, p.cur().text); n++ {
		p.chain(n)
		op := p.cur().text
		p.at++
		e = &binaryExpr{op: op, left: e, right: operand()}
	}
	return e
}

func (p *parser) sum() expr { return p.operators(p.concatenation, "+", "-") }

func (p *parser) concatenation() expr {
	e := p.product()
	if !p.isOp("~") {
		return e
	}
	c := &concat{parts: []expr{e}}
	for p.skipOp("~") {
		c.parts = append(c.parts, p.product())
	}
	return c
}

func (p *parser) product() expr { return p.operators(p.power, "*", "/", "//", "%") }

func (p *parser) power() expr {
	return p.operators(func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilter bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	switch {
	case p.skipOp("-"):
		e = &unary{'-', p.unary(false)}
	case p.skipOp("+"):
		e = &unary{'+', p.unary(false)}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilter {
		e = p.filterOrTest(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.cur()
	switch t.kind {
	case tokenName:
		p.at++
		return p.word(t.text)
	case tokenString:
		text := ""
		for p.is(tokenString) {
			text += p.cur().text
			p.at++
		}
		return &constant{String(text)}
	case tokenInteger:
		i, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			p.unsupported("numbers beyond 64 bits")
		}
		p.at++
		return &constant{Int(i)}
	case tokenFloat:
		p.at++
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.unsupported("numbers beyond the largest") // which Jinja compiles to an unknown name
		}
		return &constant{Float(f)}
	}
	switch {
	case p.skipOp("("):
		e := p.nested(func() expr { return p.tuple(tupleRules{withCondition: true, parenthesized: true}) })
		p.expectOp(")")
		return e
	case p.skipOp("["):
		return p.nested(p.list)
	case p.skipOp("{"):
		return p.nested(p.dict)
	}
	p.fail("unexpected %s", t)
	return nil
}

func (p *parser) nested(read func() expr) expr {
	p.enter()
	defer p.leave()
	return read()
}

// word returns the meaning of a name.
func (p *parser) word(id string) expr {
	switch id {
	case "true", "True":
		return &constant{Bool(true)}
	case "false", "False":
		return &constant{Bool(false)}
	case "none", "None":
		return &constant{None()}
	case "self":
		p.unsupported("the variable self")
	}
	return p.newName(id, load)
}

func (p *parser) list() expr {
	l := &listExpr{}
	for !p.isOp("]") {
		if len(l.items) > 0 {
			p.expectOp(",")
		}
		if p.isOp("]") {
			break
		}
		l.items = append(l.items, p.expression())
	}
	p.expectOp("]")
	return l
}

func (p *parser) dict() expr {
	d := &dictExpr{}
	for !p.isOp("}") {
		if len(d.keys) > 0 {
			p.expectOp(",")
		}
		if p.isOp("}") {
			break
		}
		d.keys = append(d.keys, p.expression())
		p.expectOp(":")
		d.values = append(d.values, p.expression())
	}
	p.expectOp("}")
	if slices.ContainsFunc(d.keys, unhashable) && mayFold(d) {
		p.unsupported("a constant key that is no key") // an error even where it is not reached
	}
	return d
}

// postfix reads attributes, subscripts and calls behind e.
func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		switch {
		case p.skipOp("."):
			e = p.attribute(e)
		case p.skipOp("["):
			e = p.nested(func() expr { return p.subscript(e) })
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) attribute(of expr) expr {
	t := p.cur()
	switch t.kind {
	case tokenName:
		p.at++
		return &attribute{
			of: of, name: t.text, method: strMethods[t.text], dictMethod: dictMethods[t.text], isPython: isPythonName(t.text),
			undef: undefined{of: "dict object", name: String(t.text)},
		}
	case tokenInteger:
		i, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			p.unsupported("numbers beyond 64 bits")
		}
		p.at++
		return newSubscript(of, &constant{Int(i)})
	}
	p.fail("expected name or number")
	return nil
}

func newSubscript(of, index expr) expr {
	s := &subscript{of: of, index: index}
	if c, ok := index.(*constant); ok {
		s.undef = undefined{of: "dict object", name: c.value}
	}
	return s
}

func (p *parser) subscript(of expr) expr {
	var indices []expr
	for !p.isOp("]") {
		if len(indices) > 0 {
			p.expectOp(",")
		}
		indices = append(indices, p.index())
	}
	p.expectOp("]")
	if len(indices) == 1 {
		if _, ok := indices[0].(*slice); ok && !sliceable(of) {
			p.unsupported("the slice of a constant")
		}
		return newSubscript(of, indices[0])
	}
	for _, i := range indices {
		if _, ok := i.(*slice); ok {
			p.unsupported("several slices")
		}
	}
	return newSubscript(of, &listExpr{items: indices, tuple: true})
}

// sliceable reports whether Jinja slices an expression at evaluation. Of others, which it can evaluate
// without variables, it takes them when it compiles the template, by other rules.
func sliceable(of expr) bool {
	switch e := of.(type) {
	case *constant:
		return e.value.kind == KindString
	case *listExpr:
		if len(e.items) > 0 {
			return true
		}
	}
	return !mayFold(of)
}

// mayFold reports whether Jinja can evaluate e when it compiles the template: it has no variables where they matter.
func mayFold(e expr) bool {
	switch e := e.(type) {
	case *name:
		return false
	case *logic:
		return mayFold(e.left)
	case *condition:
		return mayFold(e.test)
	}
	folds := true
	e.children(func(n node) {
		part, ok := n.(expr)
		folds = folds && ok && mayFold(part)
	})
	return folds
}

// unhashable reports whether a constant cannot be a key.
func unhashable(e expr) bool {
	switch e := e.(type) {
	case *dictExpr:
		return true
	case *listExpr:
		return !e.tuple || slices.ContainsFunc(e.items, unhashable)
	}
	return false
}

// index reads the content of brackets: an expression or a slice.
func (p *parser) index() expr {
	s := &slice{}
	if !p.isOp(":") {
		e := p.expression()
		if !p.isOp(":") {
			return e
		}
		s.start = e
	}
	p.expectOp(":")
	if !p.isOp("]") && !p.isOp(",") && !p.isOp(":") {
		s.stop = p.expression()
	}
	if p.skipOp(":") && !p.isOp("]") && !p.isOp(",") {
		s.step = p.expression()
	}
	return s
}

func (p *parser) call(fn expr) expr {
	c := &call{fn: fn}
	c.args = p.arguments()
	return c
}

// arguments reads the arguments of a call, parentheses included.
func (p *parser) arguments() (a arguments) {
	p.enter()
	defer p.leave()
	p.expectOp("(")
	comma := false
	for !p.isOp(")") {
		if comma {
			p.expectOp(",")
			if p.isOp(")") {
				break
			}
		}
		comma = true
		look := p.look()
		switch {
		case p.isOp("*") && a.star == nil && a.starStar == nil:
			p.at++
			a.star = p.expression()
		case p.isOp("**") && a.starStar == nil:
			p.at++
			a.starStar = p.expression()
		case p.is(tokenName) && look.kind == tokenOperator && look.text == "=" && a.starStar == nil:
			id := p.cur().text
			if slices.Contains(a.names, id) {
				p.fail("keyword argument repeated: %s", id)
			}
			p.at += 2
			a.names = append(a.names, id)
			a.keyword = append(a.keyword, p.expression())
		case a.star == nil && a.starStar == nil && len(a.names) == 0:
			a.positional = append(a.positional, p.expression())
		default:
			p.fail("invalid syntax for function call expression")
		}
	}
	p.expectOp(")")
	return a
}
