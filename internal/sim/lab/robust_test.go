package lab

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestTheDefaultDoesNotCollapse: a prefix that everyone shares neither draws all traffic to one pod, as the literal
// longest prefix does, nor is it computed everywhere at the cost of the time to the first token.
func TestTheDefaultDoesNotCollapse(t *testing.T) {
	long(t)
	for _, name := range []string{"rag", "chat", "fanout"} {
		w, err := Generate(name, 600, 2)
		if err != nil {
			t.Fatal(err)
		}
		at := func(strategy string) *Result {
			c := small(t, strategy)
			c.Workload, c.Pods, c.Speed = w, 8, 2
			return run(t, c)
		}
		ours, literal, blind := at("MarginalCost"), at("LongestPrefix/literal"), at("LeastLoad")
		if most := slices.Max(ours.RequestsPerPod); most > ours.Requests/2 {
			t.Errorf("%s: one pod of eight got %d of %d requests", name, most, ours.Requests)
		}
		if slices.Min(ours.RequestsPerPod) == 0 {
			t.Errorf("%s: a pod got nothing: %v", name, ours.RequestsPerPod)
		}
		if ours.TTFTSeconds.Mean > literal.TTFTSeconds.Mean || ours.TTFTSeconds.Mean > blind.TTFTSeconds.Mean || ours.HitRatio < blind.HitRatio {
			t.Errorf("%s: mean time to the first token %.3f s with %.2f hits; %.3f s under the literal longest prefix, %.3f s with %.2f hits by load alone",
				name, ours.TTFTSeconds.Mean, ours.HitRatio, literal.TTFTSeconds.Mean, blind.TTFTSeconds.Mean, blind.HitRatio)
		}
	}
}

// TestTheDefaultIsNearTheBest in small runs of each kind, on engines of both models, and when it takes speeds for a
// quarter or four times what they are. (The figures are those of sweeps: docs/policies.md.)
func TestTheDefaultIsNearTheBest(t *testing.T) {
	long(t)
	for _, tc := range []struct {
		workload string
		speed    float64
		uneven   bool
	}{{"", 0.7, false}, {"", 0.7, true}, {"agentic", 2, false}, {"rag", 1, true}, {"fanout", 0.5, false}} {
		w := slice(t).First(400)
		if tc.workload != "" {
			var err error
			if w, err = Generate(tc.workload, 500, 3); err != nil {
				t.Fatal(err)
			}
		}
		mean := func(strategy string) float64 {
			c := small(t, strategy)
			c.Workload, c.Speed, c.Uneven = w, tc.speed, tc.uneven
			return run(t, c).TTFTSeconds.Mean
		}
		best := min(mean("Unified"), mean("LMetric"), mean("LeastPendingWork"), mean("LongestPrefix"))
		for _, name := range []string{"MarginalCost", "MarginalCost*0.25", "MarginalCost*4"} {
			if ours := mean(name); ours > 1.15*best {
				t.Errorf("%+v: %s takes %.3f s to the first token in the mean, the best of four others %.3f s", tc, name, ours, best)
			}
		}
	}
}

// TestTheReportsSayWhatTheRunsSay: all three forms name each strategy, and what users wrote is escaped in the page.
func TestTheReportsSayWhatTheRunsSay(t *testing.T) {
	r := Report{Setup: Setup{Workload: "<b>w"}, Results: []*Result{{Strategy: "One", TTFTSeconds: Times{Mean: 0.25}}, {Strategy: "Two", HitRatio: 0.5}}}
	for name, write := range map[string]func(io.Writer) error{
		"html": r.WriteHTML, "json": r.WriteJSON, "table": func(w io.Writer) error { return r.WriteTable(w, true) },
	} {
		var out strings.Builder
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "One") || !strings.Contains(out.String(), "Two") || name == "html" && (strings.Contains(out.String(), "<b>w") || strings.Contains(out.String(), "ZgotmplZ")) {
			t.Errorf("%s:\n%s", name, out.String())
		}
	}
}
