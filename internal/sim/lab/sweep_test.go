package lab

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
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
	if len(cells) != 1 || len(cells[0].Speeds) != 1 || cells[0].Speeds[0] <= 0 {
		t.Fatalf("cells %+v", cells)
	}
	if ranks := Ranking(cells); len(ranks) != 2 || ranks[0].Strategy != "MarginalCost" {
		t.Errorf("ranking %+v", ranks)
	}
}

// TestSeedsDrawOtherWorkloads: of what is generated another seed makes other requests, the same seed the same.
func TestSeedsDrawOtherWorkloads(t *testing.T) {
	for _, name := range Generated() {
		w, err := Generate(name, 50, 1)
		if err != nil {
			t.Fatal(err)
		}
		prompts := func(seed uint64) (all []int) {
			drawn, err := w.Drawn(seed)
			if err != nil || len(drawn.Requests) != len(w.Requests) {
				t.Fatal(len(drawn.Requests), err)
			}
			for i := range drawn.Requests {
				all = append(all, drawn.Requests[i].Input)
			}
			return all
		}
		if slices.Equal(prompts(1), prompts(2)) || !slices.Equal(prompts(2), prompts(2)) {
			t.Errorf("%s: seeds draw %v, %v and again %v", name, prompts(1), prompts(2), prompts(2))
		}
	}
}

// TestAStarMakesAStrategyMisjudge: LMetric knows no speeds and stays as it is; a strategy with a rate error is never counted
// as the best.
func TestAStarMakesAStrategyMisjudge(t *testing.T) {
	list, err := Strategies("MarginalCost*4,LMetric,LMetric*0.25")
	if err != nil || list[0].Name != "MarginalCost*4" || list[0].RateError != 4 || list[2].RateError != 0.25 {
		t.Fatalf("%+v: %v", list, err)
	}
	for _, wrong := range []string{"MarginalCost*", "MarginalCost*0", "MarginalCost*-1", "Nobody*2"} {
		if _, err := Strategies(wrong); err == nil {
			t.Errorf("%s: accepted", wrong)
		}
	}
	at := func(s Strategy) *Result {
		c := small(t, "LMetric")
		c.Strategy = s
		return run(t, c)
	}
	if a, b := at(list[1]).TTFTSeconds, at(list[2]).TTFTSeconds; a != b {
		t.Errorf("LMetric's times change from %+v to %+v", a, b)
	}
	ranks := Ranking([]*Cell{{Scores: []Score{{Strategy: "x", TTFTMean: 2, TTFTP99: 2, E2EMean: 2}, {Strategy: "x*4", TTFTMean: 1, TTFTP99: 1, E2EMean: 1, RateError: 4}}}})
	if ranks[1].Strategy != "x" || ranks[1].TTFT != 1 || ranks[0].TTFT != 0.5 {
		t.Errorf("ranking %+v", ranks)
	}
}

// TestThereIsAlwaysABest: where only strategies run that misjudge, or that have not sent all requests, they are held
// against the best of these.
func TestThereIsAlwaysABest(t *testing.T) {
	score := func(name string, seconds, rateError float64, shed int) Score {
		return Score{Strategy: name, TTFTMean: seconds, TTFTP99: seconds, E2EMean: seconds, HitRatio: 0.5, RateError: rateError, Shed: shed}
	}
	for name, tc := range map[string]struct {
		scores []Score
		want   map[string]float64
	}{
		"only strategies that misjudge":       {[]Score{score("a*4", 1, 4, 0), score("b*4", 3, 4, 0)}, map[string]float64{"a*4": 1, "b*4": 3}},
		"only strategies that send a part":    {[]Score{score("a", 1, 0, 5), score("b", 2, 0, 1)}, map[string]float64{"a": 1, "b": 2}},
		"misjudging is no worse than a part":  {[]Score{score("a*4", 2, 4, 0), score("b", 1, 0, 1)}, map[string]float64{"a*4": 1, "b": 0.5}},
		"those that know speeds and send all": {[]Score{score("a*4", 1, 4, 0), score("b", 4, 0, 0), score("c", 2, 0, 9)}, map[string]float64{"a*4": 0.25, "b": 1, "c": 0.5}},
	} {
		got := map[string]float64{}
		for _, r := range Ranking([]*Cell{{Scores: tc.scores}}) {
			if got[r.Strategy] = r.TTFT; r.P99 != r.TTFT || r.E2E != r.TTFT || math.Abs(r.TTFTWorst-r.TTFT) > 1e-9 {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestWhatIsKnownIsNotRunAgain: a sweep that goes on ends as one that was never interrupted.
func TestWhatIsKnownIsNotRunAgain(t *testing.T) {
	w, err := Generate("chat", 60, 1)
	if err != nil {
		t.Fatal(err)
	}
	m := Matrix{
		Workloads: []*Workload{w}, Loads: []float64{0.3, 0.6}, Pods: []int{2}, KVTokens: []int{0}, Profiles: []enginemodel.Profile{profile(t, "8b-h100")},
		Strategies: []Strategy{only(t, "LMetric")}, Seeds: []uint64{1, 2}, BlockTokens: 128, Uneven: true,
	}
	all, err := m.Run(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Known = all[:1]
	ran := 0
	again, err := m.Run(context.Background(), func(int, int, *Cell) { ran++ })
	if err != nil || ran != 1 || again[0] != all[0] || !slices.Equal(again[1].Scores, all[1].Scores) {
		t.Errorf("%d run again, %v: %+v, first %+v", ran, err, again[1], all[1])
	}
}

// TestASweepStopsWhenItIsToldTo: nothing more is run, neither configurations nor what finds their rates.
func TestASweepStopsWhenItIsToldTo(t *testing.T) {
	w, err := Generate("chat", 60, 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m := Matrix{
		Workloads: []*Workload{w}, Loads: []float64{0.3}, Pods: []int{2}, KVTokens: []int{0}, Profiles: []enginemodel.Profile{profile(t, "8b-h100")},
		Strategies: []Strategy{only(t, "LMetric")}, Seeds: []uint64{1}, BlockTokens: 128,
	}
	cells, err := m.Run(ctx, nil)
	if !errors.Is(err, context.Canceled) || len(cells[0].Speeds) != 0 {
		t.Errorf("%v, speeds %v", err, cells[0].Speeds)
	}
}

// TestWhatNoEngineCanTakeMakesNoStrategyIncomparable: a prompt that is longer than any context is left out of a sweep,
// and strategies are still compared by the rest.
func TestWhatNoEngineCanTakeMakesNoStrategyIncomparable(t *testing.T) {
	chat, err := Generate("chat", 60, 1)
	if err != nil {
		t.Fatal(err)
	}
	chat.Requests[7].Input, chat.drawn = contextLimit+1, nil
	m := Matrix{
		Workloads: []*Workload{chat}, Loads: []float64{0.5}, Pods: []int{2}, KVTokens: []int{0},
		Profiles: []enginemodel.Profile{profile(t, "8b-h100")}, Seeds: []uint64{1}, BlockTokens: 128, Strategies: []Strategy{only(t, "MarginalCost"), only(t, "RoundRobin")},
	}
	cells, err := m.Run(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Ranking(cells) {
		if r.Incomparable || !(r.TTFT >= 1) {
			t.Errorf("%+v: it has sent all that can be sent", r)
		}
	}
}
