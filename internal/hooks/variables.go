package hooks

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
)

// MaxValue is the most bytes that a header or a field of the body can have to be read. Longer ones are not cut, which could
// hide what an expression looks for: the step fails.
const MaxValue = 4096

// The variables of expressions.
const (
	varModel        = "model"
	varAsked        = "asked"
	varTenant       = "tenant"
	varPromptTokens = "promptTokens"
	varHeaders      = "headers"
	varBody         = "body"
)

var variables = []cel.EnvOption{
	cel.Variable(varModel, cel.StringType),
	cel.Variable(varAsked, cel.StringType),
	cel.Variable(varTenant, cel.StringType),
	cel.Variable(varPromptTokens, cel.IntType),
	cel.Variable(varHeaders, cel.MapType(cel.StringType, cel.StringType)),
	cel.Variable(varBody, cel.MapType(cel.StringType, cel.DynType)),
}

// activation gives expressions the values of one request. Headers and body are read when the first expression asks for them.
type activation struct {
	hooks *Hooks
	in    *Request
	model string // with what steps have set
	// headers and body are nil until they are read; an error if they cannot be.
	headers, body any
}

// Parent returns nil: there are no other variables.
func (a *activation) Parent() cel.Activation { return nil }

var errUnknownTokens = errors.New("the length of the prompt is not known")

// ResolveName returns the value of a variable. A value that is not known is an error of the expression.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case varModel:
		return a.model, true
	case varAsked:
		return a.in.Asked, true
	case varTenant:
		return a.in.Tenant, true
	case varPromptTokens:
		if a.in.PromptTokens < 0 {
			return types.WrapErr(errUnknownTokens), true
		}
		return int64(a.in.PromptTokens), true
	case varHeaders:
		if a.headers == nil {
			a.headers = valueOr(a.readHeaders())
		}
		return a.headers, true
	case varBody:
		if a.body == nil {
			a.body = valueOr(a.readBody())
		}
		return a.body, true
	}
	return nil, false
}

func valueOr[T any](value T, err error) any {
	if err != nil {
		return types.WrapErr(err)
	}
	return value
}

// readHeaders reads the headers of the list. One that the request does not have is empty.
func (a *activation) readHeaders() (map[string]string, error) {
	all := make(map[string]string, len(a.hooks.spec.Headers))
	for _, name := range a.hooks.spec.Headers {
		all[name] = ""
		if a.in.Header == nil {
			continue
		}
		value := a.in.Header(name)
		if len(value) > MaxValue {
			return nil, fmt.Errorf("header %s has more than %d bytes", name, MaxValue)
		}
		all[name] = value
	}
	return all, nil
}

// readBody reads the fields of the list. One that the request does not have, or that is null, is absent.
func (a *activation) readBody() (map[string]any, error) {
	if a.in.Field == nil {
		return nil, errors.New("the body was not parsed")
	}
	all := make(map[string]any, len(a.hooks.spec.BodyFields))
	for _, name := range a.hooks.spec.BodyFields {
		raw, ok := a.in.Field(name)
		switch {
		case !ok:
			return nil, errors.New("the body has too many fields")
		case raw == nil:
			continue
		case len(raw) > MaxValue:
			return nil, fmt.Errorf("field %s has more than %d bytes", name, MaxValue)
		}
		var value any
		if err := json.Unmarshal(raw, &value); err != nil {
			return nil, fmt.Errorf("field %s: %w", name, err)
		}
		all[name] = value
	}
	return all, nil
}
