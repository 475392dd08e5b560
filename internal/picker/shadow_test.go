package picker

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/policy"
)

// TestShadowsAreComparedAndNeverFollowed: with random choices in force, the default strategy as a shadow would save
// time, its twin agrees always, and what is chosen is the same with shadows and without.
func TestShadowsAreComparedAndNeverFollowed(t *testing.T) {
	marginal := policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}}
	run := func(shadows ...ShadowSpec) (choices []string, stats []ShadowStats) {
		spec := testSpec(t, 4)
		spec.Policy.Strategy = policy.Config{Type: policy.RoundRobin}
		spec.Policy.Shadows = shadows
		p := newPicker(t, newClock(), spec)
		hold(feed(t, p, "pod-2"), keysOf(t, "m", 0, 3200)...)
		for range 200 {
			d := pick(t, p, completion("m", 0, 3200, true))
			choices = append(choices, d.Targets[0].Endpoint.Pod)
			d.End(Completed)
		}
		return choices, p.Stats()[0].Shadows
	}
	without, _ := run()
	with, stats := run(
		ShadowSpec{Name: "marginal", Strategy: marginal, Percent: 100},
		ShadowSpec{Name: "some", Strategy: marginal, Percent: 10})
	for i := range with {
		if with[i] != without[i] {
			t.Fatalf("request %d goes to %s with shadows, and to %s without", i, with[i], without[i])
		}
	}
	if s := stats[0]; s.Compared != 200 || s.Agreed != 50 || s.SavedSeconds <= 0 || s.LostSeconds != 0 {
		t.Errorf("the default strategy beside round robin: %+v", s)
	}
	if s := stats[1]; s.Compared != 20 {
		t.Errorf("10 %% of 200: %+v", s)
	}
}

func TestAShadowKeepsItsCountersWhileItStaysTheSame(t *testing.T) {
	spec := testSpec(t, 2)
	spec.Policy.Shadows = []ShadowSpec{{Name: "a", Strategy: policy.Config{Type: policy.RoundRobin}, Percent: 100}}
	p := newPicker(t, newClock(), spec)
	pick(t, p, completion("m", 0, 100, true)).End(Completed)
	changed := spec
	changed.Endpoints = changed.Endpoints[:1]
	if err := p.Apply([]Spec{changed}); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats()[0].Shadows[0]; s.Compared != 1 {
		t.Errorf("after an endpoint has gone: %+v", s)
	}
	changed.Policy.Shadows = []ShadowSpec{{Name: "a", Strategy: policy.Config{Type: policy.Random}, Percent: 100}}
	if err := p.Apply([]Spec{changed}); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats()[0].Shadows[0]; s.Compared != 0 || s.Strategy != "Random" {
		t.Errorf("after the strategy has changed: %+v", s)
	}
}
