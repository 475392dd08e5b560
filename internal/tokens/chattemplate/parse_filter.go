package chattemplate

// filterOrTest reads filters, tests and calls behind e.
func (p *parser) filterOrTest(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		switch {
		case p.isOp("|"):
			e = p.filters(e, false)
		case p.isWord("is"):
			p.at++
			e = p.test(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

// filters reads one filter after another. The first lacks its bar if inline.
func (p *parser) filters(e expr, inline bool) expr {
	for n := 0; inline || p.isOp("|"); n++ {
		p.chain(n)
		if !inline {
			p.at++
		}
		inline = false
		id := p.dotted()
		f, ok := filters[id]
		if !ok {
			p.unsupported("the filter %q", id)
		}
		node := &filterExpr{of: e, name: id, filter: f}
		if p.isOp("(") {
			node.args = p.arguments()
		}
		e = node
	}
	return e
}

// dotted reads a name with points in it.
func (p *parser) dotted() string {
	id := p.expect(tokenName).text
	for p.skipOp(".") {
		id += "." + p.expect(tokenName).text
	}
	return id
}

func (p *parser) test(of expr) expr {
	negated := p.skipWord("not")
	id := p.dotted()
	t, ok := tests[id]
	if !ok {
		p.unsupported("the test %q", id)
	}
	node := &testExpr{of: of, name: id, test: t}
	switch {
	case p.isOp("("):
		node.args = p.arguments()
	case p.isWord("else") || p.isWord("or") || p.isWord("and"):
	case p.isWord("is"):
		p.fail("You cannot chain multiple tests with is")
	case p.is(tokenName) || p.is(tokenString) || p.is(tokenInteger) || p.is(tokenFloat) || p.isOp("[") || p.isOp("{"):
		node.args.positional = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &unary{'!', node}
	}
	return node
}
