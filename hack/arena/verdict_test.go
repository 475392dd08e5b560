//go:build unix

package main

import (
	"strings"
	"testing"
)

// TestTheVerdictNamesWhereOthersAreAhead beyond the interval and three parts of a hundred, and where Kvasir is clearly ahead of
// all.
func TestTheVerdictNamesWhereOthersAreAhead(t *testing.T) {
	var list []result
	add := func(c cell, router string, first, good []float64) {
		for i := range first {
			list = append(list, result{Router: router, Cell: c, Seed: uint64(i + 1),
				Figures: figures{First: latencies{Mean: first[i]}, Goodput: good[i]}})
		}
	}
	slow, fast, even, once := cell{Workload: "slow", Rate: 1}, cell{Workload: "fast", Rate: 1}, cell{Workload: "even", Rate: 1},
		cell{Workload: "once", Rate: 1}
	good := []float64{0.9, 0.9, 0.9}
	add(slow, "kvasir", []float64{2, 2.1, 1.9}, []float64{0.5, 0.52, 0.48})
	add(slow, "other", []float64{1.5, 1.6, 1.4}, []float64{0.7, 0.71, 0.69})
	add(fast, "kvasir", []float64{1, 1.1, 0.9}, good)
	add(fast, "other", []float64{2, 2.1, 1.9}, good)
	add(fast, "kvasir-engines", []float64{0.1, 0.1, 0.1}, good)
	add(fast, "third", []float64{1.5, 1.5, 1.5}, good)
	add(even, "kvasir", []float64{1, 3, 2}, good)
	add(even, "other", []float64{1.5, 1, 2}, good) // a better mean, within the interval
	add(once, "kvasir", []float64{1}, []float64{0.9})
	add(once, "other", []float64{0.9}, []float64{0.91})
	list = append(list, result{Router: "dynamo", Cell: fast, Seed: 1, Missing: "not run"})
	want := []string{
		"slow, 1/s: other is ahead in mean first token, by 0.50 s", "slow, 1/s: other is ahead in requests in time, by 0.200",
		"fast, 1/s: kvasir has its mean first token a fifth or more before", "once, 1/s: other is ahead in mean first token, by 0.10 s of",
		"4 cells. Others are ahead by more than 3 % beyond the interval 3 times. 1 comparisons have one seed",
	}
	got := verdict(list, "kvasir")
	for _, line := range want {
		if !strings.Contains(got, line) {
			t.Errorf("it lacks %q:\n%s", line, got)
		}
	}
	if n := strings.Count(got, "\n- ") + 1; n != 4 || strings.Contains(got, "even") || strings.Contains(got, "kvasir-engines") {
		t.Errorf("it says more than that:\n%s", got)
	}
	if got := verdict(list[:3], "kvasir"); got != "No router was compared with kvasir.\n" {
		t.Errorf("of one router alone: %q", got)
	}
}
