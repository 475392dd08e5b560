package lab

import (
	"context"
	"math"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/enginemodel"
)

func TestASweepRunsEveryWorkloadAtEveryLoadInDifferentFleets(t *testing.T) {
	w := []*Workload{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	m := Matrix{
		Workloads: w, Loads: []float64{0.3, 0.6, 0.9}, Pods: []int{8, 16}, KVTokens: []int{0, 1_600_000},
		Profiles: []enginemodel.Profile{profile(t, "8b-h100"), profile(t, "70b-tp4-h100")},
	}
	pairs, fleets := map[[2]any]int{}, map[[3]any]int{}
	for _, c := range m.Cells() {
		pairs[[2]any{c.Workload, c.Load}]++
		fleets[[3]any{c.Pods, c.KVTokens == 1_600_000, c.Profile}]++
	}
	for pair, n := range pairs {
		if n != 2 {
			t.Errorf("%v runs in %d fleets, want 2", pair, n)
		}
	}
	if len(pairs) != 9 || len(fleets) != 8 {
		t.Errorf("%d of 9 workloads and loads, %d of 8 fleets", len(pairs), len(fleets))
	}
	if m.Full = true; len(m.Cells()) != 72 {
		t.Errorf("the full matrix has %d cells, want 72", len(m.Cells()))
	}
}

func TestTheRankingIsRelativeToTheBestOfEachConfiguration(t *testing.T) {
	cells := []*Cell{
		{Workload: "a", Scores: []Score{{Strategy: "x", TTFTMean: 1, TTFTP99: 2, E2EMean: 1, HitRatio: 0.5}, {Strategy: "y", TTFTMean: 2, TTFTP99: 2, E2EMean: 1, HitRatio: 0.25}, {Strategy: "z", TTFTMean: 0.1, TTFTP99: 0.1, E2EMean: 0.1, Dropped: 1}}},
		{Workload: "b", Scores: []Score{{Strategy: "x", TTFTMean: 8, TTFTP99: 1, E2EMean: 1, HitRatio: 0.5}, {Strategy: "y", TTFTMean: 1, TTFTP99: 1, E2EMean: 4, HitRatio: 0.5}, {Strategy: "z", TTFTMean: 0.1, TTFTP99: 0.1, E2EMean: 0.1}}},
	}
	ranks := map[string]Rank{}
	for _, r := range Ranking(cells) {
		ranks[r.Strategy] = r
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	x, y := ranks["x"], ranks["y"]
	if !near(x.TTFT, math.Sqrt(8)) || !near(x.TTFTWorst, 8) || x.Wins != 1 || !near(y.TTFT, math.Sqrt(2)) || !near(y.E2E, 2) || !near(y.Hit, 0.75) {
		t.Errorf("x %+v\ny %+v", x, y)
	}
	if !ranks["z"].Incomparable {
		t.Error("a strategy that has left requests out counts as the best")
	}
}

// TestASweepRuns runs a small sweep from end to end: a strategy that knows no cache is far from the default one.
func TestASweepRuns(t *testing.T) {
	rag, err := Generate("rag", 500, 1)
	if err != nil {
		t.Fatal(err)
	}
	list, err := Strategies("MarginalCost,RoundRobin")
	if err != nil {
		t.Fatal(err)
	}
	m := Matrix{
		Workloads: []*Workload{rag}, Loads: []float64{0.6}, Pods: []int{4}, KVTokens: []int{0}, Profiles: []enginemodel.Profile{profile(t, "8b-h100")},
		Strategies: list, Seeds: []uint64{1}, BlockTokens: 128, Parallel: 2,
	}
	cells, err := m.Run(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(cells) != 1 || cells[0].Speed <= 0 {
		t.Fatalf("cells %+v", cells)
	}
	if ranks := Ranking(cells); len(ranks) != 2 || ranks[0].Strategy != "MarginalCost" {
		t.Errorf("ranking %+v", ranks)
	}
}
