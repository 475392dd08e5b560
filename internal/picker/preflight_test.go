package picker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A preflight shows no key, by its specification: it is nobody's, waits for nothing, and takes no tenant's share.
func TestPreflightsAreNobodys(t *testing.T) {
	spec := testSpec(t, 2)
	spec.Policy.Admission = AdmissionSpec{Queue: true, WaitBudget: time.Second, Tenants: tenants(t, true)}
	p := newPicker(t, newClock(), spec)
	var refused *Error
	if _, err := p.Pick(t.Context(), &Request{Unparsed: true}); !errors.As(err, &refused) || refused.Status != 401 {
		t.Errorf("another request without a body: %v", err)
	}
	for range 5 {
		d, err := p.Pick(t.Context(), &Request{Unparsed: true, Preflight: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.End(Completed)
	}
	// Full: the budget is nothing, so that everything else would wait.
	spec.Policy.Admission.WaitBudget = -time.Second
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	d, err := p.Pick(t.Context(), &Request{Unparsed: true, Preflight: true})
	if err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	if stats := p.Stats()[0]; len(stats.Tenants) != 1 || stats.Tenants[unknownLabel].Requests != 0 {
		t.Errorf("tenants %v", stats.Tenants)
	}
}

// A decision tells what of its time was waiting for room.
func TestADecisionTellsHowLongItHasWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, 1)
		spec.Policy.Admission.WaitBudget = 0
		p := started(t, spec)
		busy := fill(t, p)
		if busy.Waited != 0 {
			t.Errorf("who came first has waited for %v", busy.Waited)
		}
		next := asking(t.Context(), p, 0, 100, nil)
		waits(t, next, "the next")
		time.Sleep(3 * time.Second)
		busy.End(Completed)
		got := now(t, next, "the next").d
		if got.Waited < 3*time.Second || got.Waited > got.Duration || got.Bytes == 0 {
			t.Errorf("waited for %v of %v", got.Waited, got.Duration)
		}
		got.End(Completed)
	})
}

func TestWhatAPreflightIs(t *testing.T) {
	both := map[string]string{"origin": "https://a.example", "access-control-request-method": "POST"}
	for name, tc := range map[string]struct {
		method string
		header map[string]string
		want   bool
	}{
		"a preflight":     {"OPTIONS", both, true},
		"a question":      {"OPTIONS", nil, false},
		"no origin":       {"OPTIONS", map[string]string{"access-control-request-method": "POST"}, false},
		"no method asked": {"OPTIONS", map[string]string{"origin": "https://a.example"}, false},
		"a request":       {"POST", both, false},
	} {
		if got := IsPreflight(tc.method, func(name string) string { return tc.header[name] }); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
