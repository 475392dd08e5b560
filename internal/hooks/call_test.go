package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// callSpec is a step that calls a service.
func callSpec() Spec {
	return Spec{Headers: []string{"x-plan"}, BodyFields: []string{"n"}, Steps: []Step{{Name: "ask", Call: Call{"http://service/x", time.Second}}}}
}

// service is a Caller that answers with a result.
type service struct {
	result string
	err    error
	got    string // the last body
}

func (s *service) Keep(map[string]bool) {}

func (s *service) Call(_ context.Context, url string, timeout time.Duration, body []byte) ([]byte, error) {
	s.got = fmt.Sprintf("%s %v %s", url, timeout, body)
	return []byte(s.result), s.err
}

// calling compiles a step that calls a service.
func calling(t *testing.T, s *service) *Hooks {
	t.Helper()
	h, faults := Compile(callSpec(), s)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return h
}

// aboutTo is a request for base, with the header x-plan and the field n.
func aboutTo() *Request {
	return &Request{
		Model: "base", Asked: "alias", Tenant: "acme", PromptTokens: 7,
		Header: func(name string) string { return map[string]string{"x-plan": "free", "authorization": "secret"}[name] },
		Field: func(name string) ([]byte, bool) {
			return map[string][]byte{"n": []byte("2"), "messages": []byte(`"secret"`)}[name], true
		},
		Serves: func(model string) bool { return model == "other" },
		Ranks:  func(priority string) bool { return priority == "low" },
	}
}

// TestAServiceGetsWhatExpressionsCanRead: that, and nothing of the prompt, the key or other headers.
func TestAServiceGetsWhatExpressionsCanRead(t *testing.T) {
	t.Parallel()
	s := &service{result: "true"}
	h := calling(t, s)
	if r := h.Run(t.Context(), aboutTo()); !slices.Equal(r.Outcomes, []Outcome{Applied}) || r.Model != "base" {
		t.Errorf("%+v", r)
	}
	const want = `http://service/x 1s {"input":{"model":"base","asked":"alias","tenant":"acme","promptTokens":7,"headers":{"x-plan":"free"},"body":{"n":2}}}`
	if s.got != want {
		t.Errorf("the service got\n%s\nwant\n%s", s.got, want)
	}
	unknown := aboutTo()
	unknown.PromptTokens, unknown.Header = -1, nil
	if r := h.Run(t.Context(), unknown); r.Refused() || strings.Contains(s.got, "promptTokens") || !strings.Contains(s.got, `"headers":{"x-plan":""}`) {
		t.Errorf("of what is not known, the service got %s: %+v", s.got, r)
	}
	// What the picker does not know is not sent as absent: the service is not called.
	s.got = ""
	for _, change := range []func(*Request){
		func(r *Request) { r.Field = nil },
		func(r *Request) { r.Field = func(string) ([]byte, bool) { return nil, false } },
		func(r *Request) { r.Header = func(string) string { return strings.Repeat("x", MaxValue+1) } },
	} {
		in := aboutTo()
		change(in)
		if r := h.Run(t.Context(), in); !slices.Equal(r.Outcomes, []Outcome{FailedClosed}) || s.got != "" {
			t.Errorf("%v, the service got %q", r.Outcomes, s.got)
		}
	}
}

// TestAServiceThatFails: the failure mode decides, and a step that is not for the request calls nothing.
func TestAServiceThatFails(t *testing.T) {
	t.Parallel()
	s := &service{err: errors.New("unreachable")}
	for _, open := range []bool{false, true} {
		spec := callSpec()
		spec.Steps[0].Open = open
		h, faults := Compile(spec, s)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		if r := h.Run(t.Context(), aboutTo()); r.Refused() == open || r.Failure == nil || !strings.Contains(r.Failure.Error(), "step ask: unreachable") {
			t.Errorf("open %t: %v, %v", open, r.Outcomes, r.Failure)
		}
	}
	spec := callSpec()
	spec.Steps[0].When, spec.Steps[0].CostLimit = "headers['x-plan'] == 'paid'", 100
	s.got = ""
	if r := compiled(t, spec).Run(t.Context(), aboutTo()); !slices.Equal(r.Outcomes, []Outcome{Skipped}) || s.got != "" {
		t.Errorf("%v, the service got %q", r.Outcomes, s.got)
	}
	spec.Steps[0].When = ""
	if r := compiled(t, spec).Run(t.Context(), aboutTo()); !r.Refused() {
		t.Error("without a caller, a step passes")
	}
}

// TestWhatServicesAnswer: each answer that can be understood has its effect, and each other one is a failure of the step.
func TestWhatServicesAnswer(t *testing.T) {
	t.Parallel()
	refusal := func(status int, message string) Result {
		return Result{Outcomes: []Outcome{Refused}, Model: "base", Refusal: Refusal{status, message}}
	}
	applied := Result{Outcomes: []Outcome{Applied}, Model: "base"}
	failed := Result{Outcomes: []Outcome{FailedClosed}, Model: "base"}
	set := Result{Outcomes: []Outcome{Applied}, Model: "other", Priority: "low", Session: "s"}
	for answer, want := range map[string]Result{
		`true`:  applied,
		`false`: refusal(403, "The policy does not permit this request."),
		`{}`:    applied,
		`{"allow": true, "model": "other", "priority": "low", "session": "s"}`:   set,
		`{"allow": null, "model": "base"}`:                                       applied,
		`{"allow": false, "status": 429, "message": "later"}`:                    refusal(429, "later"),
		`{"allow": false, "message": "` + strings.Repeat("x", maxMessage) + `"}`: refusal(403, strings.Repeat("x", maxMessage)),
		// What cannot be understood, and must not pass for consent.
		``: failed, `null`: failed, `"true"`: failed, `1`: failed, `[true]`: failed, `{"allow": false`: failed, `{"alow": false}`: failed, `{"allow": "false"}`: failed,
		`{"allow": false, "status": 200}`: failed, `{"allow": false, "status": 500}`: failed, `{"status": 403}`: failed,
		`{"allow": true, "message": "no"}`: failed, `{"allow": false, "model": "other"}`: failed, `{"model": "unserved"}`: failed,
		`{"priority": "highest"}`: failed, `{"model": "other", "priority": "unknown"}`: failed, `{"allow": false, "allow": true, "x": 1}`: failed,
		`{"allow": false, "message": "` + strings.Repeat("x", maxMessage+1) + `"}`: failed,
		strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000):                  failed,
	} {
		h := calling(t, &service{result: answer})
		got := h.Run(t.Context(), aboutTo())
		if (got.Failure != nil) != (len(want.Outcomes) > 0 && want.Outcomes[0] == FailedClosed) {
			t.Errorf("%.80s: failure %v", answer, got.Failure)
		}
		if got.Failure = nil; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%.80s: %+v, want %+v", answer, got, want)
		}
	}
}

func FuzzVerdict(f *testing.F) {
	for _, s := range []string{"true", "false", `{"allow":false,"status":429}`, `{"model":"x"}`, "null", "{}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := readVerdict(text)
		if err != nil {
			return
		}
		if v.Allow != nil && !*v.Allow && (!slices.Contains(statuses, v.Status) || v.Message == "" || v.Model != "") {
			t.Errorf("%q refuses with %+v", text, v)
		}
	})
}
