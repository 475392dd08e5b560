//go:build unix

package main

import (
	"math"
	"slices"
	"time"
)

// latencies summarize the first tokens of a run, in seconds. A request that has failed counts with the limit, so that no
// router gains by failing.
type latencies struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// summarize returns the latencies, the share of requests whose first token came within a bound and which have not failed,
// and the number of failures by kind.
func summarize(list []outcome, bound, limit time.Duration) (latencies, float64, map[string]int) {
	first, good, failures := make([]float64, len(list)), 0, map[string]int{}
	for i, o := range list {
		first[i] = o.first.Seconds()
		switch {
		case o.failure != "":
			first[i] = limit.Seconds()
			failures[o.failure]++
		case o.first <= bound:
			good++
		}
	}
	slices.Sort(first)
	return latencies{Mean: mean(first), P50: quantile(first, 0.5), P90: quantile(first, 0.9), P99: quantile(first, 0.99)},
		float64(good) / float64(max(1, len(list))), failures
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return sum / float64(max(1, len(list)))
}

// quantile is the smallest value of a sorted list that at least the share q does not exceed.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// student are the 97.5 % points of Student's distribution with 1, 2, ... degrees of freedom.
var student = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}

// interval is the mean of paired differences, and half the width of its confidence interval of 95 %. One pair has no
// interval: half is infinite.
func interval(differences []float64) (middle, half float64) {
	n := len(differences)
	middle = mean(differences)
	if n < 2 {
		return middle, math.Inf(1)
	}
	sum := 0.0
	for _, d := range differences {
		sum += (d - middle) * (d - middle)
	}
	t := student[min(n-1, len(student))-1] // beyond ten the last one, which is slightly too wide
	return middle, t * math.Sqrt(sum/float64(n-1)/float64(n))
}
