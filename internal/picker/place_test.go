package picker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

func marginal() policy.Config {
	return policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}}
}

// spread picks n times for a model and counts where.
func spread(t *testing.T, p *Picker, model string, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for i := range n {
		d := pick(t, p, completion(model, 1000*i, 64, true))
		got[d.Targets[0].Endpoint.Pod]++
		d.End(Completed)
	}
	return got
}

func TestAnAdaptersRequestsGoWhereItIs(t *testing.T) {
	c := newClock()
	spec := testSpec(t, 3)
	spec.Adapters, spec.DiscoverAdapters, spec.Policy.Strategy = []string{"sql"}, true, marginal()
	p := newPicker(t, c, spec)
	if got := spread(t, p, "sql", 60); len(got) != 3 {
		t.Errorf("while no engine lists it, it can be anywhere: %v", got)
	}
	p.ObserveModels(spec.Endpoints[0].ID, adapters("sql"))
	p.ObserveModels(spec.Endpoints[1].ID, adapters("other", "sql"))
	p.ObserveModels(spec.Endpoints[2].ID, adapters("other"))
	if got := spread(t, p, "sql", 60); got["pod-2"] > 0 || len(got) != 2 {
		t.Errorf("pod-2 does not have it: %v", got)
	}
	if got := spread(t, p, "m", 60); len(got) != 3 {
		t.Errorf("the base model is everywhere: %v", got)
	}
	report := func(i int, adapters string) {
		p.Observe(spec.Endpoints[i].ID, c.Now(), load.Report{MaxAdapters: 2, Adapters: adapters})
	}
	report(0, "x,y") // as many as allowed
	report(1, "x")   // room for one
	if got := spread(t, p, "sql", 20); got["pod-1"] != 20 {
		t.Errorf("pod-0 has no room for the adapter: %v", got)
	}
	report(0, "x,sql")
	if got := spread(t, p, "sql", 20); got["pod-0"] != 20 {
		t.Errorf("pod-0 runs the adapter: %v", got)
	}
	c.advance(3 * time.Second)
	if got := spread(t, p, "sql", 60); len(got) != 2 {
		t.Errorf("a report of 3 s ago is believed: %v", got)
	}
}

// islands is a pool with pod-0 at home and pod-1 some way off.
func islands(t *testing.T, crossing Crossing, strategy policy.Config) Spec {
	spec := testSpec(t, 2)
	spec.Policy.Strategy, spec.Policy.Crossing = strategy, crossing
	spec.Islands = map[string]time.Duration{"home": time.Millisecond, "away": 300 * time.Millisecond}
	spec.Endpoints[0].Island, spec.Endpoints[1].Island = "home", "away"
	return spec
}

func atHome(t *testing.T, spec Spec) *Picker {
	t.Helper()
	p := New(Options{Now: newClock().Now, Island: "home"})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAnIslandIsLeftWhenThatIsFaster(t *testing.T) {
	for name, strategy := range map[string]policy.Config{
		"MarginalCost": marginal(), "LeastLoad": {Type: policy.LeastLoad}, "RoundRobin": {Type: policy.RoundRobin},
	} {
		p := atHome(t, islands(t, CrossWhenCheaper, strategy))
		if got := spread(t, p, "m", 20); got["pod-0"] != 20 {
			t.Errorf("%s: nothing is faster away from home: %v", name, got)
		}
		// Two seconds of prefill at home are more than the way.
		busy := pick(t, p, completion("m", 1e6, 40_000, true))
		if busy.Targets[0].Endpoint.Pod != "pod-0" {
			t.Fatalf("%s: the long prompt went to %s", name, busy.Targets[0].Endpoint.Pod)
		}
		if got := spread(t, p, "m", 20); got["pod-1"] < 10 {
			t.Errorf("%s: home is busy for two seconds: %v", name, got)
		}
		busy.End(Completed)
	}
}

func TestAnIslandIsLeftAsALastResortOrNever(t *testing.T) {
	spec := islands(t, CrossAsLastResort, marginal())
	p := atHome(t, spec)
	busy := pick(t, p, completion("m", 1e6, 40_000, true))
	if got := spread(t, p, "m", 20); got["pod-0"] != 20 {
		t.Errorf("while there is an endpoint at home: %v", got)
	}
	busy.End(Completed)
	spec.Endpoints = append(spec.Endpoints[:0:0], spec.Endpoints...)
	spec.Endpoints[0].Ready = false
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	if got := spread(t, p, "m", 5); got["pod-1"] != 5 {
		t.Errorf("when no endpoint is left at home: %v", got)
	}
	spec.Policy.Crossing = CrossNever
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	_, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: completion("m", 0, 64, true)})
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Status != 503 {
		t.Errorf("never: %v", err)
	}
}

func TestAPickerWithoutAnIslandCountsTheWayToEach(t *testing.T) {
	p := newPicker(t, newClock(), islands(t, CrossNever, marginal()))
	if got := spread(t, p, "m", 20); got["pod-0"] != 20 {
		t.Errorf("the way to pod-1 is longer: %v", got)
	}
}

// adapters is what an engine lists that has the given ones.
func adapters(names ...string) []ListedModel {
	models := []ListedModel{{Name: "m"}}
	for _, name := range names {
		models = append(models, ListedModel{Name: name, Parent: "m"})
	}
	return models
}
