package modelroute

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// rule is one with backends of these weights.
func rule(weights ...int) *Rule {
	r := &Route{Namespace: "default", Name: "chat", Rules: []Rule{{}}}
	for i, w := range weights {
		r.Rules[0].Backends = append(r.Rules[0].Backends, Backend{Pool: fmt.Sprint("default/pool-", i), Weight: w})
	}
	return &r.Prepared().Rules[0]
}

// within fails unless a number of hits in n trials is within five standard deviations of what a share makes likely.
func within(t *testing.T, what string, hits, n int, share float64) {
	t.Helper()
	want := share * float64(n)
	if off := 5*math.Sqrt(want*(1-share)) + 1e-9; math.Abs(float64(hits)-want) > off {
		t.Errorf("%s: %d of %d, want %.0f to %.0f", what, hits, n, want-off, want+off)
	}
}

const draws = 50_000

func TestEachBackendGetsItsShare(t *testing.T) {
	for _, weights := range [][]int{{1}, {1, 1}, {99, 1}, {0, 3, 1}, {1, 2, 3, 4}, {1_000_000, 1}, {7, 0, 0}} {
		r, random, sum := rule(weights...), rand.New(rand.NewPCG(1, 2)), 0
		for _, w := range weights {
			sum += w
		}
		counts := make([]int, len(weights))
		for range draws {
			counts[r.Choose(random.Uint64())]++
		}
		for i, w := range weights {
			within(t, fmt.Sprintf("weights %v, backend %d", weights, i), counts[i], draws, float64(w)/float64(sum))
		}
	}
}

func TestWithoutWeightsNothingIsChosen(t *testing.T) {
	if got := rule(0, 0).Choose(1); got != -1 {
		t.Errorf("backend %d was chosen", got)
	}
}

// TestAChangedWeightMovesOnlyThatMuch: a session moves only to a backend whose weight grows in relation to that of the one it leaves. If
// the others keep theirs in relation to each other, so many sessions move as the changed share says, and no more.
func TestAChangedWeightMovesOnlyThatMuch(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after []int
		moved         float64 // share of the sessions; -1 where the law does not say
	}{
		"a canary grows":              {[]int{95, 5}, []int{80, 20}, 0.15},
		"a canary ends":               {[]int{80, 20}, []int{100, 0}, 0.2},
		"a canary is all":             {[]int{80, 20}, []int{0, 100}, 0.8},
		"the same in other units":     {[]int{4, 1}, []int{400, 100}, 0},
		"a third one takes from both": {[]int{1, 1, 0}, []int{1, 1, 2}, 0.5},
		"one of three gives to one":   {[]int{50, 30, 20}, []int{40, 30, 30}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			before, after, random := rule(tc.before...), rule(tc.after...), rand.New(rand.NewPCG(3, 4))
			moved := 0
			for range draws {
				draw := random.Uint64()
				from, to := before.Choose(draw), after.Choose(draw)
				if from == to {
					continue
				}
				moved++
				if tc.after[to]*tc.before[from] <= tc.after[from]*tc.before[to] {
					t.Fatalf("a session moves from backend %d to %d, whose weight does not grow beside it", from, to)
				}
			}
			if tc.moved >= 0 {
				within(t, "sessions that move", moved, draws, tc.moved)
			}
		})
	}
}

// TestTheOrderOfBackendsHasNoEffect: so that a route that is written in another order moves no session.
func TestTheOrderOfBackendsHasNoEffect(t *testing.T) {
	r := rule(3, 2, 1)
	other := &Rule{Backends: slices.Clone(r.Backends)}
	slices.Reverse(other.Backends)
	for draw := range uint64(10_000) {
		if a, b := r.Backends[r.Choose(draw)].Pool, other.Backends[other.Choose(draw)].Pool; a != b {
			t.Fatalf("draw %d: %s and, in the reverse order, %s", draw, a, b)
		}
	}
}

// TestRoutesDrawApart: the sessions of one route's canary are not those of another's.
func TestRoutesDrawApart(t *testing.T) {
	a := rule(1, 1)
	b := (&Route{Namespace: "default", Name: "other", Rules: []Rule{{Backends: a.Backends}}}).Prepared()
	same, random := 0, rand.New(rand.NewPCG(5, 6))
	for range draws {
		draw := random.Uint64()
		if a.Choose(draw) == b.Rules[0].Choose(draw) {
			same++
		}
	}
	within(t, "sessions on the same side of two routes", same, draws, 0.5)
}

func TestAMatchHoldsIfAllOfItDoes(t *testing.T) {
	header := func(name string) string { return map[string]string{"x-canary": "yes", "x-empty": ""}[name] }
	for name, tc := range map[string]struct {
		match Match
		want  bool
	}{
		"nothing":                    {Match{}, true},
		"the tenant":                 {Match{Tenant: "acme"}, true},
		"another tenant":             {Match{Tenant: "other"}, false},
		"a header":                   {Match{Headers: []Header{{"x-canary", "yes"}}}, true},
		"a header in another case":   {Match{Headers: []Header{{"x-canary", "Yes"}}}, false},
		"a header that is missing":   {Match{Headers: []Header{{"x-other", "yes"}}}, false},
		"both":                       {Match{Tenant: "acme", Headers: []Header{{"x-canary", "yes"}}}, true},
		"the tenant, not the header": {Match{Tenant: "acme", Headers: []Header{{"x-canary", "no"}}}, false},
	} {
		if got := tc.match.Holds("acme", header); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if (&Match{Headers: []Header{{"x-canary", "yes"}}}).Holds("", nil) {
		t.Error("a header matches a request without headers")
	}
}

func BenchmarkChoose(b *testing.B) {
	r := rule(95, 5)
	for i := range b.N {
		r.Choose(uint64(i))
	}
}

// TestAMirrorTakesItsPercent of the draws, whatever the backend and the other mirrors get; with 0 none and with 100 all. A higher percentage
// takes what a lower one took, too.
func TestAMirrorTakesItsPercent(t *testing.T) {
	mirrors := func(percent int) *Rule {
		return &(&Route{Namespace: "default", Name: "chat", Rules: []Rule{{
			Backends: []Backend{{Pool: "default/a", Weight: 1}, {Pool: "default/b", Weight: 1}},
			Mirrors:  []Mirror{{Backend{Pool: "default/a"}, percent}, {Backend{Pool: "default/c"}, percent}},
		}}}).Prepared().Rules[0]
	}
	for _, percent := range []int{0, 1, 10, 50, 99, 100} {
		r, more := mirrors(percent), mirrors(min(100, percent+7))
		random := rand.New(rand.NewPCG(3, 4))
		var taken, both, ofFirst, first int
		for range draws {
			draw := random.Uint64()
			is := r.Mirrors[0].Takes(draw)
			if is && !more.Mirrors[0].Takes(draw) {
				t.Fatalf("a draw that is taken with %d %% is not with more", percent)
			}
			if r.Choose(draw) == 0 {
				first++
				ofFirst += map[bool]int{true: 1}[is]
			}
			taken += map[bool]int{true: 1}[is]
			both += map[bool]int{true: 1}[is && r.Mirrors[1].Takes(draw)]
		}
		share := float64(percent) / 100
		within(t, fmt.Sprint(percent, " %"), taken, draws, share)
		within(t, fmt.Sprint(percent, " % at both"), both, draws, share*share)
		within(t, fmt.Sprint(percent, " % of one backend's"), ofFirst, first, share)
	}
}
