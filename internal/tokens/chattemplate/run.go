package chattemplate

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits bound a render. Zero values mean the defaults.
type Limits struct {
	// Steps is the work: about one step for each node of the template that is evaluated, each pass of a loop, and each
	// 64 bytes of text that are searched or made.
	Steps int
	// Memory is what the values made by the render can take, bytes, all of them together.
	Memory int
	// Output is the longest text, bytes.
	Output int
}

// Defaults of Limits. The steps take about a second.
const (
	DefaultSteps  = 20_000_000
	DefaultMemory = 64 << 20
	DefaultOutput = 16 << 20
)

// Bounds that are not worth an option.
const (
	maxCalls   = 150     // macros that call each other
	maxRange   = 100_000 // elements of a range, as in Jinja's sandbox
	checkEvery = 1 << 14 // steps between looks at the context
)

var (
	errNesting = fmt.Errorf("%w: values nested too deep", ErrLimit)
	errDecoded = fmt.Errorf("%w: too many values in the request", ErrLimit)
	errMemory  = fmt.Errorf("%w: too much memory", ErrLimit)
	errOutput  = fmt.Errorf("%w: the text is too long", ErrLimit)
	errSteps   = fmt.Errorf("%w: too many steps", ErrLimit)
	errCalls   = fmt.Errorf("%w: macros call each other too deep", ErrLimit)
)

// Var is a variable that a template can use.
type Var struct {
	Name  string
	Value Value
}

// Input is what a render depends on.
type Input struct {
	// Vars are the variables. Of a name given twice the last one counts.
	Vars []Var
	// Now is the time that strftime_now returns, in its own zone. A template that uses it while it is zero is unsupported.
	Now time.Time
	// Limits of this render.
	Limits Limits
}

// run is one render.
type run struct {
	ctx     context.Context
	a       *Arena
	in      *Input
	t       *Template
	context []Value
	frame   *frame
	// out holds the text; pending text (the body of a macro, a sum of strings) follows it for a while.
	out        []byte
	maxOut     int
	steps      int // left
	nextCheck  int // steps left when the context is looked at next
	maxMemory  int
	calls      int
	filterText Value // what a filter block's filter is applied to
	err        error
}

// frame is one call of a function: the template, a macro, the test of a loop.
type frame struct {
	slots []Value
	up    *frame // of the function that it was defined in
}

// signal is how a statement ended.
type signal uint8

const (
	goesOn signal = iota
	breaks
	continues
	stops // after an error
)

// fail keeps the first error. The value that it gives is meaningless.
func (r *run) fail(err error) Value {
	if r.err == nil {
		r.err = err
	}
	return Value{}
}

// raise fails with a Python exception.
func (r *run) raise(class, format string, args ...any) Value {
	if r.err != nil {
		return Value{}
	}
	return r.fail(&RaisedError{Class: class, Msg: fmt.Sprintf(format, args...)})
}

func (r *run) typeError(format string, args ...any) Value {
	return r.raise("TypeError", format, args...)
}

// spend takes steps and reports whether the run can continue.
func (r *run) spend(steps int) bool {
	r.steps -= steps
	if r.steps < r.nextCheck {
		r.check()
	}
	return r.err == nil
}

func (r *run) check() {
	r.nextCheck = r.steps - checkEvery
	switch err := r.ctx.Err(); {
	case err != nil:
		r.fail(err)
	case r.steps < 0:
		r.fail(errSteps)
	case r.a.Size() > r.maxMemory:
		r.fail(errMemory)
	}
}

// bytes makes room for n bytes of text; nil when there is no memory for them.
func (r *run) bytes(n int) []byte {
	if !r.spend(1 + n/64) {
		return nil
	}
	if r.a.Size()+n > r.maxMemory {
		r.fail(errMemory)
		return nil
	}
	return r.a.bytes.take(n)
}

// values makes room for n values.
func (r *run) values(n int) []Value {
	if !r.spend(1+n/8) || n > r.maxMemory/64 || r.a.Size()+32*n > r.maxMemory {
		r.fail(errMemory)
		return nil
	}
	return r.a.values.take(n)
}

// concat is the text of two strings.
func (r *run) concat(a, b string) Value {
	switch {
	case a == "":
		return String(b)
	case b == "":
		return String(a)
	}
	out := r.bytes(len(a) + len(b))
	if out == nil {
		return Value{}
	}
	copy(out, a)
	copy(out[len(a):], b)
	return String(view(out))
}

// print appends str(v) to the text.
func (r *run) print(v Value) {
	switch {
	case v.kind == KindString:
		r.out = append(r.out, v.Text()...)
		if len(r.out) > r.maxOut {
			r.fail(errOutput)
		}
	case v.kind == KindUndefined || r.err != nil:
	case v.kind == kindLoop:
		r.print(r.loopText(v.loop()))
	default:
		r.printRepr(v)
	}
}

// printRepr appends repr(v) to the text.
func (r *run) printRepr(v Value) {
	p := printer{dst: r.out, limit: r.maxOut}
	p.repr(v, 0)
	if p.err != nil {
		r.fail(p.err)
	}
	r.spend((len(p.dst) - len(r.out)) / 16)
	r.out = p.dst
}

// cut takes what was appended to out since mark as a string.
func (r *run) cut(mark int) Value {
	text := r.out[mark:]
	r.out = r.out[:mark]
	out := r.bytes(len(text))
	copy(out, text)
	return String(view(out))
}

// str is str(v) as a string value.
func (r *run) str(v Value) string {
	if v.kind == KindString {
		return v.Text()
	}
	mark := len(r.out)
	r.print(v)
	return r.cut(mark).Text()
}

// newUndefined makes an undefined value.
func (r *run) newUndefined(u undefined) Value {
	p := &r.a.undef.take(1)[0]
	*p = u
	return p.value()
}

// lacks is the undefined value for an attribute or element that v has not.
func (r *run) lacks(v, key Value) Value {
	return r.newUndefined(undefined{of: ownerName(v), name: key})
}

// exec runs a block in the current frame.
func (r *run) exec(b *block) signal {
	if !r.spend(1 + b.cost) {
		return stops
	}
	for _, s := range b.stmts {
		if sig := s.exec(r); sig != goesOn {
			return sig
		}
		if r.err != nil {
			return stops
		}
	}
	if len(r.out) > r.maxOut {
		r.fail(errOutput)
		return stops
	}
	return goesOn
}

// enter fills the slots of a scope that begins.
func (r *run) enter(s *scope) {
	slots := r.frame.slots
	for _, l := range s.enter {
		slots[l.slot] = r.load(l.from)
	}
}

// leave empties the slots of a scope that ends.
func (r *run) leave(s *scope) {
	slots := r.frame.slots
	for _, slot := range s.leave {
		slots[slot] = Value{}
	}
}

func (r *run) load(from ref) Value {
	switch from.place {
	case inFrame:
		f := r.frame
		for range from.hops {
			f = f.up
		}
		return f.slots[from.slot]
	case fromContext:
		return r.context[from.slot]
	}
	return Value{}
}

// newFrame begins a function that was defined in up.
func (r *run) newFrame(slots int, up *frame) *frame {
	f := &r.a.frames.take(1)[0]
	f.slots, f.up = r.values(slots), up
	return f
}

// errInternal is a mistake of this package.
var errInternal = errors.New("internal error of the template renderer")
