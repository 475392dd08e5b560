package lab

import (
	"testing"
	"time"
)

// TestAPodThatStallsGetsNoRequests after the picker has had the time to see it, and gets its part again afterwards. Nothing is
// lost.
func TestAPodThatStallsGetsNoRequests(t *testing.T) {
	for _, name := range []string{"chat", "prefixes"} {
		w, err := Generate(name, 1500, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := small(t, "MarginalCost")
		c.Workload, c.Admission, c.Stall = w, DefaultAdmission(), Stall{Pod: 1, At: 20 * time.Second, For: 10 * time.Second}
		s := started(t, c)
		s.until(20 * time.Second)
		sent := func(lasts time.Duration) int {
			before := s.out.perPod[1]
			s.until(s.now + lasts)
			return s.out.perPod[1] - before
		}
		seen, stalled, after := sent(4*time.Second), sent(6*time.Second), sent(10*time.Second)
		t.Logf("%s: %d requests in the first 4 s, %d in the next 6 s, %d in the 10 s afterwards", name, seen, stalled, after)
		if stalled > 1 || after < 3 {
			t.Errorf("%s: %d requests were sent to a pod that had stalled for 4 s, and %d in 10 s afterwards", name, stalled, after)
		}
		s.until(never)
		if s.open != 0 || s.out.shedN != 0 {
			t.Errorf("%s: %d requests have no answer, %d were refused", name, s.open, s.out.shedN)
		}
	}
}

// TestBurstsHaveTheMeanRateOfPrefixes: they differ in when requests arrive, not in how many.
func TestBurstsHaveTheMeanRateOfPrefixes(t *testing.T) {
	lasts := func(name string) float64 {
		w, err := Generate(name, 10_000, 1)
		if err != nil {
			t.Fatal(err)
		}
		return w.Requests[len(w.Requests)-1].At.Seconds()
	}
	steady, bursts := lasts("prefixes"), lasts("bursts")
	if ratio := bursts / steady; ratio < 0.9 || ratio > 1.1 {
		t.Errorf("10,000 requests take %.0f s, without bursts %.0f s", bursts, steady)
	}
	w, err := Generate("bursts", 10_000, 1)
	if err != nil {
		t.Fatal(err)
	}
	in := 0
	for i := range w.Requests {
		if w.Requests[i].At%burstEvery < burstLasts {
			in++
		}
	}
	if share := float64(in) / 10_000; share < 0.7 || share > 0.8 {
		t.Errorf("%.2f of the requests are in bursts, want three quarters", share)
	}
}
