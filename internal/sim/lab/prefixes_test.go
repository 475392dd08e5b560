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

// TestWaitingDoesNotDestroyLocality: with 80 prefixes that fit the caches of the fleet but not those of a pod, the part of
// the prompts that is found stays high while more requests arrive than the fleet can serve, it is what it was before when
// fewer arrive again, and nothing is refused.
func TestWaitingDoesNotDestroyLocality(t *testing.T) {
	long(t)
	for _, name := range []string{"prefixes", "shift"} {
		w, err := Generate(name, 9000, 1)
		if err != nil {
			t.Fatal(err)
		}
		rates := []float64{1, 2, 3, 2, 1}
		w, ends := phases(w, rates...)
		c := Config{Workload: w, Strategy: only(t, "MarginalCost"), Pods: 6, KVTokens: 96_000, Profile: profile(t, "70b-tp4-h100"),
			Seed: 1, EventLag: 5 * time.Millisecond, Admission: DefaultAdmission()}
		r := run(t, c)
		hits, first := make([]float64, len(rates)), make([]float64, len(rates))
		prompt, n := make([]float64, len(rates)), make([]float64, len(rates))
		for _, s := range r.served {
			phase := 0
			for phase < len(rates)-1 && s.came > ends[phase] {
				phase++
			}
			prompt[phase] += float64(s.input)
			hits[phase] += float64(s.input - s.computed)
			first[phase] += (s.first - s.came).Seconds()
			n[phase]++
		}
		for i := range rates {
			hits[i] /= prompt[i]
			first[i] /= n[i]
		}
		t.Logf("%s: at %v times the rate, hits %.3f, first token %.2f s, %d refused", name, rates, hits, first, r.Shed)
		for i := range rates {
			if hits[i] < 0.88 {
				t.Errorf("%s: at %v times the rate only %.3f of the prompts are found", name, rates[i], hits[i])
			}
		}
		if last := len(rates) - 1; hits[last] < hits[0]-0.02 || first[last] > 2*first[0]+0.05 {
			t.Errorf("%s: after the peak %.3f found and %.2f s, before it %.3f and %.2f s", name, hits[last], first[last], hits[0], first[0])
		}
		if r.Shed > 0 {
			t.Errorf("%s: %d refused", name, r.Shed)
		}
	}
}
