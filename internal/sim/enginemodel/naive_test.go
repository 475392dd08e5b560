package enginemodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// naiveCache serves one request at a time with content as keys; it has no twins, so prompts must not consist of full
// blocks.
type naiveCache struct {
	size int
	free []string // content of each free block, next to be reallocated first; "" is none
}

func (c *naiveCache) serve(prefix string, prompt, all []uint32) (cached int) {
	key := func(i int) string { return fmt.Sprint(prefix, all[:(i+1)*c.size]) }
	var held []string
	for i := 0; i < (len(prompt)-1)/c.size; i++ {
		j := slices.Index(c.free, key(i))
		if j < 0 {
			break
		}
		c.free = slices.Delete(c.free, j, j+1)
		held = append(held, key(i))
	}
	cached = len(held) * c.size
	for i := len(held); i < ceilDiv(len(all)-1, c.size); i++ {
		c.free = c.free[1:]
		content := ""
		if (i+1)*c.size <= len(all)-1 {
			content = key(i)
		}
		held = append(held, content)
	}
	for _, content := range slices.Backward(held) {
		if content == "" {
			c.free = slices.Insert(c.free, 0, "")
		} else {
			c.free = append(c.free, content)
		}
	}
	return cached
}

func TestHitsEqualNaiveCacheOneAtATime(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 3))
		e := newEngine(t, Config{NumBlocks: 30, BlockSize: 4, MaxModelLen: 100, MaxBatchedTokens: 16})
		naive := &naiveCache{size: 4, free: make([]string, 30)}
		hits := 0
		for i := range 300 {
			prompt := append(sequence(100*rng.IntN(4), 4*rng.IntN(8)), sequence(50*rng.IntN(3), 4*rng.IntN(8)+1+rng.IntN(3))...)
			r := newRequest(t, e, Spec{Prompt: slices.Clone(prompt), MaxTokens: 1 + rng.IntN(8)})
			e.Add(r, 0)
			run(t, e, 0)
			want := naive.serve("", prompt, r.tokens)
			if r.CachedTokens != want {
				t.Fatalf("seed %d request %d: %d cached, want %d", seed, i, r.CachedTokens, want)
			}
			hits += want
		}
		if hits == 0 {
			t.Error("no hits at all")
		}
	}
}
