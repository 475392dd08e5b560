package policy

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestWhatIsPredictedIsTheCostWithoutPrices: where no other request is in the way, no cache is used twice and no KV cache is
// full, MarginalCost's cost is the time to the first token; and what others pay changes the cost alone.
func TestWhatIsPredictedIsTheCostWithoutPrices(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 31))
	p := mustNew(t, Default(MarginalCost))
	for range 300 {
		r := request(100 + rng.IntN(50_000))
		candidates := randomCandidates(rng, r, 6)
		for i := range candidates {
			c := &candidates[i]
			c.Delay = rng.Float64()
			c.Load.InFlight, c.Load.KVUsage, c.Load.KVTokens = 0, 0, 10_000_000
		}
		costs, seconds := make([]Cost, len(candidates)), make([]float64, len(candidates))
		p.Score(r, candidates, costs)
		Predict(r, candidates, seconds)
		for i := range candidates {
			if math.Abs(costs[i].First-seconds[i]) > stepSize+0.017*seconds[i] {
				t.Fatalf("predicted %v s, the cost is %v", seconds[i], costs[i].First)
			}
		}
		for i := range candidates {
			l := &candidates[i].Load
			l.InFlight, l.KVUsage, l.Utilisation, l.Queue, l.Prompted, l.Computed = rng.IntN(30), rng.Float64(), rng.Float64(), rng.Float64(), 10, 3
		}
		again := make([]float64, len(candidates))
		Predict(r, candidates, again)
		p.Score(r, candidates, costs)
		for i := range candidates {
			if again[i] != seconds[i] || costs[i].First < seconds[i]-stepSize-0.017*seconds[i] {
				t.Fatalf("with others in the way %v s are predicted, not %v; the cost is %v", again[i], seconds[i], costs[i].First)
			}
		}
	}
}
