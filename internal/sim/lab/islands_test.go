package lab

import (
	"testing"
	"time"
)

// apart is chat on four pods at home and four on another island.
func apart(t *testing.T, speed float64, way time.Duration) Config {
	t.Helper()
	w, err := Generate("chat", 1500, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := small(t, "MarginalCost")
	c.Workload, c.Pods, c.Speed, c.Islands = w, 8, speed, Islands{Away: 4, Way: way}
	return c
}

// elsewhere is the part of the requests that went to the other island.
func elsewhere(r *Result) float64 {
	n, all := 0, 0
	for i, of := range r.RequestsPerPod {
		all += of
		if i >= 4 {
			n += of
		}
	}
	return float64(n) / float64(all)
}

// TestAnIslandIsLeftWhenThatPays: with the way priced fewer requests are sent far than without, all the fewer the longer it
// is, and first tokens arrive sooner; but some are, and all are answered sooner than where the island is left as a last
// resort.
func TestAnIslandIsLeftWhenThatPays(t *testing.T) {
	long(t)
	last := 1.0
	for _, way := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		at := map[string]*Result{}
		for _, v := range Distance() {
			c := apart(t, 4, way)
			v.Set(&c)
			at[v.Name] = run(t, c)
		}
		priced, unknown, resort, never := at["distance priced"], at["distance unknown"], at["as a last resort"], at["never"]
		t.Logf("%v: %.2f of the requests go far, %.1f ms and %.3f s; unknown %.2f, %.1f ms; as a last resort %.1f ms, %.3f s", way, elsewhere(priced), 1e3*priced.TTFTSeconds.Mean,
			priced.E2ESeconds.Mean, elsewhere(unknown), 1e3*unknown.TTFTSeconds.Mean, 1e3*resort.TTFTSeconds.Mean, resort.E2ESeconds.Mean)
		if elsewhere(never) > 0 {
			t.Errorf("%v: %.2f of the requests leave where none may", way, elsewhere(never))
		}
		if part := elsewhere(priced); part >= elsewhere(unknown) || part > last || part == 0 {
			t.Errorf("%v: %.2f of the requests go far where the way is priced, %.2f where it is not, %.2f a shorter way", way, part, elsewhere(unknown), last)
		} else {
			last = part
		}
		if way >= 100*time.Millisecond && priced.TTFTSeconds.Mean > 0.85*unknown.TTFTSeconds.Mean {
			t.Errorf("%v: %.1f ms to the first token with the way priced, %.1f without", way, 1e3*priced.TTFTSeconds.Mean, 1e3*unknown.TTFTSeconds.Mean)
		}
		if priced.E2ESeconds.Mean > resort.E2ESeconds.Mean {
			t.Errorf("%v: %.3f s to the end with the way priced, %.3f where it is a last resort", way, priced.E2ESeconds.Mean, resort.E2ESeconds.Mean)
		}
	}
}

// TestTheWayTakesItsTime: a request to a distant island takes at least the way there and back; a way of length 0 is the same
// as none.
func TestTheWayTakesItsTime(t *testing.T) {
	c := apart(t, 1, 0)
	without := c
	without.Islands = Islands{}
	if a, b := run(t, c), run(t, without); a.TTFTSeconds != b.TTFTSeconds || a.E2ESeconds != b.E2ESeconds {
		t.Errorf("a way of no length: %+v, none: %+v", a.TTFTSeconds, b.TTFTSeconds)
	}
	c.Islands = Islands{Away: 8, Way: time.Second}
	if r, near := run(t, c), run(t, without); r.TTFTSeconds.P50 < near.TTFTSeconds.P50+0.999 || r.E2ESeconds.Mean < near.E2ESeconds.Mean+0.999 {
		t.Errorf("a second away: %+v, here %+v", r.TTFTSeconds, near.TTFTSeconds)
	}
	c.Islands.Away = 9
	if _, err := Run(c); err == nil {
		t.Error("nine of eight pods are away")
	}
}
