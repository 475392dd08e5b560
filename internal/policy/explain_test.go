package policy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// allTypes are the strategies there are.
var allTypes = []Type{
	MarginalCost, StickyLeastLoaded, LongestPrefix, LMetric, LeastPendingWork, Unified, Sticky, LeastLoad, RoundRobin, Random,
	Rendezvous, ApproximatePrefix,
}

func anyQuestion(rng *rand.Rand) (*Request, []Candidate) {
	r := &Request{PromptTokens: 1 + rng.IntN(20_000), BlockTokens: 16, Session: rng.Uint64(), Prefix: rng.Uint64(), Chunks: rng.IntN(100)}
	r.Blocks = (r.PromptTokens - 1) / r.BlockTokens
	r.Credit = [kvblock.NumTiers]float64{1, 0.8, 0.3, 0.1}
	r.ReloadRate = [kvblock.NumTiers]float64{0, 200_000, 50_000, 0}
	candidates := make([]Candidate, 1+rng.IntN(9))
	for i := range candidates {
		c := &candidates[i]
		c.Hash, c.Delay, c.Routed = rng.Uint64(), float64(rng.IntN(3))/10, rng.IntN(100)
		c.Match = kvindex.Match{Tiers: [kvblock.NumTiers]uint32{uint32(rng.IntN(500)), uint32(rng.IntN(50))}, Speculative: uint32(rng.IntN(20))}
		c.Load = load.View{
			InFlight: rng.IntN(20), PendingTokens: float64(rng.IntN(50_000)), KVUsage: rng.Float64(), KVTokens: rng.IntN(2) * 500_000,
			Rate: float64(rng.IntN(2)) * 15_000, Trust: rng.Float64(), Overhead: 0.02, Utilisation: rng.Float64(), Queue: rng.Float64() * 3,
			PendingContext: float64(rng.IntN(50_000)), DecodingTokens: float64(rng.IntN(50_000)), ContextSeconds: 1e-8, PairSeconds: 1e-10,
			Prompted: 10_000, Computed: float64(rng.IntN(10_000)),
		}
	}
	r.Home = candidates[rng.IntN(len(candidates))].Hash
	return r, candidates
}

// TestTermsMakeUpTheCost: what is shown to people is what decides.
func TestTermsMakeUpTheCost(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p, err := New(Default(MarginalCost))
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		r, candidates := anyQuestion(rng)
		costs := make([]Cost, len(candidates))
		p.Score(r, candidates, costs)
		e := Explain(p, r, candidates)
		for i, terms := range e.Candidates {
			v := map[string]float64{}
			for _, term := range terms {
				v[term.Name] = term.Value
			}
			sum := (v["wait"]+v["reload"]+v["lack"]+v["own"]+v["wasted"]+v["evicted"])*v["crowd"] + v["delay"]
			if got := step(sum); math.Abs(got-costs[i].First) > 0.017*costs[i].First+stepSize {
				t.Fatalf("the terms %v make %v, the cost is %v", terms, got, costs[i].First)
			}
		}
	}
}

// TestEveryStrategyIsExplained: one list of terms for each candidate, and asking changes nothing.
func TestEveryStrategyIsExplained(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, typ := range allTypes {
		t.Run(string(typ), func(t *testing.T) {
			p, err := New(Default(typ))
			if err != nil {
				t.Fatal(err)
			}
			for range 100 {
				r, candidates := anyQuestion(rng)
				if e := Explain(p, r, candidates); len(e.Candidates) != len(candidates) {
					t.Fatalf("%d lists of terms for %d candidates", len(e.Candidates), len(candidates))
				}
				still, again, picked := make([]Cost, len(candidates)), make([]Cost, len(candidates)), make([]Cost, len(candidates))
				Still(p).Score(r, candidates, still)
				Still(p).Score(r, candidates, again)
				p.Score(r, candidates, picked)
				for i := range candidates {
					if still[i] != picked[i] || again[i] != picked[i] {
						t.Fatalf("candidate %d: %v and %v when asked, %v when it is picked", i, still[i], again[i], picked[i])
					}
				}
			}
		})
	}
}
