package hooks

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
)

// hiddenHeaders have credentials, hiddenFields the prompt or a secret of the client: no expression can read them.
var (
	hiddenHeaders = []string{
		"api-key", "authorization", "cookie", "proxy-authorization", "set-cookie", "x-access-token", "x-amz-security-token", "x-api-key",
		"x-auth-token", "x-csrf-token", "x-forwarded-access-token", "x-goog-api-key",
	}
	hiddenFields = []string{"cache_salt", "input", "instructions", "messages", "prompt", "prompt_embeds", "suffix", "system"}
)

// Fault is why steps cannot be compiled.
type Fault struct {
	// Step is the index of the step; -1 if the fault is in one of the lists of Spec.
	Step int
	// Field is where: headers, bodyFields, when or sessionExpression. Index is that in one of the lists.
	Field string
	Index int
	// Detail describes the fault, with its position in an expression as LINE:COLUMN, from 1.
	Detail string
}

// environment is what all expressions have in common: the standard functions of CEL, and the variables.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append([]cel.EnvOption{cel.ParserRecursionLimit(100)}, variables...)...)
})

// Compile prepares steps to be taken, with the caller of their services; nil for steps that are not taken. With faults, nothing is
// compiled.
func Compile(spec Spec, caller Caller) (*Hooks, []Fault) {
	h := &Hooks{spec: spec, caller: caller}
	var faults []Fault
	for i, name := range spec.Headers {
		if slices.Contains(hiddenHeaders, name) {
			faults = append(faults, Fault{-1, "headers", i, "expressions cannot read a header with credentials"})
		}
	}
	for i, name := range spec.BodyFields {
		if slices.Contains(hiddenFields, name) {
			faults = append(faults, Fault{-1, "bodyFields", i, "expressions cannot read a field with the prompt or with a secret"})
		}
	}
	for i := range spec.Steps {
		one := &spec.Steps[i]
		s := step{spec: one}
		for _, e := range []struct {
			field, text string
			kind        *cel.Type
			into        *cel.Program
		}{{"when", one.When, cel.BoolType, &s.when}, {"sessionExpression", one.Session, cel.StringType, &s.session}} {
			if e.text == "" {
				continue
			}
			program, err := h.compile(e.text, e.kind, one.CostLimit)
			if err != nil {
				faults = append(faults, Fault{i, e.field, 0, fmt.Sprintf("step %s: %v", one.Name, err)})
				continue
			}
			*e.into = program
		}
		h.steps = append(h.steps, s)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return h, nil
}

// compile prepares an expression whose value is of a type.
func (h *Hooks) compile(text string, kind *cel.Type, costLimit int) (cel.Program, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	compiled, issues := env.Compile(text)
	if issues.Err() != nil {
		var all []string
		for _, e := range issues.Errors() {
			all = append(all, fmt.Sprintf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, e.Message))
		}
		return nil, fmt.Errorf("%s", strings.Join(all, "; "))
	}
	if !compiled.OutputType().IsExactType(kind) {
		return nil, fmt.Errorf("1:1: the type of the value is %s, and must be %s", compiled.OutputType(), kind)
	}
	if err := h.check(compiled.NativeRep()); err != nil {
		return nil, err
	}
	return env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(uint64(max(1, costLimit))))
}

// check refuses what the type checker accepts, and what would fail, or cost more than is counted, for each request: names that are not in
// the lists, and patterns that requests bring.
func (h *Hooks) check(tree *ast.AST) (err error) {
	fault := func(e ast.Expr, detail string) {
		if err == nil {
			at := tree.SourceInfo().GetStartLocation(e.ID())
			err = fmt.Errorf("%d:%d: %s", at.Line(), at.Column()+1, detail)
		}
	}
	listed := func(e, of ast.Expr, name string) {
		lists := map[string][]string{varHeaders: h.spec.Headers, varBody: h.spec.BodyFields}
		if of.Kind() != ast.IdentKind {
			return
		}
		if list, ok := lists[of.AsIdent()]; ok && !slices.Contains(list, name) {
			field := map[string]string{varHeaders: "headers", varBody: "bodyFields"}[of.AsIdent()]
			fault(e, fmt.Sprintf("%q is not in hooks.%s", name, field))
		}
	}
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.SelectKind:
			listed(e, e.AsSelect().Operand(), e.AsSelect().FieldName())
		case ast.CallKind:
			call := e.AsCall()
			switch args := call.Args(); call.FunctionName() {
			case operators.Index:
				if name, ok := literal(args[1]); ok {
					listed(e, args[0], name)
				}
			case operators.In:
				if name, ok := literal(args[0]); ok {
					listed(e, args[1], name)
				}
			case overloads.Matches:
				if _, ok := literal(args[len(args)-1]); !ok {
					fault(e, "the pattern of matches must be a literal")
				}
			}
		}
	}))
	return err
}

// literal is the value of a string that is written in an expression.
func literal(e ast.Expr) (value string, ok bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	text, ok := e.AsLiteral().(types.String)
	return string(text), ok
}
