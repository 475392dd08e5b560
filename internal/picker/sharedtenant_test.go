package picker

import (
	"context"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/test/race"
)

// TestPickersHoldATenantToItsRateTogether: two to four pickers that exchange updates admit what one would, plus what
// arrives at all of them before the updates; pickers that exchange none admit as much each.
func TestPickersHoldATenantToItsRateTogether(t *testing.T) {
	pass := func(pickers int, delay time.Duration) (passed, atOnce int) {
		f := newFleet(t, pickers, 4, policy.LeastLoad, delay)
		for _, p := range f.pickers {
			spec := *p.current.Load().pools[0].spec
			spec.Policy.Admission.Tenants = &TenantsSpec{
				Header: FairnessHeader, Default: &tenant.Class{Weight: 1, RequestsPerMinute: 120, MaxConcurrent: 10},
			}
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
		}
		ask := func(i int) *Decision {
			d, err := f.pickers[i%pickers].Pick(context.Background(), &Request{
				Route: openai.Completions, Body: completion("m", i<<8, 32, true), Header: func(string) string { return "acme" },
			})
			if err != nil {
				return nil
			}
			return d
		}
		var open []*Decision
		for i := range 30 { // at once, but for the time between two messages
			if d := ask(i); d != nil {
				open = append(open, d)
			}
			f.run(10 * time.Millisecond)
		}
		atOnce = len(open)
		for _, d := range open {
			d.End(Completed)
		}
		passed = atOnce
		for i := range 5 * 60 * 10 { // ten a second for five minutes, two are allowed
			if d := ask(i); d != nil {
				d.End(Completed)
				passed++
			}
			f.run(100 * time.Millisecond)
		}
		return passed, atOnce
	}
	alone, atOnce := pass(1, 0)
	if atOnce != 10 || alone < 5*120 {
		t.Fatalf("one picker lets through %d, %d at once", alone, atOnce)
	}
	several := []int{2, 3, 4}
	if race.Enabled { // which has one goroutine to look at
		several = several[:1]
	}
	for _, n := range several {
		together, atOnce := pass(n, time.Millisecond)
		if together < alone-2 || together > alone+n || atOnce > 10+n {
			t.Errorf("%d pickers let through %d, %d at once; one %d", n, together, atOnce, alone)
		}
	}
	if apart, _ := pass(2, 0); apart < 3*alone/2 {
		t.Errorf("two pickers that tell each other nothing let through %d, one %d: the test shows nothing", apart, alone)
	}
}
