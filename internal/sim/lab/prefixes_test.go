package lab

import (
	"testing"
	"time"
)

// phases is a workload whose arrival rate changes: the parts of its requests, of equal length, arrive so many times as fast.
func phases(w *Workload, rates ...float64) (*Workload, []time.Duration) {
	out := *w
	out.Requests = append([]Request(nil), w.Requests...)
	at, before := 0.0, time.Duration(0)
	ends := make([]time.Duration, 0, len(rates))
	for i := range out.Requests {
		phase := i * len(rates) / len(out.Requests)
		at += float64(out.Requests[i].At-before) / rates[phase]
		before, out.Requests[i].At = out.Requests[i].At, time.Duration(at)
		if phase == len(ends) {
			ends = append(ends, 0)
		}
		ends[phase] = out.Requests[i].At
	}
	return &out, ends
}

// phase is what a run shows of the requests that arrived in a part of it.
type phase struct{ hits, first float64 }

// byPhase are the phases that end at some times.
func byPhase(r *Result, ends []time.Duration) []phase {
	all, prompt, n := make([]phase, len(ends)), make([]float64, len(ends)), make([]float64, len(ends))
	for _, s := range r.served {
		i := 0
		for i < len(ends)-1 && s.arrived > ends[i] {
			i++
		}
		prompt[i] += float64(s.input)
		n[i]++
		all[i].hits += float64(s.input - s.computed)
		all[i].first += (s.first - s.arrived).Seconds()
	}
	for i := range all {
		all[i].hits /= prompt[i]
		all[i].first /= n[i]
	}
	return all
}

// TestWaitingDoesNotDestroyLocality: with 80 prefixes that fit the caches of the fleet but not those of a pod, the part of
// the prompts that is found stays high while more requests arrive than the fleet can serve, it is what it was before when
// fewer arrive again, and nothing is refused. If the requests wait in the engines, it does not.
func TestWaitingDoesNotDestroyLocality(t *testing.T) {
	long(t)
	for name, tc := range map[string]struct {
		requests int
		least    float64 // of the prompts that are found
		engines  bool    // to be compared with requests that wait in the engines
	}{
		"prefixes": {9000, 0.88, true}, "shift": {9000, 0.88, true}, "bursts": {6000, 0.88, false},
	} {
		w, err := Generate(name, tc.requests, 1)
		if err != nil {
			t.Fatal(err)
		}
		rates := []float64{1, 2, 3, 2, 1}
		w, ends := phases(w, rates...)
		c := Config{Workload: w, Strategy: only(t, "MarginalCost"), Pods: 6, KVTokens: 96_000, Profile: profile(t, "70b-tp4-h100"),
			Seed: 1, EventLag: 5 * time.Millisecond}
		if tc.engines {
			engines := byPhase(run(t, c), ends)
			t.Logf("%s: at %v times the rate, hits and first tokens in the engines %.3v", name, rates, engines)
			if engines[2].hits > 0.7 {
				t.Errorf("%s: %.3v in the engines at the peak: too few requests to show anything", name, engines[2])
			}
		}
		c.Admission = DefaultAdmission()
		r := run(t, c)
		got := byPhase(r, ends)
		t.Logf("%s: at %v times the rate, hits and first tokens %.3v, %d refused", name, rates, got, r.Shed)
		for i := range rates {
			if got[i].hits < tc.least {
				t.Errorf("%s: at %v times the rate only %.3f of the prompts are found", name, rates[i], got[i].hits)
			}
		}
		before, after := got[0], got[len(got)-1]
		if after.hits < before.hits-0.02 || after.first > 2*before.first+0.05 {
			t.Errorf("%s: after the peak %.3v, before it %.3v", name, after, before)
		}
		if r.Shed > 0 {
			t.Errorf("%s: %d refused", name, r.Shed)
		}
	}
}
