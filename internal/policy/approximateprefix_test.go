package policy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// approximate is the strategy with other weights.
func approximate(t *testing.T, prefix, queue, kv float64) Policy {
	c := Default(ApproximatePrefix)
	c.ApproximatePrefix.PrefixWeight, c.ApproximatePrefix.QueueWeight, c.ApproximatePrefix.KVWeight = prefix, queue, kv
	return mustNew(t, c)
}

// TestApproximatePrefixWeighs what the proposal does, by hand: the first candidate is the right one.
func TestApproximatePrefixWeighs(t *testing.T) {
	for name, tc := range map[string]struct {
		prefix, queue, kv float64
		candidates        []Candidate
	}{
		"a whole match (3) is more than the longest queue (2)": {3, 2, 2, []Candidate{
			candidate("holds", 100, load.View{InFlight: 9}), candidate("idle", 0, load.View{}),
		}},
		"the longest queue (2) is more than half a match (1.5)": {3, 2, 2, []Candidate{
			candidate("idle", 0, load.View{}), candidate("holds", 50, load.View{InFlight: 9}),
		}},
		"a queue half as long (1) is less than that": {3, 2, 2, []Candidate{
			candidate("holds", 50, load.View{InFlight: 4}), candidate("idle", 0, load.View{}), candidate("longest", 0, load.View{InFlight: 8}),
		}},
		"queue and KV memory together (3.2) are more than a whole match": {3, 2, 2, []Candidate{
			candidate("idle", 0, load.View{KVUsage: 0.3}), candidate("holds", 100, load.View{InFlight: 1, KVUsage: 0.9}),
		}},
		"KV memory alone (1.8) is not": {3, 2, 2, []Candidate{
			candidate("holds", 100, load.View{KVUsage: 0.9}), candidate("free", 0, load.View{}),
		}},
		"requests that decode are no queue": {3, 2, 2, []Candidate{
			candidate("decodes", 1, load.View{InFlight: 9, Decoding: 9}), candidate("idle", 0, load.View{}),
		}},
		"what the engine reports to wait is, whichever picker has sent it": {3, 2, 2, []Candidate{
			candidate("idle", 0, load.View{}), candidate("others", 50, load.View{Waiting: 5}),
		}},
		"ties go by requests": {3, 2, 2, []Candidate{
			candidate("fewer", 100, load.View{InFlight: 1, Decoding: 1}), candidate("more", 100, load.View{InFlight: 2, Decoding: 2}),
		}},
		"without its weight the match is nothing": {0, 2, 2, []Candidate{
			candidate("free", 0, load.View{}), candidate("holds", 100, load.View{KVUsage: 0.01}),
		}},
		"without its weight the queue is nothing": {3, 0, 2, []Candidate{
			candidate("holds", 1, load.View{InFlight: 9}), candidate("idle", 0, load.View{}),
		}},
		"without its weight KV memory is nothing": {3, 2, 0, []Candidate{
			candidate("holds", 1, load.View{KVUsage: 0.96}), candidate("free", 0, load.View{}),
		}},
	} {
		if got := choose(approximate(t, tc.prefix, tc.queue, tc.kv), request(1601), tc.candidates)[0]; got != 0 {
			t.Errorf("%s: chose candidate %d", name, got)
		}
	}
}

// TestApproximateScores: they lie between 0 and the sum of the weights, do not depend on the weights' unit, and of a
// third endpoint only on how long its queue is at the extremes.
func TestApproximateScores(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 1))
	for range 500 {
		weights := [3]float64{float64(rng.IntN(10)), float64(rng.IntN(10)), float64(rng.IntN(10))}
		p, scaled := approximate(t, weights[0], weights[1], weights[2]), approximate(t, 7*weights[0], 7*weights[1], 7*weights[2])
		r := request(rng.IntN(5000))
		candidates := randomCandidates(rng, r, 2+rng.IntN(8))
		n := len(candidates)
		costs, others := make([]Cost, n), make([]Cost, n)
		p.Score(r, candidates, costs)
		scaled.Score(r, candidates, others)
		for i, c := range costs {
			if c.First > 0 || -c.First > weights[0]+weights[1]+weights[2] {
				t.Fatalf("weights %v: score %v", weights, -c.First)
			}
			if math.Abs(others[i].First-7*c.First) > 1e-9 {
				t.Fatalf("weights %v: score %v, with seven times the weights %v", weights, -c.First, -others[i].First)
			}
		}
		shortest, longest := math.MaxInt, 0
		for i := range candidates[:n-1] {
			q := candidates[i].queue()
			shortest, longest = min(shortest, q), max(longest, q)
		}
		candidates[n-1].Load.InFlight, candidates[n-1].Load.Decoding = shortest+rng.IntN(longest-shortest+1), 0
		p.Score(r, candidates, costs)
		p.Score(r, candidates[:n-1], others[:n-1])
		for i := range others[:n-1] {
			if others[i] != costs[i] {
				t.Fatalf("with another endpoint in the middle a score is %v, without %v", -costs[i].First, -others[i].First)
			}
		}
	}
}

// TestAPromptWithoutChunksGoesByLoad.
func TestAPromptWithoutChunksGoesByLoad(t *testing.T) {
	r := request(10)
	candidates := []Candidate{candidate("busy", 5, load.View{InFlight: 2}), candidate("idle", 0, load.View{})}
	if got := choose(mustNew(t, Default(ApproximatePrefix)), r, candidates)[0]; got != 1 {
		t.Errorf("chose candidate %d", got)
	}
}
