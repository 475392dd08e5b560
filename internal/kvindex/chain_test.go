package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/test/race"
)

// byKey are keys as names.
func byKey(keys []kvblock.Key) []kvevent.Hash {
	out := make([]kvevent.Hash, len(keys))
	for i, key := range keys {
		out[i] = kvevent.Hash(key)
	}
	return out
}

// TestChainsCanBeStoredAgain stores and drops blocks of several holders at random, some before their parents, lists them,
// and stores the lists in an empty index: it then holds the same, and finds the same.
func TestChainsCanBeStoredAgain(t *testing.T) {
	seeds := uint64(30)
	if race.Enabled { // there is one goroutine
		seeds = 3
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 11))
		f := newForest(rng, 800, 300)
		parentOf := map[kvblock.Key]kvblock.Key{}
		for i, key := range f.keys {
			if p := f.parent[i]; p >= 0 {
				parentOf[key] = f.keys[p]
			}
		}
		for name, book := range map[string]Book{"table": New(), "index": NewIndex(Options{})} {
			holders, writers := make([]Holder, 3), make([]Writer, 3)
			for i := range holders {
				holders[i] = book.Join()
				writers[i] = book.Writer(holders[i])
			}
			for range 400 {
				w := writers[rng.IntN(3)]
				tier, group := kvblock.Tier(rng.IntN(2)), rng.IntN(2)
				path := f.path(rng.IntN(len(f.keys)), 1+rng.IntN(300))
				keys := f.keysOf(path)
				if rng.IntN(3) == 0 {
					w.Drop(tier, group, byKey(keys[rng.IntN(len(keys)):]))
					continue
				}
				parent := parentOf[keys[0]]
				w.Store(tier, group, Parent{Hash: kvevent.Hash(parent), OK: parent != 0}, byKey(keys), keys)
			}
			for i, w := range writers {
				again := NewIndex(Options{})
				h := again.Join()
				copied := again.Writer(h)
				for tier := range kvblock.Tier(2) {
					for group := range 2 {
						seen := map[kvblock.Key]bool{}
						for _, c := range w.Chains(tier, group) {
							for at, key := range c.Keys {
								parent := c.Parent
								if at > 0 {
									parent = c.Keys[at-1]
								}
								if seen[key] || parentOf[key] != parent {
									t.Fatalf("%s, seed %d: block %d comes twice or after %d", name, seed, key, parent)
								}
								seen[key] = true
							}
							if n := copied.Store(tier, group, Parent{Hash: kvevent.Hash(c.Parent), OK: c.Parent != 0}, byKey(c.Keys), c.Keys); n > 0 {
								t.Fatalf("%s, seed %d: %d blocks are refused", name, seed, n)
							}
						}
						if got, want := copied.Digest(tier, group), w.Digest(tier, group); got != want {
							t.Fatalf("%s, seed %d: the copy has %d blocks of tier %d and group %d, or others; want %d", name, seed, got.Blocks, tier, group, want.Blocks)
						}
					}
				}
				for range 50 {
					keys := f.keysOf(f.path(rng.IntN(len(f.keys)), 1<<20))
					var got, want [1]Match
					again.Match(keys, []Holder{h}, got[:])
					book.Match(keys, holders[i:i+1], want[:])
					if got != want {
						t.Fatalf("%s, seed %d: the copy matches %+v, want %+v", name, seed, got, want)
					}
				}
				again.check(t)
			}
			if w := writers[0]; w.Chains(kvblock.Tier(kvblock.NumTiers), 0) != nil || w.Chains(0, MaxGroup+1) != nil {
				t.Error("chains of a tier or group that there is not")
			}
			book.Leave(holders[0])
			if writers[0].Chains(0, 0) != nil {
				t.Error("chains of a holder that has left")
			}
		}
	}
}
