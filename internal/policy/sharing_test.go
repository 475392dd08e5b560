package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestRendezvousMovesOnlyWhatItMust removes one of three endpoints: only its sessions move.
func TestRendezvousMovesOnlyWhatItMust(t *testing.T) {
	p := mustNew(t, Config{Type: Rendezvous})
	candidates := []Candidate{candidate("a", 0, load.View{}), candidate("b", 0, load.View{}), candidate("c", 0, load.View{})}
	counts := make([]int, 3)
	for session := uint64(1); session <= 3000; session++ {
		r := request(64)
		r.Session = endpoint.Mix(session)
		order := choose(p, r, candidates)
		counts[order[0]]++
		if got := choose(p, r, candidates[:2])[0]; order[0] != 2 && got != order[0] {
			t.Fatalf("session %d moved from %d to %d though its endpoint stayed", session, order[0], got)
		} else if order[0] == 2 && got != order[1] {
			t.Fatalf("session %d did not go to its fallback", session)
		}
	}
	for i, n := range counts {
		if n < 900 || n > 1100 {
			t.Errorf("endpoint %d has %d of 3000 sessions", i, n)
		}
	}
}

// TestFewSessionsMoveWhenAnEndpointComes: its own share, all of them to it, where most move if sessions are shared out
// by the remainder of their hash.
func TestFewSessionsMoveWhenAnEndpointComes(t *testing.T) {
	const sessions = 4000
	p := mustNew(t, Config{Type: Rendezvous})
	for _, n := range []int{2, 3, 8, 32} {
		var candidates []Candidate
		for i := range n + 1 {
			candidates = append(candidates, candidate(fmt.Sprint("pod-", i), 0, load.View{}))
		}
		moved, byRemainder := 0, 0
		for session := uint64(1); session <= sessions; session++ {
			r := request(64)
			r.Session = endpoint.Mix(session)
			before, after := choose(p, r, candidates[:n])[0], choose(p, r, candidates)[0]
			if after != before {
				moved++
				if after != n {
					t.Fatalf("session %d moved from %d to %d, and %d is the one that came", session, before, after, n)
				}
			}
			if r.Session%uint64(n) != r.Session%uint64(n+1) {
				byRemainder++
			}
		}
		if share := float64(sessions) / float64(n+1); math.Abs(float64(moved)-share) > 5*math.Sqrt(share) {
			t.Errorf("%d of %d sessions moved to the last of %d endpoints, want about %.0f", moved, sessions, n+1, share)
		}
		if moved >= byRemainder {
			t.Errorf("%d sessions moved, by the remainder %d would have", moved, byRemainder)
		}
	}
}

// TestASharedSystemPromptDoesNotCollapseTheFleet sends requests that all share a prefix and otherwise differ. The
// literal rule piles them on one endpoint; the default must not.
func TestASharedSystemPromptDoesNotCollapseTheFleet(t *testing.T) {
	spread := func(config Config) int {
		p := mustNew(t, config)
		const pods, shared = 8, 32
		candidates := make([]Candidate, pods)
		held := make([]bool, pods)
		busiest := 0
		counts := make([]int, pods)
		for n := range 64 {
			for i := range candidates {
				blocks := uint32(0)
				if held[i] {
					blocks = shared
				}
				// every request stays: nothing finishes in this burst
				candidates[i] = candidate(fmt.Sprint("pod-", i), blocks,
					load.View{InFlight: counts[i], PendingTokens: float64(counts[i]) * 2000, Rate: 20_000, Trust: 1})
			}
			r := request(2560)
			r.Prefix = endpoint.Mix(uint64(n))
			i := choose(p, r, candidates)[0]
			held[i] = true
			counts[i]++
			busiest = max(busiest, counts[i])
		}
		return busiest
	}
	if got := spread(Config{Type: LongestPrefix, LongestPrefix: LongestPrefixConfig{Literal: true}}); got != 64 {
		t.Errorf("the literal rule puts %d of 64 on one endpoint; this test no longer shows the collapse", got)
	}
	for _, config := range every {
		if config.Type == MarginalCost || config.Type == LongestPrefix && !config.LongestPrefix.Literal {
			if got := spread(config); got > 16 {
				t.Errorf("%s puts %d of 64 requests on one of 8 endpoints", config.Type, got)
			}
		}
	}
}

// TestAHiccupIsForgivenAndEqualsShare plays three equal engines, one of them slow for a while, against the default strategy:
// what is new must spread over all of them, and the slow one must get its share again.
func TestAHiccupIsForgivenAndEqualsShare(t *testing.T) {
	const rate, overhead = 20_000.0, 0.02
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := mustNew(t, Config{Type: MarginalCost, MarginalCost: MarginalCostConfig{DecodeHarm: 1}})
	rng := rand.New(rand.NewPCG(8, 8))
	trackers := make([]load.Tracker, 3)
	serve := func(i, tokens int, seconds float64) {
		b := trackers[i].Book(now, load.WorkOf(tokens, 0), true)
		b.FirstToken(now.Add(time.Duration(seconds * float64(time.Second))))
		b.Release(now.Add(time.Duration(seconds * float64(time.Second))))
	}
	for range 6 {
		serve(2, 500+rng.IntN(1000), 1) // ten times slower than it is
	}
	picks := make([]int, 3)
	for n := range 5000 {
		now = now.Add(100 * time.Millisecond)
		candidates := make([]Candidate, 3)
		for i := range candidates {
			candidates[i] = candidate(fmt.Sprint("pod-", i), 0, trackers[i].View(now))
		}
		r := request(200 + rng.IntN(4000))
		r.Prefix = endpoint.Mix(uint64(n))
		i := choose(p, r, candidates)[0]
		picks[i]++
		serve(i, r.PromptTokens, overhead+float64(r.PromptTokens)/rate*(0.98+0.04*rng.Float64()))
	}
	for i, n := range picks {
		if n < 500 {
			t.Errorf("engine %d of three equal ones got %d of 5000 new prompts: %v", i, n, picks)
		}
	}
}
