package picker

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

func tenants(t testing.TB, reject bool) *TenantsSpec {
	sum := sha256.Sum256([]byte("key-of-acme"))
	acme, err := tenant.Parse("acme", []byte(`{"class":"gold","sha256":["`+hex.EncodeToString(sum[:])+`"]}`))
	if err != nil {
		t.Fatal(err)
	}
	known, _ := tenant.NewDirectory([]tenant.Entry{acme})
	gold := &tenant.Class{Weight: 8, MaxConcurrent: 2, TokensPerMinute: 10_000}
	rest := &tenant.Class{Weight: 1, Models: []string{"other"}, Capped: true, MaxLevel: -5}
	return &TenantsSpec{Known: known, Reject: reject, Classes: map[string]*tenant.Class{"gold": gold, "default": rest}, Default: rest}
}

func TestTenantsAreKnownByTheirKeysAndLimited(t *testing.T) {
	c := newClock()
	spec := testSpec(t, 1)
	spec.Policy.Admission.Tenants = tenants(t, true)
	p := newPicker(t, c, spec)
	ask := func(authorization string) (*Decision, error) {
		return p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 100, true), Header: func(name string) string {
			return map[string]string{"authorization": authorization}[name]
		}})
	}
	for _, authorization := range []string{"", "Bearer wrong", "Basic key-of-acme"} {
		if _, err := ask(authorization); err == nil {
			t.Fatalf("%q is let in", authorization)
		} else if s, code := status(err); s != 401 || code != "invalid_api_key" {
			t.Errorf("%q: %v", authorization, err)
		}
	}
	for _, headers := range []map[string]string{
		{"x-api-key": "key-of-acme"}, // the Anthropic API's way
		{"x-api-key": "wrong", "authorization": "Bearer key-of-acme"},
		{"x-api-key": "key-of-acme", "authorization": "Basic x"},
	} {
		d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 100, true), Header: func(name string) string {
			return headers[name]
		}})
		if err != nil {
			t.Fatalf("%v: %v", headers, err)
		}
		d.End(Failed)
	}
	if err := p.Known(func(name string) string {
		return map[string]string{"x-api-key": "key-of-acme", "authorization": "Bearer wrong"}[name]
	}); err == nil {
		t.Error("a wrong key in the Authorization header is not looked at")
	}
	const acme = "Bearer key-of-acme"
	one, err := ask(acme)
	if err != nil {
		t.Fatal(err)
	}
	two, err := ask(acme)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(acme); err == nil {
		t.Fatal("a third at once is let in")
	} else if s, code := status(err); s != 429 || code != "max_concurrent" {
		t.Errorf("%v", err)
	}
	one.Generated(20_000)
	one.End(Completed)
	two.End(Failed)
	if _, err := ask(acme); err == nil {
		t.Fatal("tokens are not counted")
	} else if s, code := status(err); s != 429 || code != "tokens_per_minute" {
		t.Errorf("%v", err)
	}
	if value, own := p.Feeds()[0].Spec.Authorization(); value != "" || own {
		t.Error("a tenant's key would be sent to engines")
	}
	wantRefused(t, p, "acme", map[string]int64{"max_concurrent": 1, "tokens_per_minute": 1})
	wantRefused(t, p, unknownLabel, map[string]int64{"invalid_api_key": 3})
	if s := p.Stats()[0].Tenants["acme"]; s.Requests != 5 || s.Tokens != 20_200+300 {
		t.Errorf("%+v", s)
	}

	spec.Policy.Admission.Tenants = tenants(t, false)
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask("Bearer wrong"); err == nil {
		t.Error("the default class may use a model that is not its")
	} else if s, _ := status(err); s != 403 {
		t.Error(err)
	}
	wantRefused(t, p, unknownLabel, map[string]int64{"invalid_api_key": 3, "model_not_allowed": 1})
}

// wantRefused compares what is counted of a tenant's refused requests, by reason.
func wantRefused(t *testing.T, p *Picker, label string, want map[string]int64) {
	t.Helper()
	got := map[string]int64{}
	for i, n := range p.Stats()[0].Tenants[label].Refused {
		if n > 0 {
			got[TenantRefusals[i]] = n
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("refused to %s (-want +got):\n%s", label, diff)
	}
}

func TestATenantIsNamedByAGatewaysHeader(t *testing.T) {
	listed := tenants(t, true)
	listed.Header = FairnessHeader
	anybody := *listed
	anybody.Known = nil
	for _, test := range []struct {
		name    string
		spec    *TenantsSpec
		header  string
		value   string
		tenant  string
		class   string
		refused bool
	}{
		{"listed", listed, FairnessHeader, "acme", "acme", "gold", false},
		{"other spelling", listed, "x-llm-d-inference-fairness-id", "acme", "acme", "gold", false},
		{"unlisted", listed, FairnessHeader, "nobody", "", "", true},
		{"without a list", &anybody, FairnessHeader, "nobody", "nobody", "default", false},
		{"without a name", &anybody, FairnessHeader, "", "", "", true},
	} {
		name, class, err := test.spec.identify(func(h string) string { return map[string]string{test.header: test.value}[h] })
		if (err != nil) != test.refused || name != test.tenant || (class != nil && class != listed.Classes[test.class]) {
			t.Errorf("%s: %q %v %v", test.name, name, class, err)
		}
	}
}

func TestAClassCapsPriorities(t *testing.T) {
	spec := queueing(t, 1).Policy.Admission
	capped := &tenant.Class{Capped: true, MaxLevel: 0}
	for asked, want := range map[string]int{"high": 0, "low": -10, "": 0} {
		if level, _ := spec.priority(asked, capped); level != want {
			t.Errorf("%q is level %d, want %d", asked, level, want)
		}
	}
}

func TestModelsAreListedForThoseWhoMayUseThem(t *testing.T) {
	spec := testSpec(t, 1)
	spec.Policy.Admission.Tenants = tenants(t, true)
	spec.Policy.Admission.Tenants.Classes["gold"].Models = []string{"alias"}
	p := newPicker(t, newClock(), spec)
	models, err := p.ModelsFor(func(string) string { return "Bearer key-of-acme" })
	if err != nil || len(models) != 1 || models[0].Name != "alias" {
		t.Errorf("%v %v", models, err)
	}
	if _, err := p.ModelsFor(nil); err == nil {
		t.Error("models are listed without a key")
	}
}
