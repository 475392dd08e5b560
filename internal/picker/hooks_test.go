package picker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

var forbid = hooks.Refusal{Status: 403, Message: "Not here."}

// steps are hooks whose expressions read the header x-tier and the field max_tokens.
func steps(list ...hooks.Step) hooks.Spec {
	for i := range list {
		list[i].CostLimit = 10_000
	}
	return hooks.Spec{Headers: []string{"x-tier"}, BodyFields: []string{"max_tokens"}, Steps: list}
}

// hookedPicker has the pools base and other, with hooks, and the pool plain without.
func hookedPicker(t testing.TB, base, other hooks.Spec, change func([]Spec), routes ...modelroute.Route) *Picker {
	t.Helper()
	specs := hookedSpecs(t, base, other)
	if change != nil {
		change(specs)
	}
	p := newPicker(t, newClock())
	if err := p.Apply(specs, routes...); err != nil {
		t.Fatal(err)
	}
	return p
}

func hookedSpecs(t testing.TB, base, other hooks.Spec) (specs []Spec) {
	for i, name := range []string{"base", "other", "plain"} {
		s := testSpec(t, 0)
		s.Name, s.Model, s.Aliases, s.Adapters = name, name, nil, []string{name + "-lora"}
		s.Endpoints = append(s.Endpoints, testEndpoint(i))
		s.Policy.SessionKeys = []SessionKey{{Type: "Header", Name: "x-session-id"}}
		specs = append(specs, s)
	}
	specs[0].Policy.Hooks, specs[1].Policy.Hooks = base, other
	return specs
}

// TestStepsChangeTheModel: a request goes where the model that a step has set leads, if the steps of the pool there let it pass, too.
func TestStepsChangeTheModel(t *testing.T) {
	t.Parallel()
	free := "headers['x-tier'] == 'free'"
	for name, tc := range map[string]struct {
		base, other hooks.Spec
		// want is the pool and the model, or the code of the error; log what explanations and the log say.
		want, log string
	}{
		"to another pool": {
			steps(hooks.Step{Name: "a", When: free, Model: "plain"}), hooks.Spec{},
			"plain plain", "default/base a=applied",
		},
		"to an adapter of the same pool, and the steps are taken once": {
			steps(hooks.Step{Name: "a", Model: "base-lora"}, hooks.Step{Name: "b", When: "model == 'base'", Refuse: forbid}), hooks.Spec{},
			"base base-lora", "default/base a=applied b=skipped",
		},
		"not for others": {
			steps(hooks.Step{Name: "a", When: "!(" + free + ")", Model: "plain"}), hooks.Spec{},
			"base base", "default/base a=skipped",
		},
		"the steps of the other pool refuse": {
			steps(hooks.Step{Name: "a", Model: "other"}), steps(hooks.Step{Name: "b", When: "asked == 'base' && model == 'other'", Refuse: forbid}),
			CodeHook, "default/base a=applied; default/other b=refused",
		},
		"the steps of the other pool send it on": {
			steps(hooks.Step{Name: "a", Model: "other"}), steps(hooks.Step{Name: "b", Model: "plain"}),
			"plain plain", "default/base a=applied; default/other b=applied",
		},
		"there and back": {
			steps(hooks.Step{Name: "a", Model: "other"}), steps(hooks.Step{Name: "b", Model: "base-lora"}),
			CodeHookFailed, "default/base a=applied; default/other b=applied",
		},
		"nowhere, closed": {
			steps(hooks.Step{Name: "a", Model: "gone"}), hooks.Spec{},
			CodeHookFailed, "default/base a=failed_closed",
		},
		"nowhere, open": {
			steps(hooks.Step{Name: "a", Model: "gone", Open: true}), hooks.Spec{},
			"base base", "default/base a=failed_open",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &records{}
			p := hookedPicker(t, tc.base, tc.other, func(specs []Spec) {
				for i := range specs {
					specs[i].Policy.LogPercent = 100
				}
			})
			p.options.Decisions = log
			d, body, err := ask(p, "base", map[string]string{"x-tier": "free"})
			got := code(err)
			if err == nil {
				got = d.Pool + " " + d.Model
				if !strings.Contains(body, `"model":"`+d.Model+`"`) {
					t.Errorf("body %.60s of a request for %s", body, d.Model)
				}
			}
			if got != tc.want {
				t.Errorf("%s (%v), want %s", got, err, tc.want)
			}
			if len(log.all) != 1 || log.all[0].Hooks != tc.log {
				t.Fatalf("the log has %+v, want %q", log.all, tc.log)
			}
			if one := log.all[0]; err != nil && (one.Outcome != "refused" || one.Reason != tc.want || one.Input != 0) {
				t.Errorf("the log has %+v", one)
			}
			_, err = p.Explain(context.Background(), &Request{Route: openai.Completions, Body: completion("base", 1, 20, false),
				Header: func(name string) string { return map[string]string{"x-tier": "free"}[name] }})
			if err != nil && !strings.Contains(err.Error(), tc.log) {
				t.Errorf("explained: %v", err)
			}
			assertIdle(t, p)
		})
	}
}

// TestStepsGiveNoTenantAnotherModel: it must be allowed the name that it has used, by the policy whose steps are taken, and the name that
// they have set, by the policy of the pool that serves it. Clients that the pool does not know cost no evaluation.
func TestStepsGiveNoTenantAnotherModel(t *testing.T) {
	t.Parallel()
	tenants := func(models ...string) *TenantsSpec {
		known, _ := tenant.NewDirectory([]tenant.Entry{{Name: "acme"}})
		class := &tenant.Class{Weight: 1, Models: models}
		return &TenantsSpec{Header: "x-tenant", Known: known, Reject: true, Default: class}
	}
	for name, tc := range map[string]struct {
		tenant      string
		base, plain []string
		want        string
		taken       int64
	}{
		"both names":        {"acme", []string{"base"}, []string{"plain"}, "", 1},
		"not the name set":  {"acme", []string{"base"}, []string{"base"}, codeModelForbidden, 1},
		"not the name used": {"acme", []string{"plain"}, []string{"plain"}, codeModelForbidden, 0},
		"an unknown tenant": {"eve", []string{"base"}, []string{"plain"}, codeUnknownTenant, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := hookedPicker(t, steps(hooks.Step{Name: "a", When: "tenant == 'acme'", Model: "plain"}), hooks.Spec{}, func(specs []Spec) {
				specs[0].Policy.Admission.Tenants, specs[2].Policy.Admission.Tenants = tenants(tc.base...), tenants(tc.plain...)
			})
			d, _, err := ask(p, "base", map[string]string{"x-tenant": tc.tenant})
			if code(err) != tc.want || err == nil && d.Pool != "plain" {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if taken := p.HookStats()[0].Outcomes[hooks.Applied]; taken != tc.taken {
				t.Errorf("%d steps were taken, want %d", taken, tc.taken)
			}
		})
	}
}

// TestStepsSetPriorityAndSession: the cap of a tenant's class holds for a priority that a step has set, and the session is that of the
// expression, whatever the headers name.
func TestStepsSetPriorityAndSession(t *testing.T) {
	t.Parallel()
	p := hookedPicker(t, steps(
		hooks.Step{Name: "a", When: "headers['x-tier'] != ''", Priority: "high"},
		hooks.Step{Name: "b", Session: "headers['x-tier']"},
	), hooks.Spec{}, func(specs []Spec) {
		a := &specs[0].Policy.Admission
		a.Priorities = map[string]Priority{"low": {Level: -10}, "mid": {Level: 5}, "high": {Level: 10}}
		a.Tenants = &TenantsSpec{Header: "x-tenant", Known: new(tenant.Directory), Default: &tenant.Class{Weight: 1, Capped: true, MaxLevel: 5}}
	})
	of := func(tier, session string) *Decision {
		d, _, err := ask(p, "base", map[string]string{"x-tier": tier, "x-session-id": session, ObjectiveHeader: "low"})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	gold, again, plain := of("gold", "one"), of("gold", "two"), of("", "one")
	if gold.caller.level != 5 || plain.caller.level != -10 {
		t.Errorf("levels %d and %d, want 5, the cap, and -10", gold.caller.level, plain.caller.level)
	}
	if gold.session == 0 || gold.session != again.session || gold.session == plain.session {
		t.Errorf("sessions %d, %d and %d", gold.session, again.session, plain.session)
	}
}

// TestStepsAreTakenOnceForARequest: a pick that is repeated, because the queues of all endpoints are full, keeps what they have set.
func TestStepsAreTakenOnceForARequest(t *testing.T) {
	t.Parallel()
	p := hookedPicker(t, steps(hooks.Step{Name: "a", Session: "'mine'"}), hooks.Spec{}, nil)
	in := &Request{Route: openai.Completions, Body: completion("base", 1, 20, false)}
	first, err := p.Pick(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	in.Again = first
	second, err := p.Pick(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	second.End(Completed)
	if second.session != first.session || second.session == 0 {
		t.Errorf("session %d, then %d", first.session, second.session)
	}
	if n := p.HookStats()[0].Outcomes[hooks.Applied]; n != 1 {
		t.Errorf("the step was taken %d times", n)
	}
}

// TestStepsAndRoutes: steps know the client's name of the model and the one of the route; a refusal is not a failure of the pool, so no
// fallback follows; and a request that is with a fallback stays there.
func TestStepsAndRoutes(t *testing.T) {
	t.Parallel()
	route := modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"}, Rules: []modelroute.Rule{{
		Backends: []modelroute.Backend{{Pool: "default/base", Weight: 1}}, Fallbacks: []modelroute.Backend{{Pool: "default/other"}},
		On: modelroute.Of(modelroute.Cold, modelroute.Down), Within: 1e9,
	}}}
	refuse := steps(hooks.Step{Name: "a", When: "asked == 'chat' && model == 'base'", Refuse: forbid})
	if _, _, err := ask(hookedPicker(t, refuse, hooks.Spec{}, nil, route), "chat", nil); code(err) != CodeHook {
		t.Errorf("refused: %v", err)
	}
	away := steps(hooks.Step{Name: "a", Model: "plain"})
	p := hookedPicker(t, away, hooks.Spec{}, nil, route)
	if d, _, err := ask(p, "chat", nil); err != nil || d.Pool != "plain" || d.Routed() != nil {
		t.Errorf("away from the route: %v", err)
	}
	back := steps(hooks.Step{Name: "a", Model: "chat"})
	p = hookedPicker(t, hooks.Spec{}, back, nil, route)
	if d, _, err := ask(p, "other", nil); err != nil || d.Pool != "base" || d.Routed().Asked != "chat" {
		t.Errorf("to a route: %v", err)
	}
	p = hookedPicker(t, hooks.Spec{}, steps(hooks.Step{Name: "a", Model: "plain"}), func(specs []Spec) { specs[0].Endpoints = nil }, route)
	if _, _, err := ask(p, "chat", nil); code(err) != CodeHookFailed {
		t.Errorf("from a fallback: %v", err)
	}
}

// TestRequestsThatCannotBeChanged: those that are not read, and those of a port for one pool, stay with their models, and what is not
// known of them is not taken for absent.
func TestRequestsThatCannotBeChanged(t *testing.T) {
	t.Parallel()
	parsed := Request{Route: openai.Completions, Body: completion("base", 1, 20, false)}
	for name, tc := range map[string]struct {
		step   hooks.Step
		change func(*Request)
		want   string
	}{
		"a gateway that sends the body as it is": {hooks.Step{Model: "plain"}, func(in *Request) { in.Rename = nil }, CodeHookFailed},
		"a port for one pool":                    {hooks.Step{Model: "plain"}, func(in *Request) { in.Pool = "default/base" }, CodeHookFailed},
		"another name at a port for one pool":    {hooks.Step{Model: "base-lora"}, func(in *Request) { in.Pool = "default/base" }, ""},
		"a body that is not read":                {hooks.Step{Model: "plain"}, func(in *Request) { in.Unparsed = true }, CodeHookFailed},
		"a field of a body that is not read": {
			hooks.Step{When: "has(body.max_tokens)", Priority: "p"}, func(in *Request) { in.Unparsed = true }, CodeHookFailed,
		},
		"the length of a body that is not read": {
			hooks.Step{When: "promptTokens > 5", Priority: "p"}, func(in *Request) { in.Unparsed = true }, CodeHookFailed,
		},
		"the model of a body that is not read": {
			hooks.Step{When: "model == 'base'", Refuse: forbid}, func(in *Request) { in.Unparsed = true }, CodeHook,
		},
		"the length of a prompt of ids": {hooks.Step{When: "promptTokens == 20", Refuse: forbid}, func(*Request) {}, CodeHook},
		"the length of a prompt of text": {hooks.Step{When: "promptTokens >= 25 && promptTokens < 50", Refuse: forbid}, func(in *Request) {
			in.Body = fmt.Appendf(nil, `{"model":"base","prompt":"%s"}`, strings.Repeat("word ", 20))
		}, CodeHook},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.step.Name = "a"
			p := hookedPicker(t, steps(tc.step), hooks.Spec{}, nil)
			in := parsed
			in.Rename = func(r *openai.Request, model string) ([]byte, bool) {
				return openai.ReplaceModel(nil, in.Body, r, model), true
			}
			tc.change(&in)
			d, err := p.Pick(t.Context(), &in)
			if err == nil {
				d.End(Completed)
			}
			if code(err) != tc.want {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestStepsChangeWhileRequestsRun: each request is under the steps of one policy, counters stay with the names of steps, and steps that
// do not compile are never applied.
func TestStepsChangeWhileRequestsRun(t *testing.T) {
	t.Parallel()
	first := steps(hooks.Step{Name: "move", Model: "other"}, hooks.Step{Name: "gone", Priority: "p"})
	second := steps(hooks.Step{Name: "move", Model: "plain"})
	p := hookedPicker(t, first, hooks.Spec{}, nil)
	const clients, each = 4, 50
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range each {
				d, body, err := ask(p, "base", nil)
				if err != nil || d.Pool == "base" || !strings.Contains(body, `"model":"`+d.Pool+`"`) {
					t.Errorf("%v, body %.60s", err, body)
					return
				}
			}
		})
	}
	for i := range 20 {
		next := first
		if i%2 == 0 {
			next = second
		}
		if err := p.Apply(hookedSpecs(t, next, hooks.Spec{})); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if err := p.Apply(hookedSpecs(t, second, hooks.Spec{})); err != nil {
		t.Fatal(err)
	}
	broken := steps(hooks.Step{Name: "move", When: "tenant ="})
	if err := p.Apply(hookedSpecs(t, broken, hooks.Spec{})); err == nil || !strings.Contains(err.Error(), "move") {
		t.Errorf("steps that do not compile: %v", err)
	}
	want := []HookStats{{Namespace: "default", Pool: "base", Step: "move"}}
	want[0].Outcomes[hooks.Applied] = clients * each
	if diff := cmp.Diff(want, p.HookStats()); diff != "" {
		t.Error(diff)
	}
	assertIdle(t, p)
}

// TestExplainNamesSteps: with the outcome of each, and for the person that asks with the reason of a failure.
func TestExplainNamesSteps(t *testing.T) {
	t.Parallel()
	p := hookedPicker(t, steps(hooks.Step{Name: "a", When: "body.max_tokens > 5", Priority: "p", Open: true}), hooks.Spec{}, nil)
	in := &Request{Route: openai.Completions, Body: completion("base", 1, 20, false)}
	e, err := p.Explain(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if want := "default/base a=failed_open (step a: no such key: max_tokens)"; e.Hooks != want {
		t.Errorf("explained as %q, want %q", e.Hooks, want)
	}
	if n := p.HookStats()[0].Outcomes[hooks.FailedOpen]; n != 0 {
		t.Errorf("an explanation is counted: %d", n)
	}
	d, err := p.Pick(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	defer d.End(Completed)
	header := map[string]string{}
	d.Explain(0, func(name, value string) { header[name] = value })
	if want := "default/base a=failed_open"; header["x-kvasir-hooks"] != want {
		t.Errorf("x-kvasir-hooks: %q, want %q", header["x-kvasir-hooks"], want)
	}
}

// BenchmarkPickHooks compares a pick without steps, with one condition, and with eight.
func BenchmarkPickHooks(b *testing.B) {
	condition := hooks.Step{When: "headers['x-tier'] == 'free' && body.max_tokens > 100", Refuse: forbid}
	for _, n := range []int{0, 1, 8} {
		b.Run(fmt.Sprintf("steps=%d", n), func(b *testing.B) {
			var list []hooks.Step
			for i := range n {
				condition.Name = fmt.Sprint("s", i)
				list = append(list, condition)
			}
			p := hookedPicker(b, steps(list...), hooks.Spec{}, nil)
			in := Request{Route: openai.Completions, Body: completion("base", 0, 1024, true), Header: func(string) string { return "paid" }}
			b.ReportAllocs()
			for b.Loop() {
				one := in
				d, err := p.Pick(b.Context(), &one)
				if err != nil {
					b.Fatal(err)
				}
				d.End(Completed)
			}
		})
	}
}
