package policy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// reusing makes it so that caches held a part of what the fleet was sent recently.
func reusing(candidates []Candidate, reuse float64) {
	for i := range candidates {
		l := &candidates[i].Load
		l.Prompted, l.Computed = 10_000, 10_000*(1-reuse)
	}
}

func firsts(t *testing.T, r *Request, candidates []Candidate) []float64 {
	t.Helper()
	out := make([]Cost, len(candidates))
	mustNew(t, Default(MarginalCost)).Score(r, candidates, out)
	first := make([]float64, len(out))
	for i := range out {
		first[i] = out[i].First
	}
	return first
}

// TestEvictingWhatNobodyWantsIsFree: without reuse the cost is what it is without a price on eviction; reuse never makes
// anything cheaper, and a request with next to nothing to compute pays next to nothing for it.
func TestEvictingWhatNobodyWantsIsFree(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 21))
	for range 300 {
		r := request(100 + rng.IntN(50_000))
		candidates := randomCandidates(rng, r, 6)
		for i := range candidates {
			candidates[i].Load.Rate = 0 // all are as fast as the prior
		}
		want := firsts(t, r, candidates)
		reusing(candidates, 0)
		for i, got := range firsts(t, r, candidates) {
			if got != want[i] {
				t.Fatalf("candidate %d costs %v, %v where nothing is used again", i, want[i], got)
			}
		}
		reuse := rng.Float64()
		reusing(candidates, reuse)
		for i, got := range firsts(t, r, candidates) {
			c := &candidates[i]
			more := evict(c, reuse) * float64(r.Uncached(c)) / load.AssumedRate * (1 + crowding*float64(c.Load.InFlight))
			if got < want[i] || math.Abs(got-want[i]-more) > 0.002+0.02*got {
				t.Fatalf("candidate %d, to compute %d tokens, costs %v, %v where %.2f is used again; want %v more", i, r.Uncached(c), want[i], got, reuse, more)
			}
		}
	}
}

// TestEvictingCostsMoreTheMoreIsWantedAgain: the price rises with the reuse and with the part of the cache that requests
// use, and is never less than nothing nor more than 19 times what is computed, whatever engines report.
func TestEvictingCostsMoreTheMoreIsWantedAgain(t *testing.T) {
	price := func(reuse, usage float64) float64 {
		c := candidate("a", 0, load.View{KVUsage: usage})
		return evict(&c, reuse)
	}
	const n, most = 20, 19.000001
	for i := range n + 1 {
		for j := range n + 1 {
			reuse, usage := float64(i)/n, float64(j)/n
			at := price(reuse, usage)
			if !(at >= 0) || at > most || (at == 0) != (i == 0 || j == 0) {
				t.Errorf("reuse %g, KV use %g: price %g", reuse, usage, at)
			}
			if i > 0 && at < price(reuse-1.0/n, usage) || j > 0 && at < price(reuse, usage-1.0/n) {
				t.Errorf("reuse %g, KV use %g: price %g is less than with less", reuse, usage, at)
			}
		}
	}
	if low, high := price(0.9, 0.2), price(0.9, 0.9); high < 3*low {
		t.Errorf("price %g at little KV use, %g at much", low, high)
	}
	for _, usage := range []float64{-1, 1.2, 50, math.Inf(1)} {
		if at := price(1, usage); !(at >= 0) || at > most {
			t.Errorf("KV use %g: price %g", usage, at)
		}
	}
	for _, l := range []load.View{{}, {Prompted: 100, Computed: 300}, {Computed: 5}, {Prompted: 100}} {
		if reuse := reuseOf([]Candidate{candidate("a", 0, l)}); !(reuse >= 0 && reuse <= 1) {
			t.Errorf("of %v tokens %v computed: reuse %g", l.Prompted, l.Computed, reuse)
		}
	}
}

// TestSessionsStayWhereCachesThrash: a wait that is worth a move while nothing is used again is not worth one where each
// block that the move writes evicts one that is used; and a prompt that no endpoint holds goes to the endpoint with the most
// room.
func TestSessionsStayWhereCachesThrash(t *testing.T) {
	r := request(30_000)
	session := func() []Candidate {
		view := load.View{Rate: 45_000, Trust: 1, KVTokens: 1_600_000, KVUsage: 0.8}
		waits, other := view, view
		waits.PendingTokens = 50_000
		return []Candidate{candidate("holds", uint32(r.Blocks-40), waits), candidate("other", 0, other)}
	}
	prompt := func() []Candidate {
		full := load.View{Rate: 45_000, Trust: 1, KVTokens: 1_600_000, KVUsage: 0.8}
		room := full
		room.KVUsage, room.PendingTokens = 0.4, 3000
		return []Candidate{candidate("full", 0, full), candidate("room", 0, room)}
	}
	p := mustNew(t, Default(MarginalCost))
	for name, tc := range map[string]struct {
		candidates    []Candidate
		without, with int
	}{
		"a session whose pod is busy": {session(), 1, 0},
		"a prompt that no pod holds":  {prompt(), 0, 1},
	} {
		if got := choose(p, r, tc.candidates)[0]; got != tc.without {
			t.Errorf("%s: candidate %d was chosen where nothing is used again", name, got)
		}
		reusing(tc.candidates, 0.9)
		if got := choose(p, r, tc.candidates)[0]; got != tc.with {
			t.Errorf("%s: candidate %d was chosen where most is used again", name, got)
		}
	}
}

// Tokens that another endpoint sends take as many places as those that are computed there.
func TestWhatIsLoadedTakesItsPlace(t *testing.T) {
	p := marginalCost{prior: 10_000}
	r := &Request{PromptTokens: 8000, BlockTokens: 16, Blocks: 500}
	candidates := make([]Candidate, 2)
	for i := range candidates {
		candidates[i].Match.Tiers[0] = 500
		candidates[i].Load = load.View{KVUsage: 0.6, Prompted: 1000, Computed: 200}
	}
	candidates[1].Loads = 7000
	costs := make([]Cost, 2)
	p.Score(r, candidates, costs)
	if costs[1].First <= costs[0].First {
		t.Errorf("a prompt that is there costs %v s, one that is loaded %v", costs[0].First, costs[1].First)
	}
	candidates[1].Loads, candidates[0].Load.KVUsage, candidates[1].Load.KVUsage = 0, 0, 0
	p.Score(r, candidates, costs)
	if costs[0] != costs[1] {
		t.Errorf("equal endpoints cost %v and %v", costs[0], costs[1])
	}
}
