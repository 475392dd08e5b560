package picker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// withKey is the headers of a client that shows a key; none for an empty one.
func withKey(key string) func(string) string {
	return func(name string) string {
		if name == "authorization" && key != "" {
			return "Bearer " + key
		}
		return ""
	}
}

// TestAWrongModelIsAnsweredWithTheRightOnes: those that the client can use, and no others.
func TestAWrongModelIsAnsweredWithTheRightOnes(t *testing.T) {
	spec := testSpec(t, 1)
	spec.Policy.Admission.Tenants = tenants(t, false)
	spec.Policy.Admission.Tenants.Default = &tenant.Class{Weight: 1, Models: []string{"lora-0", "lora-1*"}}
	for i := range 14 {
		spec.Adapters = append(spec.Adapters, fmt.Sprintf("lora-%d", i))
	}
	p := newPicker(t, newClock(), spec)
	for _, tc := range []struct{ key, model, want string }{
		{"key-of-acme", "x", `The model "x" does not exist. Available: "m", "alias", "lora-0", "lora-1", "lora-10", "lora-11", "lora-12", ` +
			`"lora-13", "lora-2", "lora-3" and 6 more.`},
		{"", "x", `The model "x" does not exist. Available: "lora-0", "lora-1", "lora-10", "lora-11", "lora-12", "lora-13".`},
		{"", "m", `This API key is not allowed to use the model "m". Available: "lora-0", "lora-1", "lora-10", "lora-11", "lora-12", "lora-13".`},
	} {
		_, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion(tc.model, 0, 10, false), Header: withKey(tc.key)})
		if err == nil || err.Error() != tc.want {
			t.Errorf("key %q, model %q:\n%v, want\n%s", tc.key, tc.model, err, tc.want)
		}
	}
	assertIdle(t, p)
}

// TestAStrangerLearnsNothing: whatever is wrong with its request, a client without a valid key gets the answer that its key
// is not known, and no more.
func TestAStrangerLearnsNothing(t *testing.T) {
	spec := testSpec(t, 1)
	spec.MaxRequestBody = 1000
	spec.Policy.Admission.Tenants = tenants(t, true)
	p := newPicker(t, newClock(), spec)
	for name, tc := range map[string]struct {
		request Request
		known   int // the status for a tenant; 0 when it is served
	}{
		"a request":               {Request{Route: openai.Completions, Body: completion("m", 0, 10, false)}, 0},
		"no JSON":                 {Request{Route: openai.Completions, Body: []byte("{")}, 400},
		"no such model":           {Request{Route: openai.Completions, Body: completion("x", 0, 10, false)}, 404},
		"too large":               {Request{Route: openai.Completions, Body: completion("m", 0, 1000, false)}, 413},
		"too large, and not read": {Request{Unparsed: true, Body: completion("m", 0, 1000, false)}, 413},
		"another pool":            {Request{Route: openai.Completions, Body: completion("m", 0, 10, false), Pool: "default/x"}, 404},
		"no endpoint":             {Request{Unparsed: true, Pool: "default/x"}, 503},
		"not read":                {Request{Unparsed: true, Body: []byte("--form")}, 0},
		"no body":                 {Request{Unparsed: true}, 0},
	} {
		for key, want := range map[string]int{"": 401, "wrong": 401, "key-of-acme": tc.known} {
			in := tc.request
			in.Header = withKey(key)
			d, err := p.Pick(t.Context(), &in)
			got := 0
			if err != nil {
				got, _ = status(err)
			} else {
				d.End(Completed)
			}
			if got != want {
				t.Errorf("%s with key %q: %v, want status %d", name, key, err, want)
			}
		}
	}
	if p.Known(withKey("wrong")) == nil || p.Known(nil) == nil || p.Known(withKey("key-of-acme")) != nil {
		t.Error("Known is wrong about a key")
	}
	assertIdle(t, p)
}

// TestModelsAreAllowedOnEveryRoute: by the name that the engine reads, and where that cannot be read, by none.
func TestModelsAreAllowedOnEveryRoute(t *testing.T) {
	spec := testSpec(t, 1)
	spec.Adapters = []string{"sql-one", "sql-two", "secret"}
	spec.Policy.Admission.Tenants = tenants(t, true)
	gold := spec.Policy.Admission.Tenants.Classes["gold"]
	gold.MaxConcurrent, gold.Models = 0, []string{"sql-*", "alias"}
	p := newPicker(t, newClock(), spec)
	for name, tc := range map[string]struct {
		request Request
		status  int
	}{
		"an adapter":                     {Request{Route: openai.Completions, Body: completion("sql-one", 0, 10, false)}, 0},
		"an alias":                       {Request{Route: openai.Completions, Body: completion("alias", 0, 10, false)}, 0},
		"another adapter":                {Request{Route: openai.Completions, Body: completion("secret", 0, 10, false)}, 403},
		"the base model":                 {Request{Route: openai.Completions, Body: completion("m", 0, 10, false)}, 403},
		"the last of two names":          {Request{Route: openai.Completions, Body: []byte(`{"model":"sql-one","prompt":[1],"model":"secret"}`)}, 403},
		"by load":                        {Request{Unparsed: true, Body: []byte(`{"query":"q","model":"sql-two"}`)}, 0},
		"by load, another":               {Request{Unparsed: true, Body: []byte(`{"query":"q","model":"secret"}`)}, 403},
		"by load, the last of two names": {Request{Unparsed: true, Body: []byte(`{"model":"sql-two","model":"secret"}`)}, 403},
		"by load, in other letters":      {Request{Unparsed: true, Body: []byte(`{"model":"secret","Model":"sql-two"}`)}, 403},
		"by load, in a part":             {Request{Unparsed: true, Body: []byte(`{"x":{"model":"sql-two"}}`)}, 403},
		"a form":                         {Request{Unparsed: true, Body: []byte("--b\r\nname=\"model\"\r\n\r\nsql-two\r\n--b--")}, 403},
		"no body":                        {Request{Unparsed: true}, 403},
	} {
		tc.request.Header = withKey("key-of-acme")
		d, err := p.Pick(t.Context(), &tc.request)
		got := 0
		if err != nil {
			got, _ = status(err)
		} else {
			d.End(Completed)
		}
		if got != tc.status {
			t.Errorf("%s: %v, want status %d", name, err, tc.status)
		}
		if got == 403 && !strings.Contains(err.Error(), "API key") {
			t.Errorf("%s: %v", name, err)
		}
	}
	models, err := p.ModelsFor(withKey("key-of-acme"))
	if err != nil || len(models) != 3 {
		t.Errorf("%v %v", models, err)
	}
	gold.Models = nil
	for _, in := range []Request{{Unparsed: true}, {Unparsed: true, Body: []byte("--form")}} {
		in.Header = withKey("key-of-acme")
		if d, err := p.Pick(t.Context(), &in); err != nil {
			t.Errorf("a tenant that is allowed to use all models is refused: %v", err)
		} else {
			d.End(Completed)
		}
	}
	assertIdle(t, p)
}

// TestATenantOfOnePoolIsAStrangerToAnother, and sees no model of it.
func TestATenantOfOnePoolIsAStrangerToAnother(t *testing.T) {
	mine, others := testSpec(t, 1), testSpec(t, 1)
	others.Name, others.Model, others.Aliases = "n", "n", nil
	others.Endpoints[0].ID.Pod = "other"
	mine.Policy.Admission.Tenants = tenants(t, true)
	others.Policy.Admission.Tenants = &TenantsSpec{Reject: true, Default: &tenant.Class{Weight: 1}}
	p := newPicker(t, newClock(), mine, others)
	for model, want := range map[string]int{"m": 0, "n": 401, "x": 404} {
		d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion(model, 0, 10, false), Header: withKey("key-of-acme")})
		got := 0
		if err != nil {
			got, _ = status(err)
		} else {
			d.End(Completed)
		}
		if got != want {
			t.Errorf("model %s: %v, want status %d", model, err, want)
		}
	}
	if models, err := p.ModelsFor(withKey("key-of-acme")); err != nil || len(models) != 2 {
		t.Errorf("%v %v", models, err)
	}
}
