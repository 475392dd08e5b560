package hooks

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// request of a tenant for the model "base", with a header and fields.
func request(fields map[string]string) *Request {
	return &Request{
		Model: "base", Asked: "chat", Tenant: "acme", PromptTokens: 100,
		Header: func(name string) string { return map[string]string{"x-tier": "free"}[name] },
		Field: func(name string) ([]byte, bool) {
			if raw, ok := fields[name]; ok {
				return []byte(raw), true
			}
			return nil, true
		},
		Serves: func(model string) bool { return model == "small" || model == "large" },
	}
}

func compiled(t testing.TB, spec Spec) *Hooks {
	t.Helper()
	for i := range spec.Steps {
		s := &spec.Steps[i]
		if s.Name == "" {
			s.Name = fmt.Sprintf("s%d", i)
		}
		if s.CostLimit == 0 {
			s.CostLimit = 10_000
		}
	}
	h, faults := Compile(spec, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return h
}

var (
	headers    = []string{"x-tier", "x-absent"}
	bodyFields = []string{"max_tokens", "n", "stop", "user", "tools", "flag"}
)

// TestConditions: an expression sees the values of the request, and those that are not known make its step fail.
func TestConditions(t *testing.T) {
	t.Parallel()
	body := map[string]string{"max_tokens": "4096", "stop": `["a","b"]`, "user": `"\u00e4b"`, "flag": "true", "tools": `[{"type":"function"}]`}
	for when, want := range map[string]Outcome{
		"model == 'base' && asked == 'chat' && tenant == 'acme'": Refused,
		"promptTokens == 100":                                      Refused,
		"headers['x-tier'] == 'free'":                              Refused,
		"headers['x-absent'] == ''":                                Refused,
		"headers['x-tier'].matches('^f.+e$')":                      Refused,
		"body.max_tokens > 4000":                                   Refused,
		"body.max_tokens > 5000":                                   Skipped,
		"body.max_tokens == 4096":                                  Refused,
		"body.flag == true":                                        Refused,
		"body.stop.exists(s, s == 'b')":                            Refused,
		"body.tools[0].type == 'function'":                         Refused,
		"body.user == 'äb'":                                        Refused,
		"has(body.n)":                                              Skipped,
		"body.n > 1":                                               FailedClosed,
		"has(body.n) && body.n > 1":                                Skipped,
		"body.n > 1 || tenant == 'acme'":                           Refused, // as in CEL: the other side decides
		"body.max_tokens == 'many'":                                Skipped,
		"body.max_tokens.startsWith('4')":                          FailedClosed,
		"body.stop > 3":                                            FailedClosed,
		"int(string(body.user)) > 3":                               FailedClosed,
		"headers.all(k, k.startsWith('x-'))":                       Refused,
		"[1, 2, 3].all(a, [1, 2, 3].all(b, a * b < 100))":          Refused,
		"size(headers['x-tier']) > 10 || 'x-tier' in headers":      Refused,
		"body.exists(k, k == 'messages') || body.exists(k, false)": Skipped,
	} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			spec := Spec{Headers: headers, BodyFields: bodyFields, Steps: []Step{{Name: "s", When: when, Refuse: Refusal{403, "no"}, CostLimit: 10_000}}}
			h, faults := Compile(spec, nil)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			got := h.Run(t.Context(), request(body))
			if !slices.Equal(got.Outcomes, []Outcome{want}) || (got.Failure != nil) != (want == FailedClosed) {
				t.Errorf("%v, %v; want %v", got.Outcomes, got.Failure, want)
			}
		})
	}
}

// TestStepsInOrder: a step sees what the steps before it have set, and the first that refuses is the last one taken.
func TestStepsInOrder(t *testing.T) {
	t.Parallel()
	refuse := Refusal{429, "no"}
	for name, tc := range map[string]struct {
		steps []Step
		want  Result
	}{
		"nothing": {nil, Result{Outcomes: []Outcome{}, Model: "base"}},
		"a model for the next step": {
			[]Step{{Model: "small"}, {When: "model == 'small' && asked == 'chat'", Model: "large", Priority: "low"}},
			Result{Outcomes: []Outcome{Applied, Applied}, Model: "large", Priority: "low"},
		},
		"nothing after a refusal": {
			[]Step{{Priority: "low"}, {Refuse: refuse}, {Model: "small"}},
			Result{Outcomes: []Outcome{Applied, Refused}, Model: "base", Priority: "low", Refusal: refuse},
		},
		"a session by a header": {
			[]Step{{Session: "tenant + '/' + headers['x-tier']"}, {Session: "headers['x-absent']"}},
			Result{Outcomes: []Outcome{Applied, Applied}, Model: "base", Session: "acme/free"},
		},
		"a model that is not served sets nothing, and the next step is taken": {
			[]Step{{Model: "gone", Priority: "high", Session: "'a'", Open: true}, {Priority: "low"}},
			Result{Outcomes: []Outcome{FailedOpen, Applied}, Model: "base", Priority: "low"},
		},
		"a model that is not served, closed": {
			[]Step{{Model: "gone"}, {Priority: "low"}},
			Result{Outcomes: []Outcome{FailedClosed}, Model: "base"},
		},
		"the model that the request has": {
			[]Step{{Model: "base"}},
			Result{Outcomes: []Outcome{Applied}, Model: "base"},
		},
		"a session that has no value": {
			[]Step{{Session: "string(body.user)", Open: true}, {Session: "string(body.user)"}},
			Result{Outcomes: []Outcome{FailedOpen, FailedClosed}, Model: "base"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := compiled(t, Spec{Headers: headers, BodyFields: bodyFields, Steps: tc.steps}).Run(t.Context(), request(nil))
			if failed := slices.ContainsFunc(got.Outcomes, func(o Outcome) bool { return o >= FailedOpen }); failed != (got.Failure != nil) {
				t.Errorf("failure: %v", got.Failure)
			}
			got.Failure = nil
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestUnknownValuesFailTheStep: what is not known of a request is never taken for absent.
func TestUnknownValuesFailTheStep(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("x", MaxValue) + `"`
	for name, tc := range map[string]struct {
		when   string
		change func(*Request)
	}{
		"a body that was not parsed":       {"!has(body.n)", func(r *Request) { r.Field = nil }},
		"a body with too many fields":      {"!has(body.n)", func(r *Request) { r.Field = func(string) ([]byte, bool) { return nil, false } }},
		"a field that is too long":         {"!has(body.n)", func(r *Request) { r.Field = func(string) ([]byte, bool) { return []byte(long), true } }},
		"another field that is too long":   {"!has(body.n)", func(r *Request) { r.Field = request(map[string]string{"user": long}).Field }},
		"a header that is too long":        {"headers['x-tier'] != 'free'", func(r *Request) { r.Header = func(string) string { return long } }},
		"the length of an unknown prompt":  {"promptTokens < 10", func(r *Request) { r.PromptTokens = -1 }},
		"all operands of an or are errors": {"promptTokens < 10 || has(body.n)", func(r *Request) { r.PromptTokens, r.Field = -1, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := compiled(t, Spec{Headers: headers, BodyFields: bodyFields, Steps: []Step{{When: tc.when, Refuse: Refusal{403, "no"}}}})
			in := request(nil)
			tc.change(in)
			if got := h.Run(t.Context(), in); !slices.Equal(got.Outcomes, []Outcome{FailedClosed}) {
				t.Errorf("%v", got.Outcomes)
			}
		})
	}
	h := compiled(t, Spec{Headers: headers, Steps: []Step{{When: "headers['x-tier'] == ''", Refuse: Refusal{403, "no"}}}})
	if got := h.Run(t.Context(), &Request{}); !slices.Equal(got.Outcomes, []Outcome{Refused}) {
		t.Errorf("without headers: %v", got.Outcomes)
	}
}

// TestExpressionsThatExplodeAreStopped: by their cost, whatever clients send.
func TestExpressionsThatExplodeAreStopped(t *testing.T) {
	t.Parallel()
	list := "[" + strings.Repeat("1,", 2000) + "1]" // as long as a field can be
	for _, when := range []string{
		"body.stop.all(a, body.stop.all(b, body.stop.all(c, a + b + c > 0)))",
		"body.stop.map(a, body.stop.map(b, body.stop)).size() > 0",
		"body.stop.exists(a, body.user.contains(string(a) + 'z'))",
		"body.stop.all(a, body.user.matches('(x+x+)+y') || true)",
		"body.stop.map(a, body.user + body.user + body.user).size() > 0",
	} {
		h := compiled(t, Spec{BodyFields: bodyFields, Steps: []Step{
			{Name: "s", When: when, Refuse: Refusal{403, "no"}, Open: true}, {Name: "next", Priority: "low"},
		}})
		in := request(map[string]string{"stop": list, "user": `"` + strings.Repeat("x", MaxValue-2) + `"`})
		got := h.Run(t.Context(), in)
		if !slices.Equal(got.Outcomes, []Outcome{FailedOpen, Applied}) || !strings.Contains(got.Failure.Error(), "cost") {
			t.Errorf("%s: %v, %v", when, got.Outcomes, got.Failure)
		}
	}
}

// TestFaults: what cannot be compiled names the step, the field, and the position in the expression.
func TestFaults(t *testing.T) {
	t.Parallel()
	when := func(text string) Spec {
		return Spec{Headers: headers, BodyFields: bodyFields, Steps: []Step{{Name: "first", Priority: "a"}, {Name: "second", When: text, Priority: "a"}}}
	}
	for name, tc := range map[string]struct {
		spec Spec
		want Fault
	}{
		"syntax":           {when("tenant ="), Fault{1, "when", 0, "1:8: Syntax error"}},
		"second line":      {when("tenant == 'a' &&\n  tennant == 'b'"), Fault{1, "when", 0, "2:3: undeclared reference to 'tennant'"}},
		"types":            {when("tenant > 3"), Fault{1, "when", 0, "1:8: found no matching overload"}},
		"perhaps no bool":  {when("body.flag"), Fault{1, "when", 0, "1:1: the type of the value is dyn, and must be bool"}},
		"no condition":     {when("tenant"), Fault{1, "when", 0, "1:1: the type of the value is string, and must be bool"}},
		"another header":   {when("headers['x-other'] == 'a'"), Fault{1, "when", 0, `1:8: "x-other" is not in hooks.headers`}},
		"a header in":      {when("'x-other' in headers"), Fault{1, "when", 0, `"x-other" is not in hooks.headers`}},
		"another field":    {when("has(body.top_k)"), Fault{1, "when", 0, `"top_k" is not in hooks.bodyFields`}},
		"a client's regex": {when("tenant.matches(headers['x-tier'])"), Fault{1, "when", 0, "1:15: the pattern of matches must be a literal"}},
		"a regex":          {when("tenant.matches('(')"), Fault{1, "when", 0, "missing closing"}},
		"no function":      {when("tenant.lookUp()"), Fault{1, "when", 0, "undeclared reference to 'lookUp'"}},
		"deep":             {when(strings.Repeat("(", 500) + "true" + strings.Repeat(")", 500)), Fault{1, "when", 0, "recursion limit"}},
		"session":          {Spec{Steps: []Step{{Name: "s", Session: "promptTokens"}}}, Fault{0, "sessionExpression", 0, "is int, and must be string"}},
		"credentials":      {Spec{Headers: []string{"x-a", "authorization"}}, Fault{-1, "headers", 1, "credentials"}},
		"a key":            {Spec{Headers: []string{"x-api-key"}}, Fault{-1, "headers", 0, "credentials"}},
		"the prompt":       {Spec{BodyFields: []string{"n", "messages"}}, Fault{-1, "bodyFields", 1, "prompt"}},
		"a secret":         {Spec{BodyFields: []string{"cache_salt"}}, Fault{-1, "bodyFields", 0, "secret"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, faults := Compile(tc.spec, nil)
			if len(faults) != 1 {
				t.Fatal(faults)
			}
			got := faults[0]
			if !strings.Contains(got.Detail, tc.want.Detail) || got.Step >= 0 && !strings.Contains(got.Detail, tc.spec.Steps[got.Step].Name) {
				t.Errorf("%s; want %s", got.Detail, tc.want.Detail)
			}
			if got.Detail = tc.want.Detail; got != tc.want {
				t.Errorf("%+v; want %+v", got, tc.want)
			}
		})
	}
}

// BenchmarkRun is what steps take for a request: conditions on a header and a field, and a pattern.
func BenchmarkRun(b *testing.B) {
	for name, list := range map[string][]Step{
		"steps=1": {{When: "headers['x-tier'] == 'paid' && body.max_tokens > 100", Refuse: Refusal{403, "no"}}},
		"steps=8": slices.Repeat([]Step{{When: "headers['x-tier'] == 'free' && body.max_tokens > 10000", Refuse: Refusal{403, "no"}}}, 8),
		"pattern": {{When: "headers['x-tier'].matches('^(gold|silver)-[0-9]+$')", Refuse: Refusal{403, "no"}}},
	} {
		b.Run(name, func(b *testing.B) {
			h := compiled(b, Spec{Headers: headers, BodyFields: bodyFields, Steps: list})
			in := request(map[string]string{"max_tokens": "1000"})
			b.ReportAllocs()
			for b.Loop() {
				if r := h.Run(b.Context(), in); r.Refused() {
					b.Fatal(r.Failure)
				}
			}
		})
	}
}
