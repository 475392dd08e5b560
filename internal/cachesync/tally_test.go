package cachesync

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

func TestTalliesCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	tallies, model := newTallies(), map[tally]uint32{}
	for range 200_000 {
		at := tally{nameOf(kvblock.Key(1+rng.IntN(3)), rng.IntN(2)), kvblock.Tier(rng.IntN(kvblock.NumTiers))}
		var got uint32
		if up := rng.IntN(100) < 54; up || model[at] == 0 {
			model[at]++
			got = tallies.add(at.name, at.tier)
		} else {
			model[at]--
			got = tallies.remove(at.name, at.tier)
		}
		if got != model[at] || tallies.several(at.name, at.tier) != (model[at] > 1) {
			t.Fatalf("%v: counted %d, want %d", at, got, model[at])
		}
	}
	if len(tallies.many) == 0 {
		t.Error("no count became large")
	}
	for at, n := range model {
		for ; n > 0; n-- {
			tallies.remove(at.name, at.tier)
		}
	}
	if len(tallies.few)+len(tallies.many) != 0 {
		t.Errorf("%d and %d left", len(tallies.few), len(tallies.many))
	}
}
