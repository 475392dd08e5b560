package lab

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// hot is requests on one prefix of 40 blocks of 512 tokens, each with 200 tokens of its own, as many a second.
func hot(rate float64, n int) *Workload {
	rng := rand.New(rand.NewPCG(7, 7))
	var list []trace.Request
	at := 0.0
	for i := range n {
		at += rng.ExpFloat64() / rate
		q := trace.Request{Timestamp: int64(1000 * at), Input: 40*512 + 200, Output: 100}
		for b := range 40 {
			q.Blocks = append(q.Blocks, b)
		}
		q.Blocks = append(q.Blocks, 1000+i)
		list = append(list, q)
	}
	return FromTrace("hot", list)
}

// TestAHotPrefixIsOnAsManyPodsAsItsTrafficNeeds: on one pod while one can serve it, on more pods the more requests arrive,
// in equal parts, and on all when it needs all. Nowhere is it computed more often than by a strategy that only looks at the
// load, nor are answers much later.
func TestAHotPrefixIsOnAsManyPodsAsItsTrafficNeeds(t *testing.T) {
	long(t)
	const pods, requests = 8, 400
	last := 0
	for _, tc := range []struct {
		rate        float64
		least, most int
	}{{0.2, 1, 1}, {1, 1, 1}, {4, 2, 5}, {16, 4, 8}, {32, 7, 8}, {64, 8, 8}} {
		c := small(t, "MarginalCost")
		c.Workload, c.Pods = hot(tc.rate, requests), pods
		ours := run(t, c)
		c.Strategy = only(t, "LeastLoad")
		byLoad := run(t, c)
		n, busiest := 0, 0
		for _, of := range ours.RequestsPerPod {
			if of > 0 {
				n++
			}
			busiest = max(busiest, of)
		}
		t.Logf("%g a second: on %d pods, %v; to the end %.2f s, by load %.2f", tc.rate, n, ours.RequestsPerPod, ours.E2ESeconds.Mean, byLoad.E2ESeconds.Mean)
		if n < tc.least || n > tc.most || n < last {
			t.Errorf("%g a second: on %d pods, want %d to %d and no fewer than with less traffic", tc.rate, n, tc.least, tc.most)
		}
		last = n
		if busiest > 2*requests/n {
			t.Errorf("%g a second: %v", tc.rate, ours.RequestsPerPod)
		}
		if ours.HitRatio < byLoad.HitRatio || ours.E2ESeconds.Mean > 1.15*byLoad.E2ESeconds.Mean {
			t.Errorf("%g a second: %.3f in caches and %.2f s to the end; by load %.3f and %.2f", tc.rate, ours.HitRatio, ours.E2ESeconds.Mean, byLoad.HitRatio, byLoad.E2ESeconds.Mean)
		}
	}
}
