package policy

import (
	"math"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestDecodeHarmIsWhatTheAPISays: without it requests in flight cost nothing; with it each costs the same part of the
// time that the request takes there, twice as much at 200 percent.
func TestDecodeHarmIsWhatTheAPISays(t *testing.T) {
	cost := func(harm float64, inFlight int) float64 {
		p := mustNew(t, Config{Type: MarginalCost, MarginalCost: MarginalCostConfig{DecodeHarm: harm}})
		out := make([]Cost, 1)
		view := load.View{InFlight: inFlight, Decoding: inFlight / 2, PendingTokens: 4000, Rate: 20_000, Trust: 1}
		p.Score(request(8000), []Candidate{candidate("a", 100, view)}, out)
		return out[0].First
	}
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.03*math.Max(got, want) }
	alone := cost(1, 0)
	for _, n := range []int{1, 5, 40} {
		if none := cost(0, n); none != alone {
			t.Errorf("at 0, %d requests in flight make %.3f s of %.3f s", n, none, alone)
		}
		full, double := cost(1, n)-alone, cost(2, n)-alone
		if full <= 0 || !near(full/float64(n), cost(1, 5)/5-alone/5) && n > 1 {
			t.Errorf("at 100, %d requests in flight add %.3f s, 5 add %.3f s", n, full, cost(1, 5)-alone)
		}
		if !near(double, 2*full) && n > 1 {
			t.Errorf("%d requests in flight add %.3f s at 100 and %.3f s at 200", n, full, double)
		}
	}
}
