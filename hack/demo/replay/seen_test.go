package replay

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// The tree agrees with a comparison with every prompt before.
func TestSeenIsTheLongestPrefixOfAllPromptsBefore(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var s seen
	var before [][]int
	for range 400 {
		blocks := make([]int, 1+random.IntN(6))
		for i := range blocks {
			blocks[i] = random.IntN(3)
		}
		tokens := len(blocks)*trace.BlockTokens - random.IntN(trace.BlockTokens)
		want := 0
		for _, other := range before {
			n := 0
			for n < min(len(blocks), len(other)) && blocks[n] == other[n] {
				n++
			}
			want = max(want, min(n*trace.BlockTokens, tokens))
		}
		if got := s.add(blocks, tokens); got != want {
			t.Fatalf("%v: %d tokens, want %d", blocks, got, want)
		}
		before = append(before, blocks)
	}
}

func TestWholeBlocksWithoutTheLastToken(t *testing.T) {
	for _, tc := range [][3]int{{0, 100, 0}, {15, 100, 0}, {16, 100, 16}, {100, 100, 96}, {96, 96, 80}, {200, 33, 32}, {5, 0, 0}} {
		if got := whole(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%d held of %d: %d, want %d", tc[0], tc[1], got, tc[2])
		}
	}
}
