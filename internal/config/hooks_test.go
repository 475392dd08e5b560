package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/hooks"
)

// hookedPolicy is a policy with one step.
func hookedPolicy(step string) string {
	return strings.Replace(smallPolicy, "strategy: {type: LeastLoad}",
		"admission: {priorities: [{name: low, level: -1}]}, hooks: {headers: [x-plan], bodyFields: [user], steps: ["+step+"]}", 1)
}

func TestHooksAreTranslated(t *testing.T) {
	t.Parallel()
	d := open(t, "pool.yaml", smallPool, "policy.yaml", hookedPolicy(
		`{name: a, when: "tenant == 'x'", refuse: {message: Away.}},`+
			` {name: b, model: m2, priority: low, sessionExpression: "headers['x-plan']", costLimit: 7, failureMode: FailOpen},`+
			` {name: c, when: "true", call: {url: "http://opa:8181/v1/data/x"}}`))
	s, problems := load(t, d)
	wantNoProblem(t, problems)
	want := hooks.Spec{Headers: []string{"x-plan"}, BodyFields: []string{"user"}, Steps: []hooks.Step{
		{Name: "a", When: "tenant == 'x'", Refuse: hooks.Refusal{Status: 403, Message: "Away."}, CostLimit: 10_000},
		{Name: "b", Model: "m2", Priority: "low", Session: "headers['x-plan']", CostLimit: 7, Open: true},
		{Name: "c", When: "true", Call: hooks.Call{URL: "http://opa:8181/v1/data/x", Timeout: 100 * time.Millisecond}, CostLimit: 10_000},
	}}
	if diff := cmp.Diff(want, only(t, s).Policy.Hooks); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestHooksThatDoNotCompileAreNotApplied: the problem names the field, the step and the position, and the last good state stays.
func TestHooksThatDoNotCompileAreNotApplied(t *testing.T) {
	t.Parallel()
	for step, want := range map[string]string{
		`{name: bad, when: "tenant == 'a' && tennant == 'b'", model: m}`: "spec.hooks.steps[0].when: Invalid value: \"tenant == 'a' && tennant == 'b'\": step bad: 1:18: undeclared reference to 'tennant'",
		`{name: bad, sessionExpression: "promptTokens", model: m}`:       "spec.hooks.steps[0].sessionExpression: Invalid value: \"promptTokens\": step bad: 1:1: the type",
		`{name: bad, when: "body.n > 1", model: m}`:                      `step bad: 1:5: "n" is not in hooks.bodyFields`,
		`{name: bad, call: {url: "http://169.254.169.254/x"}}`:           `spec.hooks.steps[0].call.url: Invalid value: "http://169.254.169.254/x": step bad: a link-local address`,
		`{name: bad, priority: high}`:                                    "spec.hooks.steps[0].priority: Invalid value: \"high\": step bad: admission.priorities has no such name",
	} {
		d := open(t, "pool.yaml", smallPool, "policy.yaml", hookedPolicy("{name: good, priority: low}"))
		_, problems := load(t, d)
		wantNoProblem(t, problems)
		write(t, d.file("policy.yaml"), hookedPolicy(step))
		s, problems := load(t, d)
		wantProblem(t, problems, want, "the last good state stays in force")
		if got := only(t, s).Policy.Hooks.Steps; len(got) != 1 || got[0].Name != "good" {
			t.Errorf("%s: the steps are %+v", step, got)
		}
	}
	for list, want := range map[string]string{
		"headers: [x-plan]":  `spec.hooks.headers[0]: Invalid value: "authorization": expressions cannot read a header with credentials`,
		"bodyFields: [user]": `spec.hooks.bodyFields[0]: Invalid value: "prompt": expressions cannot read a field with the prompt`,
	} {
		text := strings.NewReplacer("[x-plan]", "[authorization]", "[user]", "[prompt]").Replace(list)
		_, problems := load(t, open(t, "pool.yaml", smallPool, "policy.yaml", strings.Replace(hookedPolicy("{name: good, priority: low}"), list, text, 1)))
		wantProblem(t, problems, want)
	}
}
