//go:build unix

package main

import (
	"fmt"
	"math"
	"strings"
)

const (
	// tolerated is by what part of Kvasir's figure another router can be ahead, beyond the confidence interval.
	tolerated = 0.03
	// clearly is the part of the best other router's mean first token that Kvasir's has to be below to be ahead clearly.
	clearly = 0.8
)

// verdict says in which cells another router is ahead of the one named base, and in how many base is ahead of all others
// by a fifth or more. Variants of base, whose names begin with its name, are not others. Figures are compared seed by seed.
func verdict(list []result, base string) string {
	var b strings.Builder
	cells, ahead, alone := 0, 0, 0
	for _, c := range distinct(list, func(r *result) cell { return r.Cell }) {
		var here []result
		for i := range list {
			if list[i].Cell == c && list[i].Missing == "" {
				here = append(here, list[i])
			}
		}
		best, compared := math.Inf(1), false
		for _, name := range distinct(here, func(r *result) string { return r.Router }) {
			if strings.HasPrefix(name, base) {
				continue
			}
			these, those := pairs(here, name, base)
			if len(these) == 0 {
				continue
			}
			compared = true
			first := func(r *result) float64 { return r.Figures.First.Mean }
			good := func(r *result) float64 { return r.Figures.Goodput }
			ours := meanOf(those, first)
			best = min(best, meanOf(these, first)/ours)
			// More than one seed is needed for an interval; of one, the difference itself counts.
			if by, half := advantage(those, these, first); by-half > tolerated*ours {
				ahead++
				fmt.Fprintf(&b, "- %s: %s is ahead in mean first token, by %.2f s%s of %.2f s\n", c, name, by, plusMinus(half), ours)
			}
			if by, half := advantage(these, those, good); by-half > tolerated*meanOf(those, good) {
				ahead++
				fmt.Fprintf(&b, "- %s: %s is ahead in requests in time, by %.3f%s of %.3f\n", c, name, by, plusMinus(half), meanOf(those, good))
			}
			if len(these) == 1 {
				alone++
			}
		}
		if compared {
			cells++
			if best*clearly >= 1 {
				fmt.Fprintf(&b, "- %s: %s has its mean first token a fifth or more before the best other router\n", c, base)
			}
		}
	}
	if cells == 0 {
		return "No router was compared with " + base + ".\n"
	}
	fmt.Fprintf(&b, "\n%d cells. Others are ahead by more than %.0f %% beyond the interval %d times.", cells, 100*tolerated, ahead)
	if alone > 0 {
		fmt.Fprintf(&b, " %d comparisons have one seed, and so no interval.", alone)
	}
	return b.String() + "\n"
}

// pairs are the runs of two routers with the same seeds, in the same order.
func pairs(list []result, router, base string) (these, those []result) {
	for i := range list {
		for j := range list {
			if list[i].Router == router && list[j].Router == base && list[i].Seed == list[j].Seed {
				these, those = append(these, list[i]), append(those, list[j])
				break
			}
		}
	}
	return these, those
}

func meanOf(list []result, value func(*result) float64) float64 {
	values := make([]float64, len(list))
	for i := range list {
		values[i] = value(&list[i])
	}
	return mean(values)
}

// advantage is by how much a's values are above b's in the mean, with half the width of the interval; 0 for one pair.
func advantage(a, b []result, value func(*result) float64) (by, half float64) {
	differences := make([]float64, len(a))
	for i := range a {
		differences[i] = value(&a[i]) - value(&b[i])
	}
	if by, half = interval(differences); math.IsInf(half, 1) {
		half = 0
	}
	return by, half
}

func plusMinus(half float64) string {
	if half == 0 {
		return ""
	}
	return fmt.Sprintf(" ± %.2g", half)
}
