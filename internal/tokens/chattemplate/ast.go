package chattemplate

// node is a part of a parsed template. children calls visit for its parts, in the order in which Jinja walks them;
// scopes and the analyses depend on that order.
type node interface {
	children(visit func(node))
}

// expr is an expression. eval never fails by itself: errors stick in the run, and the value is then meaningless.
type expr interface {
	node
	eval(r *run) Value
}

// stmt is a statement.
type stmt interface {
	node
	exec(r *run) signal
}

// target is what can be assigned to: *name, *tupleTarget or *nsTarget.
type target interface {
	node
	// assign fills it in f, which is the running frame.
	assign(r *run, f *frame, v Value)
	// value is what it was filled with in f.
	value(r *run, f *frame) Value
}

// Expressions.
type (
	constant struct{ value Value }

	// name is a variable that is read or assigned; ref is its place.
	name struct {
		id    string
		ctx   nameContext
		ref   ref
		undef undefined
	}

	listExpr struct {
		items []expr
		tuple bool
	}

	dictExpr struct{ keys, values []expr }

	// attribute is of.name.
	attribute struct {
		of     expr
		name   string
		undef  undefined // what a dict gives that lacks the name
		method strMethod // of strings; nil if they have none
		// dictMethod of dicts, nil if they have none; isPython reports that they have an attribute of that name.
		dictMethod method
		isPython   bool
	}

	// subscript is of[index], where index can be a slice.
	subscript struct {
		of, index expr
		undef     undefined // what a dict gives that lacks a constant index
	}

	slice struct{ start, stop, step expr } // each can be nil

	call struct {
		fn   expr
		args arguments
	}

	// filterExpr is of|name(args). of is nil in filter blocks and filtered assignments, where the run has the text.
	filterExpr struct {
		of     expr
		name   string
		args   arguments
		filter filter
	}

	testExpr struct {
		of   expr
		name string
		args arguments
		test test
	}

	// unary is not, - or +.
	unary struct {
		op byte // '!', '-' or '+'
		of expr
	}

	binaryExpr struct {
		op          string
		left, right expr
	}

	// logic is and or or.
	logic struct {
		or          bool
		left, right expr
	}

	// concat is a ~ b ~ c.
	concat struct{ parts []expr }

	// compare is a chain like a < b == c.
	compare struct {
		first expr
		ops   []string
		rest  []expr
	}

	// condition is then if test else otherwise; otherwise can be nil.
	condition struct{ test, then, otherwise expr }
)

// arguments of a call, filter or test.
type arguments struct {
	positional []expr
	names      []string // of keyword arguments
	keyword    []expr
	star       expr // *args, or nil
	starStar   expr // **kwargs, or nil
}

// block is a list of statements.
type block struct {
	stmts []stmt
	// cost is the number of nodes that one pass evaluates at most, without those of the blocks inside.
	cost int
}

// Statements.
type (
	// output prints its parts; text is a constant.
	output struct{ parts []expr }

	ifStmt struct {
		test      expr
		body      block
		elifs     []*ifStmt // without elifs and otherwise of their own
		otherwise block
	}

	forStmt struct {
		target    target
		iter      expr
		test      expr // or nil
		body      block
		otherwise block
		// what resolve finds
		scope, elseScope, testScope scope
		loop                        ref // of the variable loop, if it is used
		usesLoop                    bool
		testSlots                   int
		testTarget                  target
	}

	setStmt struct {
		target target
		value  expr
	}

	// setBlock assigns the text of its body, through a filter if there is one.
	setBlock struct {
		target target
		filter expr // or nil
		body   block
		scope  scope
	}

	// macroStmt is a macro, a call block, or a generation block.
	macroStmt struct {
		name   *name
		macro  macroCode
		invoke *call // of a call block, else nil
		// generation: the macro is called once, at its place.
		generation bool
	}

	filterBlock struct {
		body   block
		filter expr
		scope  scope
	}

	withStmt struct {
		targets []target
		values  []expr
		body    block
		scope   scope
	}

	loopControl struct{ signal signal } // break or continue
)

// macroCode is what a macro consists of, apart from the scope that it is defined in.
type macroCode struct {
	name     string // empty for the body of a call block
	params   []*name
	defaults []expr // of the last params
	body     block
	// what resolve finds
	scope                     scope
	slots                     int
	caller, kwargs, varargs   ref
	hasCaller, explicitCaller bool
	hasKwargs, hasVarargs     bool
}

type (
	tupleTarget struct{ items []target }

	// nsTarget is ns.attr.
	nsTarget struct {
		ns   *name
		attr string
	}
)

type nameContext uint8

const (
	load nameContext = iota
	store
	param
)

func all[T node](visit func(node), nodes []T) {
	for _, n := range nodes {
		visit(n)
	}
}

func some(visit func(node), n expr) {
	if n != nil {
		visit(n)
	}
}

func (a *arguments) children(visit func(node)) {
	all(visit, a.positional)
	all(visit, a.keyword)
	some(visit, a.star)
	some(visit, a.starStar)
}

func (n *constant) children(func(node))        {}
func (n *name) children(func(node))            {}
func (n *listExpr) children(visit func(node))  { all(visit, n.items) }
func (n *attribute) children(visit func(node)) { visit(n.of) }
func (n *subscript) children(visit func(node)) { visit(n.of); visit(n.index) }
func (n *slice) children(visit func(node)) {
	some(visit, n.start)
	some(visit, n.stop)
	some(visit, n.step)
}
func (n *call) children(visit func(node))       { visit(n.fn); n.args.children(visit) }
func (n *filterExpr) children(visit func(node)) { some(visit, n.of); n.args.children(visit) }
func (n *testExpr) children(visit func(node))   { visit(n.of); n.args.children(visit) }
func (n *unary) children(visit func(node))      { visit(n.of) }
func (n *binaryExpr) children(visit func(node)) { visit(n.left); visit(n.right) }
func (n *logic) children(visit func(node))      { visit(n.left); visit(n.right) }
func (n *concat) children(visit func(node))     { all(visit, n.parts) }
func (n *compare) children(visit func(node))    { visit(n.first); all(visit, n.rest) }
func (n *condition) children(visit func(node)) {
	visit(n.test)
	visit(n.then)
	some(visit, n.otherwise)
}
func (n *dictExpr) children(visit func(node)) {
	for i := range n.keys {
		visit(n.keys[i])
		visit(n.values[i])
	}
}

func (n *output) children(visit func(node)) { all(visit, n.parts) }
func (n *ifStmt) children(visit func(node)) {
	visit(n.test)
	all(visit, n.body.stmts)
	all(visit, n.elifs)
	all(visit, n.otherwise.stmts)
}
func (n *forStmt) children(visit func(node)) {
	visit(n.target)
	visit(n.iter)
	all(visit, n.body.stmts)
	all(visit, n.otherwise.stmts)
	some(visit, n.test)
}
func (n *setStmt) children(visit func(node)) { visit(n.target); visit(n.value) }
func (n *setBlock) children(visit func(node)) {
	visit(n.target)
	some(visit, n.filter)
	all(visit, n.body.stmts)
}
func (n *macroStmt) children(visit func(node)) {
	if n.invoke != nil {
		visit(n.invoke)
	}
	n.macro.children(visit)
}
func (n *macroCode) children(visit func(node)) {
	all(visit, n.params)
	all(visit, n.defaults)
	all(visit, n.body.stmts)
}
func (n *filterBlock) children(visit func(node)) { all(visit, n.body.stmts); visit(n.filter) }
func (n *withStmt) children(visit func(node)) {
	all(visit, n.targets)
	all(visit, n.values)
	all(visit, n.body.stmts)
}
func (n *loopControl) children(func(node))       {}
func (n *tupleTarget) children(visit func(node)) { all(visit, n.items) }
func (n *nsTarget) children(func(node))          {}

// costOf counts the nodes of statements, without those of the blocks in them.
func costOf(stmts []stmt) int {
	n := len(stmts)
	count := func(parts ...node) {
		for _, p := range parts {
			walk(p, func(node) { n++ })
		}
	}
	for _, s := range stmts {
		switch s := s.(type) {
		case *ifStmt:
			count(s.test)
			for _, e := range s.elifs {
				count(e.test)
			}
		case *forStmt:
			count(s.iter)
		case *setBlock:
			some(func(f node) { count(f) }, s.filter)
		case *filterBlock:
			count(s.filter)
		case *withStmt:
			for _, v := range s.values {
				count(v)
			}
		case *macroStmt:
			if s.invoke != nil {
				count(s.invoke)
			}
		default:
			count(s)
		}
	}
	return n
}

// walk visits n and everything below it, a node before its children.
func walk(n node, visit func(node)) {
	visit(n)
	n.children(func(c node) { walk(c, visit) })
}
