package lab

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/policy"
)

// TestAllIsEveryStrategy of a RoutingPolicy, with its defaults.
func TestAllIsEveryStrategy(t *testing.T) {
	list, err := Strategies("all")
	if err != nil || len(list) != len(policy.Types()) {
		t.Fatalf("%d strategies of %d, %v", len(list), len(policy.Types()), err)
	}
	for i, want := range policy.Types() {
		if list[i].Config != policy.Default(want) {
			t.Errorf("%s is %+v", want, list[i])
		}
	}
}

// TestApproximatePrefixFindsCaches without events: nearly as many hits as the strategy that knows what engines hold,
// and clearly more than one that knows nothing.
func TestApproximatePrefixFindsCaches(t *testing.T) {
	if testing.Short() {
		t.Skip("three runs")
	}
	hits := map[string]float64{}
	for _, name := range []string{"ApproximatePrefix", "LongestPrefix", "LeastLoad"} {
		c := small(t, name)
		w, err := Generate("agentic", 400, 1)
		if err != nil {
			t.Fatal(err)
		}
		c.Workload = w
		hits[name] = run(t, c).HitRatio
	}
	t.Logf("hit ratios: %v", hits)
	if hits["ApproximatePrefix"] < 0.95*hits["LongestPrefix"] || hits["ApproximatePrefix"] < 1.1*hits["LeastLoad"] {
		t.Errorf("hit ratios: %v", hits)
	}
}
