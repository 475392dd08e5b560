// Package hooks decides about requests before an endpoint is chosen for them: by an ordered list of steps, with conditions in the Common
// Expression Language (CEL), and by services that steps call (call.go).
//
// What an expression can do is bounded by its length, by a cost limit, and by the size of the values that it sees. It has no access to
// the time, the network, the prompt or the client's credentials. A call is bounded by its timeout, and gets what expressions can read.
package hooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
)

// Spec is an ordered list of steps, and what their expressions can read.
type Spec struct {
	// Headers by their names in lower case, and top-level fields of the body.
	Headers, BodyFields []string
	Steps               []Step
}

// Step refuses a request, or sets something in it.
type Step struct {
	Name string
	// When is an expression of type bool; empty for every request.
	When string
	// Refuse is the answer to the request; one without a status is none.
	Refuse Refusal
	// Call asks a service instead; one without a URL is none.
	Call Call
	// Model, Priority and Session are set if they are not empty. Session is an expression of type string.
	Model, Priority, Session string
	// CostLimit of each expression, in CEL's units of cost.
	CostLimit int
	// Open: a failure of the step does not refuse the request.
	Open bool
}

// Refusal is the answer to a request.
type Refusal struct {
	// Status of HTTP.
	Status  int
	Message string
}

// Request is what steps know of a request.
type Request struct {
	// Model that the request is for, Asked the one that its client has named, Tenant the name of its tenant; empty if not known.
	Model, Asked, Tenant string
	// PromptTokens is about how many tokens the prompts have; negative if nothing is known.
	PromptTokens int
	// Header reads a request header by its lower-case name; nil if there are none.
	Header func(name string) string
	// Field returns the JSON of a top-level field of the body, nil if it is absent; not ok if it cannot be read. Field is nil if the body
	// was not parsed.
	Field func(name string) (raw []byte, ok bool)
	// Serves reports whether the request can be sent to a model.
	Serves func(model string) bool
	// Ranks reports whether the policy has a priority of this name.
	Ranks func(priority string) bool
}

// Outcome is what became of a step.
type Outcome uint8

// The outcomes.
const (
	// Skipped: the step was not for the request.
	Skipped Outcome = iota
	// Applied: it has set what it sets.
	Applied
	// Refused: it has refused the request.
	Refused
	// FailedOpen: it has failed, and the request went on.
	FailedOpen
	// FailedClosed: it has failed, and the request was refused.
	FailedClosed
	// NumOutcomes is the number of outcomes.
	NumOutcomes int = iota
)

// String is the value of the metric label.
func (o Outcome) String() string {
	return [...]string{"skipped", "applied", "refused", "failed_open", "failed_closed"}[o]
}

// Result is what the steps have made of a request.
type Result struct {
	// Outcomes of the steps that were taken, in their order. If the request is refused, that of the step which refused it is the last.
	Outcomes []Outcome
	// Model of the request; Priority and Session are empty if no step has set them.
	Model, Priority, Session string
	// Refusal is the answer to a request that a step has refused by its rule; without a status if none has.
	Refusal Refusal
	// Failure is why the last step that failed did. It can contain values of the request.
	Failure error
}

// Refused reports whether the request is refused, by a rule or by a failure.
func (r *Result) Refused() bool {
	n := len(r.Outcomes)
	return n > 0 && (r.Outcomes[n-1] == Refused || r.Outcomes[n-1] == FailedClosed)
}

// Hooks are compiled steps. They are immutable, and safe for concurrent use.
type Hooks struct {
	spec   Spec
	steps  []step
	caller Caller // of the services of steps
}

type step struct {
	spec          *Step
	when, session cel.Program // nil without
}

// Steps are the steps, in their order.
func (h *Hooks) Steps() []Step { return h.spec.Steps }

// Run takes the steps in order until one refuses the request. Steps that call a service wait for it.
func (h *Hooks) Run(ctx context.Context, in *Request) Result {
	r := Result{Outcomes: make([]Outcome, 0, len(h.steps)), Model: in.Model}
	a := activation{hooks: h, in: in, model: in.Model}
	for i := range h.steps {
		s := &h.steps[i]
		outcome, err := s.take(ctx, &a, &r)
		if err != nil {
			r.Failure = fmt.Errorf("step %s: %w", s.spec.Name, err)
			outcome = FailedClosed
			if s.spec.Open {
				outcome = FailedOpen
			}
		}
		r.Outcomes = append(r.Outcomes, outcome)
		if r.Refused() {
			break
		}
		a.model = r.Model
	}
	return r
}

var (
	errNoBool   = errors.New("the value is not a bool")
	errNoString = errors.New("the value is not a string")
	errUnserved = errors.New("no pool serves the model, or the request's model cannot be changed")
)

// take takes a step. It changes the result only if it does not fail.
func (s *step) take(ctx context.Context, a *activation, r *Result) (Outcome, error) {
	if s.when != nil {
		value, _, err := s.when.Eval(a)
		if err != nil {
			return 0, err
		}
		holds, ok := value.(types.Bool)
		if !ok {
			return 0, errNoBool
		}
		if !holds {
			return Skipped, nil
		}
	}
	if s.spec.Refuse.Status != 0 {
		r.Refusal = s.spec.Refuse
		return Refused, nil
	}
	if s.spec.Call.URL != "" {
		return s.call(ctx, a, r)
	}
	session := r.Session
	if s.session != nil {
		value, _, err := s.session.Eval(a)
		if err != nil {
			return 0, err
		}
		text, ok := value.(types.String)
		if !ok {
			return 0, errNoString
		}
		if text != "" {
			session = string(text)
		}
	}
	if model := s.spec.Model; model != "" {
		if model != a.in.Model && !a.in.Serves(model) {
			return 0, errUnserved
		}
		r.Model = model
	}
	r.Priority = cmp.Or(s.spec.Priority, r.Priority)
	r.Session = session
	return Applied, nil
}
