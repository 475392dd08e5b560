package chattemplate

import (
	"context"
	"slices"
	"sync"
)

// Template is a parsed template. It does not change and is safe for many goroutines.
type Template struct {
	body    block
	scope   scope
	slots   int
	context []string // names that are looked up in the variables and among the functions, by index
	format  ContentFormat
	runs    sync.Pool // of *run
}

// Parse reads a template. The error is a *SyntaxError if it is none, and wraps ErrUnsupported if it asks for what is not
// known here, or ErrLimit if it is too large: in each case it is for the engine to deal with it.
func Parse(source string) (*Template, error) {
	body, err := parse(source)
	if err != nil {
		return nil, err
	}
	t := &Template{body: body, format: contentFormat(body.stmts)}
	r := resolver{index: map[string]uint16{}}
	t.scope, t.slots = r.template(body.stmts)
	if r.err != nil {
		return nil, r.err
	}
	t.context = r.context
	for _, name := range t.context {
		if slices.Contains(unknownGlobals, name) {
			return nil, unsupported("the function %q", name)
		}
	}
	return t, nil
}

// Uses reports whether the template can look at the variable name, by Jinja's own rule: whether some scope loads it, or
// might, without having stored it before. The functions that every template has are not variables.
func (t *Template) Uses(name string) bool {
	if name != "raise_exception" && name != "strftime_now" && globals[name].kind != KindMissing {
		return false
	}
	return slices.Contains(t.context, name)
}

// UsesClock reports whether the template mentions the current time.
func (t *Template) UsesClock() bool { return slices.Contains(t.context, "strftime_now") }

// ContentFormat is how the engine passes the content of messages to this template, unless it is configured otherwise.
func (t *Template) ContentFormat() ContentFormat { return t.format }

// Render appends the text of the template for these inputs to dst. The values of in must have been made in a, or not
// change. What the render makes is made in a as well: none of it is needed once Render has returned, but only Reset
// frees it.
//
// The error is a *RaisedError if the template raises an exception, wraps ErrUnsupported if it uses an unsupported feature,
// ErrLimit if it reaches a limit, or is that of ctx. Nothing is appended with an error.
func (t *Template) Render(ctx context.Context, dst []byte, a *Arena, in *Input) ([]byte, error) {
	r, _ := t.runs.Get().(*run)
	if r == nil {
		r = &run{context: make([]Value, len(t.context)), frame: &frame{slots: make([]Value, t.slots)}}
	}
	top := r.frame
	*r = run{
		ctx: ctx, a: a, in: in, t: t, context: r.context, frame: top, out: dst,
		steps:     defaulted(in.Limits.Steps, DefaultSteps),
		maxMemory: a.Size() + defaulted(in.Limits.Memory, DefaultMemory),
		maxOut:    len(dst) + defaulted(in.Limits.Output, DefaultOutput),
	}
	r.nextCheck = r.steps - checkEvery
	for i, name := range t.context {
		r.context[i] = globals[name]
		for j := len(in.Vars) - 1; j >= 0; j-- {
			if in.Vars[j].Name == name {
				r.context[i] = in.Vars[j].Value
				break
			}
		}
	}
	r.enter(&t.scope)
	r.exec(&t.body)
	out, err := r.out, r.err
	clear(r.context)
	clear(top.slots)
	*r = run{context: r.context, frame: top}
	t.runs.Put(r)
	if err != nil {
		return dst, err
	}
	return out, nil
}

func defaulted(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}
