//go:build unix

package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// result is one run of one router.
type result struct {
	Router  string  `json:"router"`
	Version string  `json:"version,omitempty"`
	Cell    cell    `json:"cell"`
	Seed    uint64  `json:"seed"`
	Missing string  `json:"missing,omitempty"` // why it did not run
	Figures figures `json:"figures,omitzero"`
	// Started is the beginning of the run.
	Started time.Time `json:"started,omitzero"`
}

// cell is what all routers are compared in.
type cell struct {
	Workload string  `json:"workload"`
	Rate     float64 `json:"rate"`             // requests per second
	Killed   string  `json:"killed,omitempty"` // engine or router; empty for neither
}

// String is the cell's title.
func (c cell) String() string {
	s := fmt.Sprintf("%s, %g/s", c.Workload, c.Rate)
	if c.Killed != "" {
		s += ", " + c.Killed + " killed"
	}
	return s
}

// figures are what a run has measured.
type figures struct {
	Requests int            `json:"requests"`
	Hits     float64        `json:"hits"` // share of prompt tokens that the engines found in their caches
	First    latencies      `json:"first"`
	Goodput  float64        `json:"goodput"` // share of requests with the first token in time
	Failures map[string]int `json:"failures,omitempty"`
	CPU      float64        `json:"cpu"`    // seconds of the router for 1,000 requests
	Memory   int            `json:"memory"` // of the router, bytes, at the most
}

// failures are the failed requests of runs, and their kinds.
func failures(list []result) string {
	all, total := map[string]int{}, 0
	for i := range list {
		for kind, n := range list[i].Figures.Failures {
			all[kind] += n
			total += n
		}
	}
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", all[kind], kind))
	}
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(kinds, ", "))
}

// tables writes a Markdown table for each cell, each row the mean over the seeds. The last columns compare with the router
// named base, seed by seed.
func tables(list []result, base string) string {
	var b strings.Builder
	for _, c := range distinct(list, func(r *result) cell { return r.Cell }) {
		here := slices.DeleteFunc(slices.Clone(list), func(r result) bool { return r.Cell != c })
		fmt.Fprintf(&b, "**%s**\n\n", c)
		b.WriteString("| router | seeds | hits | first token mean | p50 | p90 | p99 | in time | failed | CPU s/1,000 | MiB " +
			"| first token − " + base + "'s |\n")
		b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		names := distinct(here, func(r *result) string { return r.Router })
		slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(rank(here, x), rank(here, y)) })
		for _, name := range names {
			b.WriteString(row(here, name, base))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// rank orders rows by mean first token; those that did not run are last.
func rank(list []result, router string) float64 {
	if ran := of(list, router); len(ran) > 0 {
		return average(ran, func(f *figures) float64 { return f.First.Mean })
	}
	return math.Inf(1)
}

// of are the runs of a router that took place.
func of(list []result, router string) []result {
	return slices.DeleteFunc(slices.Clone(list), func(r result) bool { return r.Router != router || r.Missing != "" })
}

func average(list []result, value func(*figures) float64) float64 {
	values := make([]float64, len(list))
	for i := range list {
		values[i] = value(&list[i].Figures)
	}
	return mean(values)
}

func row(list []result, router, base string) string {
	ran := of(list, router)
	if len(ran) == 0 {
		i := slices.IndexFunc(list, func(r result) bool { return r.Router == router })
		return fmt.Sprintf("| %s | NOT RUN: %s | | | | | | | | | | |\n", router, list[i].Missing)
	}
	get := func(value func(*figures) float64) float64 { return average(ran, value) }
	return fmt.Sprintf("| %s | %d | %.3f | %.2f | %.2f | %.2f | %.2f | %.3f | %s | %.2f | %.0f | %s |\n", router, len(ran),
		get(func(f *figures) float64 { return f.Hits }), get(func(f *figures) float64 { return f.First.Mean }),
		get(func(f *figures) float64 { return f.First.P50 }), get(func(f *figures) float64 { return f.First.P90 }),
		get(func(f *figures) float64 { return f.First.P99 }), get(func(f *figures) float64 { return f.Goodput }), failures(ran),
		get(func(f *figures) float64 { return f.CPU }), get(func(f *figures) float64 { return float64(f.Memory) / (1 << 20) }),
		difference(ran, of(list, base)))
}

// difference is the mean of the differences in mean first token, seed by seed, with its interval.
func difference(these, those []result) string {
	var differences []float64
	for i := range these {
		j := slices.IndexFunc(those, func(r result) bool { return r.Seed == these[i].Seed })
		if j >= 0 && these[i].Router != those[j].Router {
			differences = append(differences, these[i].Figures.First.Mean-those[j].Figures.First.Mean)
		}
	}
	switch middle, half := interval(differences); {
	case len(differences) == 0:
		return ""
	case math.IsInf(half, 1):
		return fmt.Sprintf("%+.2f", middle)
	default:
		return fmt.Sprintf("%+.2f ± %.2f", middle, half)
	}
}

// distinct values of a list, in the order of their first appearance.
func distinct[T comparable](list []result, value func(*result) T) []T {
	var out []T
	for i := range list {
		if v := value(&list[i]); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
