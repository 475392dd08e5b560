package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// storeChain has a holder store a chain of keys, by names that are the keys.
func storeChain(ix Book, h Holder, keys []kvblock.Key) {
	hashes := make([]kvevent.Hash, len(keys))
	for i, key := range keys {
		hashes[i] = kvevent.Hash(key)
	}
	ix.Writer(h).Store(kvblock.GPU, 0, Parent{}, hashes, keys)
}

func matchOf(ix Book, h Holder, keys []kvblock.Key) int {
	var out [1]Match
	ix.Match(keys, []Holder{h}, out[:])
	return out[0].Blocks()
}

// TestALiarCannotHideWhatOthersHave: a pod that reports a chain with keys in it that do not belong there, before or after an
// honest one reports the real chain.
func TestALiarCannotHideWhatOthersHave(t *testing.T) {
	const n = 64
	chain := make([]kvblock.Key, n)
	for i := range chain {
		chain[i] = kvblock.Key(1000 + i)
	}
	lies := map[string]func(r *rand.Rand) []kvblock.Key{
		"one key inside": func(*rand.Rand) []kvblock.Key {
			lie := append([]kvblock.Key(nil), chain...)
			lie[1] = 7
			return lie
		},
		"some keys inside": func(r *rand.Rand) []kvblock.Key {
			lie := append([]kvblock.Key(nil), chain...)
			for range 1 + r.IntN(8) {
				lie[r.IntN(n)] = kvblock.Key(r.Uint64() | 1<<40)
			}
			return lie
		},
		"from the middle":  func(r *rand.Rand) []kvblock.Key { return chain[r.IntN(n):] },
		"single blocks":    func(r *rand.Rand) []kvblock.Key { i := r.IntN(n); return chain[i : i+1] },
		"in another order": func(r *rand.Rand) []kvblock.Key { i := r.IntN(n - 1); return []kvblock.Key{chain[i+1], chain[i]} },
		"a junk continuation": func(r *rand.Rand) []kvblock.Key {
			return append(append([]kvblock.Key(nil), chain[:1+r.IntN(n-1)]...), kvblock.Key(r.Uint64()|1))
		},
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				r := rand.New(rand.NewPCG(seed, 1))
				ix := NewIndex(Options{})
				honest, late, liar := ix.Join(), ix.Join(), ix.Join()
				for range 1 + r.IntN(20) {
					storeChain(ix, liar, lie(r))
				}
				storeChain(ix, honest, chain)
				for range r.IntN(20) {
					storeChain(ix, liar, lie(r))
				}
				storeChain(ix, late, chain)
				for _, h := range []Holder{honest, late} {
					if got := matchOf(ix, h, chain); got != n {
						t.Fatalf("seed %d: a pod with %d blocks matches %d", seed, n, got)
					}
				}
			}
		})
	}
}
