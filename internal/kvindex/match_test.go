package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

func TestAMatchIsCutToWholeBlocksOfTheEngine(t *testing.T) {
	for name, tc := range map[string]struct {
		match       Match
		most, grain int
		want        Match
	}{
		"nothing to cut":                     {Match{Speculative: 3}, 3, 1, Match{Speculative: 3}},
		"the last token is computed":         {Match{Speculative: 3}, 2, 1, Match{Speculative: 2}},
		"a part of an engine block is none":  {Match{Tiers: tiers(3, 0)}, 9, 4, Match{}},
		"whole engine blocks stay":           {Match{Tiers: tiers(9, 0)}, 9, 4, Match{Tiers: tiers(8, 0)}},
		"the cap is rounded, too":            {Match{Tiers: tiers(8, 0)}, 7, 4, Match{Tiers: tiers(4, 0)}},
		"guesses go before facts":            {Match{Tiers: tiers(4, 0), Speculative: 3}, 9, 4, Match{Tiers: tiers(4, 0)}},
		"slow tiers go before fast ones":     {Match{Tiers: tiers(4, 3)}, 9, 4, Match{Tiers: tiers(4, 0)}},
		"a guess completes the engine block": {Match{Tiers: tiers(6, 0), Speculative: 2}, 9, 4, Match{Tiers: tiers(4, 0), Speculative: 4}},
		"nothing can be used":                {Match{Tiers: tiers(6, 0), Speculative: 2}, 0, 4, Match{}},
		"a grain of no size is 1":            {Match{Tiers: tiers(6, 0)}, 5, 0, Match{Tiers: tiers(5, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.match.Whole(tc.most, tc.grain)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func tiers(gpu, cpu uint32) (out [kvblock.NumTiers]uint32) {
	out[kvblock.GPU], out[kvblock.CPU] = gpu, cpu
	return out
}

func TestAWholeMatchIsTheLongestMultipleThatFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var m Match
		for tier := range m.Tiers {
			m.Tiers[tier] = uint32(rng.IntN(40))
		}
		m.Speculative = uint32(rng.IntN(40))
		most, grain := rng.IntN(150), 1+rng.IntN(49)
		got := m.Whole(most, grain)
		if want := min(m.Blocks(), most) / grain * grain; got.Blocks() != want || got.Confirmed()%grain != 0 || got.Confirmed() > m.Confirmed() {
			t.Fatalf("%+v of at most %d blocks by %d is %+v, not %d blocks", m, most, grain, got, want)
		}
		for tier := range m.Tiers {
			if got.Tiers[tier] > m.Tiers[tier] {
				t.Fatalf("%+v by %d has more in tier %d: %+v", m, grain, tier, got)
			}
		}
	}
}
