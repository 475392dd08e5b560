package picker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPreflightsAreAnsweredByThePolicies: only what a policy allows, and only of the pool that is served.
func TestPreflightsAreAnsweredByThePolicies(t *testing.T) {
	some, other := testSpec(t, 1), testSpec(t, 1)
	some.Policy.Admission.AllowedOrigins = []string{"https://a.example"}
	other.Name, other.Model, other.Aliases, other.Adapters = "other", "other", nil, nil
	other.Endpoints[0].ID.Pod = "another"
	other.Policy.Admission.AllowedOrigins = []string{"*"}
	for name, tc := range map[string]struct {
		specs        []Spec
		pool, origin string
		want         string
	}{
		"an origin":                 {[]Spec{some}, "", "https://a.example", "https://a.example"},
		"another origin":            {[]Spec{some}, "", "https://b.example", ""},
		"another scheme":            {[]Spec{some}, "", "http://a.example", ""},
		"a longer name":             {[]Spec{some}, "", "https://a.example.evil", ""},
		"a part of the name":        {[]Spec{some}, "", "https://a", ""},
		"an opaque origin":          {[]Spec{some}, "", "null", ""},
		"any origin":                {[]Spec{other}, "", "null", "*"},
		"no policy":                 {[]Spec{testSpec(t, 1)}, "", "https://a.example", ""},
		"no pool":                   {nil, "", "https://a.example", ""},
		"several pools":             {[]Spec{some, other}, "", "https://b.example", "*"},
		"another pool than served":  {[]Spec{some, other}, some.Namespace + "/" + some.Name, "https://b.example", ""},
		"the pool that is served":   {[]Spec{some, other}, some.Namespace + "/" + other.Name, "https://b.example", "*"},
		"a star in place of a name": {[]Spec{some}, "", "*", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPicker(t, newClock(), tc.specs...)
			header := map[string]string{"origin": tc.origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
			answer, err := p.Preflight(func(name string) string { return header[name] }, tc.pool)
			got := map[string]string{}
			for _, h := range answer {
				got[h[0]] = h[1]
			}
			if got["access-control-allow-origin"] != tc.want || got["access-control-allow-credentials"] != "" {
				t.Errorf("%v", got)
			}
			if refused := (*Error)(nil); errors.As(err, &refused) == (tc.want != "") || refused != nil && refused.Status != 403 {
				t.Errorf("%v", err)
			}
		})
	}
}

// A decision reports what of its time was waiting for room.
func TestADecisionTellsHowLongItHasWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, 1)
		spec.Policy.Admission.WaitBudget = 0
		p := started(t, spec)
		busy := fill(t, p)
		if busy.Waited != 0 {
			t.Errorf("the first request has waited for %v", busy.Waited)
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
