package policy

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestTheDefaultWeighsWhatItShould holds the default strategy to what it must not get wrong, one choice each; the first
// candidate is the right one.
func TestTheDefaultWeighsWhatItShould(t *testing.T) {
	learned := func(v load.View) load.View {
		v.Rate, v.PairSeconds, v.Overhead, v.Trust, v.KVTokens = 45_000, 1.2e-9, 0.01, 1, 400_000
		return v
	}
	lower := func(tier kvblock.Tier, blocks uint32) Candidate {
		c := candidate("lower", 0, learned(load.View{}))
		c.Match = kvindex.Match{}
		c.Match.Tiers[tier] = blocks
		return c
	}
	for name, tc := range map[string]struct {
		tokens     int
		candidates []Candidate
	}{
		"a long match is worth a short wait": {20_000, []Candidate{
			candidate("holds", 1200, learned(load.View{InFlight: 1, Prefilling: 1, PendingTokens: 2000})), candidate("idle", 0, learned(load.View{})),
		}},
		"a short match is not worth a long wait": {2000, []Candidate{
			candidate("idle", 0, learned(load.View{})), candidate("holds", 100, learned(load.View{InFlight: 1, Prefilling: 1, PendingTokens: 40_000})),
		}},
		"a prompt of 100,000 tokens ahead is more than twice two of 50,000": {2000, []Candidate{
			candidate("two", 0, learned(load.View{InFlight: 2, PendingTokens: 100_000, PendingPairs: 2 * 50_000 * 25_000})),
			candidate("one", 0, learned(load.View{InFlight: 2, PendingTokens: 100_000, PendingPairs: 100_000 * 50_000})),
		}},
		"a new pod is filled though nothing is known of it": {4000, []Candidate{
			candidate("new", 0, load.View{KVTokens: 400_000}), candidate("busy", 0, learned(load.View{InFlight: 3, PendingTokens: 9000})),
		}},
		"short of KV blocks is passed over": {20_000, []Candidate{
			candidate("free", 0, learned(load.View{KVUsage: 0.3})), candidate("full", 300, learned(load.View{KVUsage: 0.94})),
		}},
		"decodes are kept balanced": {2000, []Candidate{
			candidate("few", 0, learned(load.View{InFlight: 2, Decoding: 2})), candidate("many", 0, learned(load.View{InFlight: 40, Decoding: 40})),
		}},
		"a fast tier is worth its reload": {20_000, []Candidate{lower(kvblock.CPU, 1200), candidate("cold", 0, learned(load.View{}))}},
		"a long prompt that no endpoint holds does not wait long for few requests": {80_000, []Candidate{
			candidate("many", 0, learned(load.View{InFlight: 14, Decoding: 14, Utilisation: 0.9, Queue: 2})),
			candidate("few", 0, learned(load.View{InFlight: 4, Decoding: 2, Prefilling: 2, PendingTokens: 180_000, PendingPairs: 8e9, Utilisation: 0.9, Queue: 2})),
		}},
		"contexts that wait for blocks count with what they delay": {60_000, []Candidate{
			candidate("room", 2000, learned(load.View{InFlight: 57, KVUsage: 0.5})),
			candidate("jammed", 3700, learned(load.View{InFlight: 68, KVUsage: 0.97, PendingContext: 400_000})),
		}},
		"a slow tier is not": {20_000, []Candidate{candidate("gpu", 1100, learned(load.View{})), lower(kvblock.Disk, 1200)}},
	} {
		r := request(tc.tokens)
		r.ReloadRate[kvblock.CPU], r.ReloadRate[kvblock.Disk] = 1e6, 30_000
		p := mustNew(t, Default(MarginalCost))
		if got := choose(p, r, tc.candidates)[0]; got != 0 {
			t.Errorf("%s: chose candidate %d", name, got)
		}
	}
}

// TestWasteCostsMoreWhereTheFleetIsBusy: what an idle fleet spreads, a busy one keeps together.
func TestWasteCostsMoreWhereTheFleetIsBusy(t *testing.T) {
	choice := func(utilisation float64) int {
		view := load.View{Rate: 45_000, Trust: 1, Utilisation: utilisation}
		waits := view
		waits.PendingTokens = 9000 // a little more than the 8000 that it would spare
		return choose(mustNew(t, Default(MarginalCost)), request(8200), []Candidate{candidate("idle", 0, view), candidate("holds", 500, waits)})[0]
	}
	if idle, busy := choice(0), choice(0.7); idle != 0 || busy != 1 {
		t.Errorf("an idle fleet chose %d, a busy one %d; want 0 and 1", idle, busy)
	}
}

// TestWhoMisjudgesAllSpeedsChoosesAlike: every price is made of learned speeds, so that only their ratios matter.
func TestWhoMisjudgesAllSpeedsChoosesAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 11))
	p := mustNew(t, Default(MarginalCost))
	differ := 0
	for range 500 {
		r := request(1000 + rng.IntN(60_000))
		candidates := randomCandidates(rng, r, 8)
		for i := range candidates {
			l := &candidates[i].Load
			l.Rate, l.PairSeconds, l.ContextSeconds, l.Trust = 10_000, 2e-9, 1e-7, 1 // slow, so that steps of 1 ms are short
			l.PendingPairs, l.DecodingTokens = l.PendingTokens*5000, float64(l.Decoding)*4000
			l.KVUsage, l.KVTokens = rng.Float64(), 400_000
			l.Prompted, l.Computed = 1000, 300
		}
		want := choose(p, r, candidates)[0]
		for _, factor := range []float64{0.25, 4} {
			for i := range candidates {
				l := &candidates[i].Load
				l.Rate, l.PairSeconds, l.ContextSeconds = 10_000*factor, 2e-9/factor, 1e-7/factor
			}
			if choose(p, r, candidates)[0] != want {
				differ++
			}
		}
	}
	if differ > 40 { // of 1000: costs that are within a step of each other
		t.Errorf("%d of 1000 choices change when all speeds are taken for a quarter or four times", differ)
	}
}

// TestEqualTimesAreEqualWhateverTheyAreMadeOf: two engines of one speed, which have been learned from prompts so much
// alike that one is thought to spend its time on tokens and the other on pairs, share what is new.
func TestEqualTimesAreEqualWhateverTheyAreMadeOf(t *testing.T) {
	tokens := load.View{Rate: 20_000, PairSeconds: 0, Trust: 1}
	pairs := load.View{Rate: 160_000, PairSeconds: 1.75e-9, Trust: 1} // the same for 4000 tokens behind 23,000
	p := mustNew(t, Default(MarginalCost))
	picks := [2]int{}
	for n := range 1000 {
		a, b := tokens, pairs
		for _, l := range []*load.View{&a, &b} {
			l.InFlight, l.Prefilling, l.PendingTokens, l.PendingPairs = 2, 2, 8000, 8000*25_000
		}
		r := request(27_000)
		r.Prefix = endpoint.Mix(uint64(n))
		held := uint32(23_000 / r.BlockTokens)
		picks[choose(p, r, []Candidate{candidate("tokens", held, a), candidate("pairs", held, b)})[0]]++
	}
	if picks[0] < 300 || picks[1] < 300 {
		t.Errorf("of 1000 prompts, %v went to each of two equal engines", picks)
	}
}
