package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// maxMessage bounds the message of a refusal, in bytes.
const maxMessage = 256

// statuses that a refusal can have; the schema of a step's refuse has the same.
var statuses = []int{400, 403, 404, 413, 422, 429, 503}

// Call asks a service about a request. The service has the data API of the Open Policy Agent: it gets a POST of {"input": ...}, and
// answers {"result": ...} with a bool or an object.
type Call struct {
	// URL of http or https; empty for no call.
	URL string
	// Timeout of the whole call.
	Timeout time.Duration
}

// Caller calls services. It is safe for concurrent use.
type Caller interface {
	// Call sends a body in JSON, and returns the member result of the answer; nil if there is none.
	Call(ctx context.Context, url string, timeout time.Duration, body []byte) (result []byte, err error)
	// Keep forgets what is known of services at other URLs.
	Keep(urls map[string]bool)
}

// input is what a service gets.
type input struct {
	Model  string `json:"model"`
	Asked  string `json:"asked"`
	Tenant string `json:"tenant"`
	// PromptTokens is absent where it is not known.
	PromptTokens *int           `json:"promptTokens,omitempty"`
	Headers      map[string]any `json:"headers"`
	Body         map[string]any `json:"body"`
}

// verdict is what a service has answered.
type verdict struct {
	Allow    *bool  `json:"allow"`
	Status   int    `json:"status"`
	Message  string `json:"message"`
	Model    string `json:"model"`
	Priority string `json:"priority"`
	Session  string `json:"session"`
}

var errUndefined = errors.New("the service's answer has no result: the policy that the URL names is not loaded, or has no value for this input")

// call takes a step that asks a service. It changes the result only if it does not fail.
func (s *step) call(ctx context.Context, a *activation, r *Result) (Outcome, error) {
	in, err := a.input()
	if err != nil {
		return 0, err
	}
	if a.hooks.caller == nil {
		return 0, errors.New("services cannot be called here")
	}
	body, err := json.Marshal(map[string]any{"input": in})
	if err != nil {
		return 0, err
	}
	result, err := a.hooks.caller.Call(ctx, s.spec.Call.URL, s.spec.Call.Timeout, body)
	if err != nil {
		return 0, err
	}
	v, err := readVerdict(result)
	if err != nil {
		return 0, err
	}
	if v.Allow != nil && !*v.Allow {
		r.Refusal = Refusal{Status: v.Status, Message: v.Message}
		return Refused, nil
	}
	switch {
	case v.Model != "" && v.Model != a.in.Model && !a.in.Serves(v.Model):
		return 0, errUnserved
	case v.Priority != "" && !a.in.Ranks(v.Priority):
		return 0, errors.New("the service has set a priority that admission.priorities does not have")
	}
	if v.Model != "" {
		r.Model = v.Model
	}
	if v.Priority != "" {
		r.Priority = v.Priority
	}
	if v.Session != "" {
		r.Session = v.Session
	}
	return Applied, nil
}

// input is what a service gets to know: all headers and fields of the lists. It fails if one of them is not known.
func (a *activation) input() (*input, error) {
	in := &input{Model: a.model, Asked: a.in.Asked, Tenant: a.in.Tenant, Headers: map[string]any{}, Body: map[string]any{}}
	if a.in.PromptTokens >= 0 {
		in.PromptTokens = &a.in.PromptTokens
	}
	headers, err := a.readHeaders()
	if err != nil {
		return nil, err
	}
	for name, value := range headers {
		in.Headers[name] = value
	}
	if len(a.hooks.spec.BodyFields) > 0 {
		if in.Body, err = a.readBody(); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// readVerdict reads a result: true, false, or an object. Members that it does not know are an error, since one that is misspelled could
// otherwise admit what it should refuse.
func readVerdict(result json.RawMessage) (v verdict, err error) {
	switch text := string(bytes.TrimSpace(result)); text {
	case "", "null":
		return v, errUndefined
	case "true":
		return v, nil
	case "false":
		result = json.RawMessage(`{"allow": false}`)
	}
	decoder := json.NewDecoder(bytes.NewReader(result))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil {
		return v, errors.New("the service's result is neither a bool nor an object of allow, status, message, model, priority and session: " + cut(err.Error()))
	}
	refuses := v.Allow != nil && !*v.Allow
	switch {
	case !refuses && (v.Status != 0 || v.Message != ""):
		return v, errors.New("the service's result has a status or a message, and allow is not false")
	case refuses && (v.Model != "" || v.Priority != "" || v.Session != ""):
		return v, errors.New("the service's result refuses the request, and sets something in it")
	case !refuses:
		return v, nil
	}
	if v.Status == 0 {
		v.Status = 403
	}
	if v.Message == "" {
		v.Message = "The policy does not permit this request."
	}
	switch {
	case !slices.Contains(statuses, v.Status):
		return v, fmt.Errorf("the service's result has the status %d, and it must be one of %v", v.Status, statuses)
	case len(v.Message) > maxMessage:
		return v, fmt.Errorf("the service's message has more than %d bytes", maxMessage)
	}
	return v, nil
}

// cut is the beginning of a text.
func cut(s string) string { return s[:min(len(s), maxMessage)] }
