package trace

import (
	"math/rand/v2"
	"testing"
)

// commonIDs and commonTokens are the lengths of the common prefixes.
func commonIDs(a, b []int) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func commonTokens(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestPromptsShareAPrefixExactlyAsFarAsTheirIDsAreEqual(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var prompts [][]int
	for range 60 {
		var ids []int
		for range 1 + random.IntN(6) {
			ids = append(ids, random.IntN(3))
		}
		prompts = append(prompts, ids)
	}
	for _, a := range prompts {
		for _, b := range prompts {
			lenA := len(a)*BlockTokens - random.IntN(BlockTokens)
			lenB := len(b)*BlockTokens - random.IntN(BlockTokens)
			tokensA, tokensB := AppendTokens(nil, a, lenA), AppendTokens(nil, b, lenB)
			if len(tokensA) != lenA || len(tokensB) != lenB {
				t.Fatalf("%d and %d tokens, want %d and %d", len(tokensA), len(tokensB), lenA, lenB)
			}
			shared := commonTokens(tokensA, tokensB)
			whole := min(commonIDs(a, b)*BlockTokens, lenA, lenB)
			// Past the equal ids two prompts may agree by chance, but not for a whole block of an engine.
			if shared < whole || shared >= whole+16 {
				t.Fatalf("%v and %v share %d tokens, want %d", a, b, shared, whole)
			}
		}
	}
}

func TestTokensLieInTheVocabularyAndUseIt(t *testing.T) {
	seen := map[uint32]bool{}
	for id := range 200 {
		for _, token := range AppendTokens(nil, []int{id}, BlockTokens) {
			if token < FirstToken || token >= EndToken {
				t.Fatalf("token %d is outside [%d, %d)", token, FirstToken, EndToken)
			}
			seen[token] = true
		}
	}
	if len(seen) < (EndToken-FirstToken)*9/10 {
		t.Errorf("200 blocks use %d of %d ids", len(seen), EndToken-FirstToken)
	}
}

func TestTokensOfABlockNeverChange(t *testing.T) {
	// Recorded results are only comparable as long as prompts stay the same.
	got := AppendTokens(nil, []int{0, 7}, BlockTokens+2)
	ends := [4]uint32{got[0], got[1], got[BlockTokens], got[BlockTokens+1]}
	if golden := [4]uint32{5176, 28572, 27512, 25631}; ends != golden {
		t.Errorf("tokens are %v, want %v", ends, golden)
	}
}
