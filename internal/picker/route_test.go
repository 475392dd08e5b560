package picker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// routedSpecs are pools of one endpoint each, whose models have their names.
func routedSpecs(t *testing.T, names ...string) (specs []Spec) {
	t.Helper()
	for i, name := range names {
		s := testSpec(t, 1)
		s.Name, s.Model, s.Aliases = name, name, nil
		s.Endpoints = nil
		s.Endpoints = append(s.Endpoints, testEndpoint(i))
		s.Policy.SessionKeys = []SessionKey{{Type: "Header", Name: "x-session-id"}}
		specs = append(specs, s)
	}
	return specs
}

func canary(stable, next int) modelroute.Route {
	return modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"}, Rules: []modelroute.Rule{{
		Sticky: true,
		Backends: []modelroute.Backend{
			{Pool: "default/stable", Weight: stable}, {Pool: "default/next", Weight: next},
		},
	}}}
}

func routedPicker(t *testing.T, specs []Spec, routes ...modelroute.Route) *Picker {
	t.Helper()
	p := newPicker(t, newClock())
	if err := p.Apply(specs, routes...); err != nil {
		t.Fatal(err)
	}
	return p
}

// ask picks for a completion as the proxy does, and returns the decision, which has ended, with the body that the engine gets.
func ask(p *Picker, model string, header map[string]string) (*Decision, string, error) {
	body := completion(model, 1, 20, false)
	in := &Request{Route: openai.Completions, Body: body, Header: func(name string) string { return header[name] }}
	in.Rename = func(r *openai.Request, model string) ([]byte, bool) {
		return openai.ReplaceModel(nil, in.Body, r, model), true
	}
	d, err := p.Pick(context.Background(), in)
	if err == nil {
		d.End(Completed)
	}
	return d, string(in.Body), err
}

func inSession(i int) map[string]string {
	return map[string]string{"x-session-id": fmt.Sprint("session-", i)}
}

// TestReplicasAgreeOnTheSideOfASession: without exchanging anything, and after a restart.
func TestReplicasAgreeOnTheSideOfASession(t *testing.T) {
	specs := routedSpecs(t, "stable", "next")
	a, b := routedPicker(t, specs, canary(70, 30)), routedPicker(t, specs, canary(70, 30))
	sides := map[string]int{}
	for i := range 400 {
		one, body, err := ask(a, "chat", inSession(i))
		other, _, err2 := ask(b, "chat", inSession(i))
		if err != nil || err2 != nil || one.Pool != other.Pool {
			t.Fatalf("session %d: %v and %v, %v %v", i, one, other, err, err2)
		}
		if one.Model != one.Pool || !strings.Contains(body, `"model":"`+one.Pool+`"`) {
			t.Fatalf("model %q in pool %q, body %.60s", one.Model, one.Pool, body)
		}
		sides[one.Pool]++
	}
	if sides["next"] < 75 || sides["next"] > 165 { // five standard deviations
		t.Errorf("sides %v, want about 30 %% at next", sides)
	}
	assertIdle(t, a)
}

// TestOnlyTheMovedShareOfSessionsMoves when a weight changes while they are under way.
func TestOnlyTheMovedShareOfSessionsMoves(t *testing.T) {
	specs := routedSpecs(t, "stable", "next")
	p := routedPicker(t, specs, canary(90, 10))
	before := map[int]string{}
	for i := range 400 {
		d, _, err := ask(p, "chat", inSession(i))
		if err != nil {
			t.Fatal(err)
		}
		before[i] = d.Pool
	}
	if err := p.Apply(specs, canary(60, 40)); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for i := range 400 {
		d, _, err := ask(p, "chat", inSession(i))
		switch {
		case err != nil:
			t.Fatal(err)
		case d.Pool == before[i]:
		case before[i] == "next":
			t.Fatalf("session %d moves away from the canary, which grows", i)
		default:
			moved++
		}
	}
	if moved < 75 || moved > 165 {
		t.Errorf("%d of 400 sessions move, want about 30 %%", moved)
	}
}

func TestRulesAreTriedInOrder(t *testing.T) {
	route := canary(1, 0)
	header := modelroute.Rule{
		Matches:  []modelroute.Match{{Headers: []modelroute.Header{{Name: "x-canary", Value: "yes"}}}},
		Backends: []modelroute.Backend{{Pool: "default/next", Weight: 1}},
	}
	route.Rules = slices.Insert(route.Rules, 0, header)
	p := routedPicker(t, routedSpecs(t, "stable", "next"), route)
	for value, want := range map[string]string{"yes": "next rule=0", "YES": "stable rule=1", "": "stable rule=1"} {
		d, _, err := ask(p, "chat", map[string]string{"x-canary": value})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s rule=%d", d.Pool, d.Routed().Rule); got != want {
			t.Errorf("x-canary %q: %s, want %s", value, got, want)
		}
	}
	route.Rules = route.Rules[:1]
	if err := p.Apply(routedSpecs(t, "stable", "next"), route); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ask(p, "chat", nil); code(err) != codeModelUnknown {
		t.Errorf("no rule matches: %v, want no such model", err)
	}
}

func code(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestRequestsThatARouteCannotServe(t *testing.T) {
	p := routedPicker(t, routedSpecs(t, "stable"), canary(0, 1))
	if _, _, err := ask(p, "chat", nil); code(err) != codeNoPool {
		t.Errorf("a pool that does not exist: %v", err)
	}
	if d, _, err := ask(p, "stable", nil); err != nil || d.Routed() != nil {
		t.Errorf("a pool's own name: %v", err)
	}
	if _, _, err := ask(p, strings.Repeat("x", 10<<10), nil); code(err) != codeModelUnknown || len(err.Error()) > 1000 {
		t.Errorf("a model name of 10 KB: %.100v", err)
	}
	in := &Request{Route: openai.Completions, Body: completion("chat", 1, 20, false)}
	if _, err := p.Pick(context.Background(), in); code(err) != codeModelUnknown {
		t.Errorf("an entrance that cannot change the body: %v", err)
	}
	in.Unparsed, in.Rename = true, func(*openai.Request, string) ([]byte, bool) { return nil, false }
	if _, err := p.Pick(context.Background(), in); code(err) != codeModelUnknown {
		t.Errorf("a request that is not read: %v", err)
	}
	in = &Request{Route: openai.Completions, Body: completion("chat", 1, 20, false)}
	in.Rename = func(*openai.Request, string) ([]byte, bool) { return nil, false }
	if err := p.Apply(routedSpecs(t, "stable"), canary(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Pick(context.Background(), in); code(err) != CodeOverloaded {
		t.Errorf("no memory for the body: %v", err)
	}
	in = &Request{Route: openai.Completions, Body: []byte(`{"prompt":"a"}`)}
	in.Rename = func(*openai.Request, string) ([]byte, bool) { panic("not called") }
	if d, err := p.Pick(context.Background(), in); err != nil || d.Pool != "stable" || d.Routed() != nil {
		t.Errorf("a body without a model: %v", err)
	}
}

// TestAPoolAtZeroSeesTheRequestsThatAFallbackServes: else nothing would wake it.
func TestAPoolAtZeroSeesTheRequestsThatAFallbackServes(t *testing.T) {
	specs := routedSpecs(t, "small", "zero")
	specs[1].Endpoints, specs[1].FromZero = nil, true
	p := routedPicker(t, specs, modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"}, Rules: []modelroute.Rule{{
		Backends: []modelroute.Backend{{Pool: "default/zero", Weight: 1}}, Fallbacks: []modelroute.Backend{{Pool: "default/small"}},
		On: modelroute.Of(modelroute.Cold), Within: time.Minute,
	}}})
	asked := func() bool {
		for _, pool := range p.current.Load().pools {
			if pool.spec.Name == "zero" {
				return !pool.tally.read(0).LastRequest.IsZero()
			}
		}
		return false
	}
	if asked() {
		t.Fatal("a request has arrived before there was one")
	}
	if d, _, err := ask(p, "chat", nil); err != nil || d.Pool != "small" {
		t.Fatalf("the fallback does not serve: %v", err)
	}
	if !asked() {
		t.Error("the pool at zero does not know of the request")
	}
}

// TestTenantsNeedTheNameThatTheyAskForAndTheBackends: both names, in lists of models as in requests.
func TestTenantsNeedTheNameThatTheyAskForAndTheBackends(t *testing.T) {
	for name, tc := range map[string]struct {
		allowed []string
		listed  []string
		want    string // the code of the answer, empty for an answer
	}{
		"both":             {[]string{"chat", "stable"}, []string{"chat", "stable"}, ""},
		"only the route's": {[]string{"chat"}, nil, codeModelForbidden},
		"only the pool's":  {[]string{"stable"}, []string{"stable"}, codeModelForbidden},
		"all":              {nil, []string{"chat", "stable"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			specs := routedSpecs(t, "stable")
			specs[0].Policy.Admission.Tenants = &TenantsSpec{
				Header: "x-tenant", Known: new(tenant.Directory), Default: &tenant.Class{Weight: 1, Models: tc.allowed},
			}
			p := routedPicker(t, specs, canary(1, 0))
			header := map[string]string{"x-tenant": "acme"}
			if _, _, err := ask(p, "chat", header); code(err) != tc.want {
				t.Errorf("%v, want %q", err, tc.want)
			}
			models, err := p.ModelsFor(func(name string) string { return header[name] })
			var listed []string
			for _, m := range models {
				listed = append(listed, m.Name)
			}
			if err != nil || !slices.Equal(listed, tc.listed) {
				t.Errorf("models %v, want %v: %v", listed, tc.listed, err)
			}
		})
	}
}

// TestARuleCanBeForOneTenant: others do not see the model.
func TestARuleCanBeForOneTenant(t *testing.T) {
	specs := routedSpecs(t, "stable", "next")
	for i := range specs {
		specs[i].Policy.Admission.Tenants = &TenantsSpec{Header: "x-tenant", Known: new(tenant.Directory), Default: everybody}
	}
	route := canary(0, 1)
	route.Models = []string{"chat", "next"} // hides the pool's name
	route.Rules[0].Matches = []modelroute.Match{{Tenant: "acme"}}
	p := routedPicker(t, specs, route)
	for name, want := range map[string]string{"acme": "chat next stable", "other": "stable", "": "stable"} {
		header := map[string]string{"x-tenant": name}
		models, err := p.ModelsFor(func(name string) string { return header[name] })
		var listed []string
		for _, m := range models {
			listed = append(listed, m.Name)
		}
		if got := strings.Join(listed, " "); err != nil || got != want {
			t.Errorf("tenant %q: models %q, want %q: %v", name, got, want, err)
		}
		if _, _, err := ask(p, "chat", header); (code(err) == codeModelUnknown) != (name != "acme") {
			t.Errorf("tenant %q: %v", name, err)
		}
	}
}

// TestARouteOfItsOwnModelDoesNotLoop: the name that the engines get is one of the pool, and is not looked up among the routes again.
func TestARouteOfItsOwnModelDoesNotLoop(t *testing.T) {
	to := func(name, pool, model string) modelroute.Route {
		return modelroute.Route{Namespace: "default", Name: "of-" + name, Models: []string{name}, Rules: []modelroute.Rule{{
			Backends:  []modelroute.Backend{{Pool: "default/" + pool, Model: model, Weight: 1}},
			Fallbacks: []modelroute.Backend{{Pool: "default/" + pool, Model: name}}, On: modelroute.Of(modelroute.Down),
		}}}
	}
	specs := routedSpecs(t, "a", "b")
	for i := range specs {
		specs[i].Aliases = []string{"x-" + specs[i].Name}
	}
	// a and b are routed to each other, and x-a to itself.
	p := routedPicker(t, specs, to("a", "b", "b"), to("b", "a", "a"), to("x-a", "a", "x-a"))
	for model, want := range map[string]string{"a": "b", "b": "a", "x-a": "a"} {
		d, body, err := ask(p, model, nil)
		if err != nil || d.Pool != want {
			t.Fatalf("%s: pool %v, want %s; %v", model, d, want, err)
		}
		if name := cmp.Or(map[string]string{"x-a": "x-a"}[model], want); !strings.Contains(body, `"model":"`+name+`"`) {
			t.Errorf("%s: the engine gets %.60s, want the name %s", model, body, name)
		}
	}
}
