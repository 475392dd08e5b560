package picker

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/overload"
)

// TestRequestsOfLowPriorityAreRefusedWhileResourcesAreShort: the others are not, and nothing is left of those that are.
func TestRequestsOfLowPriorityAreRefusedWhileResourcesAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(overload.Manager)
		p := New(Options{Log: logr.Discard(), Overload: m})
		if err := p.Apply([]Spec{queueing(t, 1)}); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			percent  int64
			priority string
			refused  bool
		}{{70, "low", false}, {85, "low", true}, {85, "", false}, {99, "high", false}, {70, "low", false}} {
			m.Observe(overload.Usage{Used: [overload.NumResources]int64{tc.percent}, Limit: [overload.NumResources]int64{100}})
			got := <-asking(t.Context(), p, 0, 100, map[string]string{"x-gateway-inference-objective": tc.priority})
			var refusal *Error
			refused := errors.As(got.err, &refusal) && refusal.Status == 503 && refusal.Code == CodeOverloaded && refusal.RetryAfter > 0
			if refused != tc.refused {
				t.Errorf("priority %q at %d %%: %v", tc.priority, tc.percent, got.err)
			}
			if got.d != nil {
				got.d.End(Completed)
			}
		}
		if got := m.State().Refused[overload.LowPriority]; got != 1 {
			t.Errorf("%d are counted as refused", got)
		}
	})
}
