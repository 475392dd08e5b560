package policy

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestRendezvousSpreadsBetterThanARing shares 512 sessions out among 3 endpoints, many times: the coefficient of
// variation must be below that of a consistent-hash ring with 100 virtual nodes, as "Routing on Real KV Cache Events"
// says of its own.
func TestRendezvousSpreadsBetterThanARing(t *testing.T) {
	const sessions, endpoints, virtual, rounds = 512, 3, 100, 40
	p := mustNew(t, Default(Rendezvous))
	hrw, ring := 0.0, 0.0
	for round := range rounds {
		var candidates []Candidate
		type node struct {
			at uint64
			of int
		}
		var nodes []node
		for i := range endpoints {
			c := candidate(fmt.Sprintf("pod-%d-%d", round, i), 0, load.View{})
			candidates = append(candidates, c)
			for v := range uint64(virtual) {
				nodes = append(nodes, node{endpoint.Mix(c.Hash + v*0x9e3779b97f4a7c15), i})
			}
		}
		slices.SortFunc(nodes, func(a, b node) int {
			if a.at < b.at {
				return -1
			}
			return 1
		})
		var byWeight, byRing [endpoints]float64
		for s := range uint64(sessions) {
			r := request(100)
			r.Session = endpoint.Mix(uint64(round)<<32 + s + 1)
			byWeight[choose(p, r, candidates)[0]]++
			next, _ := slices.BinarySearchFunc(nodes, r.Session, func(n node, at uint64) int {
				if n.at < at {
					return -1
				}
				return 1
			})
			byRing[nodes[next%len(nodes)].of]++
		}
		hrw += variation(byWeight[:]) / rounds
		ring += variation(byRing[:]) / rounds
	}
	if hrw > 0.7*ring {
		t.Errorf("coefficient of variation %.3f, that of the ring is %.3f", hrw, ring)
	}
}

// variation is the standard deviation over the mean.
func variation(counts []float64) float64 {
	mean, square := 0.0, 0.0
	for _, n := range counts {
		mean += n / float64(len(counts))
	}
	for _, n := range counts {
		square += (n - mean) * (n - mean) / float64(len(counts))
	}
	return math.Sqrt(square) / mean
}
