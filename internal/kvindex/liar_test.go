package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/test/race"
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

// liar is a holder that stores junk without end, in every way.
type liar struct {
	ix  *Index
	h   Holder
	w   Writer
	rng *rand.Rand
}

func newLiar(ix *Index, seed uint64) *liar {
	h := ix.Join()
	return &liar{ix, h, ix.Writer(h), rand.New(rand.NewPCG(seed, 99))}
}

// lie stores n blocks that no other holder has: as single blocks, as chains, as chains with all but a few dropped, as blocks without a
// parent or of a window, or in a shadow.
func (l *liar) lie(n int) {
	names := func(keys []kvblock.Key) []kvevent.Hash { return named(0, keys...) }
	how := l.rng.IntN(100)
	tier := kvblock.Tier(l.rng.IntN(kvblock.NumTiers))
	keys := someKeys(l.rng.Uint64(), n)
	switch {
	case how < 40:
		for i := range keys {
			l.w.Store(tier, 0, Parent{}, names(keys[i:i+1]), keys[i:i+1])
		}
	case how < 60:
		l.w.Store(tier, 0, Parent{}, names(keys), keys)
	case how < 75:
		l.w.Store(tier, 0, Parent{}, names(keys), keys)
		l.w.Drop(tier, 0, names(keys[:n-2]))
	case how < 85:
		l.w.Store(tier, 0, Parent{kvevent.Hash(l.rng.Uint64()), true}, names(keys), keys)
	case how < 95:
		l.w.StoreWindow(tier, 5, Window{Keys: 1, Blocks: 1}, names(keys), keys)
	case how < 98:
		shadow := l.w.Shadow()
		shadow.Store(tier, 0, Parent{}, names(keys), keys)
		shadow.Commit()
	default:
		l.w.Clear()
	}
}

// TestALiarCannotEvictWhatOthersHave: one holder stores far more than the budget, in one way only. The others, which hold less than
// their share, keep all, and so does the liar its share.
func TestALiarCannotEvictWhatOthersHave(t *testing.T) {
	const honest = 8
	budget, blocks, lies := int64(4<<20), 2000, 600
	if race.Enabled { // there is one goroutine
		budget, blocks, lies = budget/8, blocks/8, lies/8
	}
	for name, lie := range map[string]func(w Writer, keys []kvblock.Key){
		"single blocks": func(w Writer, keys []kvblock.Key) {
			for i := range keys {
				w.Store(kvblock.GPU, 0, Parent{}, named(0, keys[i]), keys[i:i+1])
			}
		},
		"chains": func(w Writer, keys []kvblock.Key) { w.Store(kvblock.CPU, 0, Parent{}, named(0, keys...), keys) },
		"the ends of chains": func(w Writer, keys []kvblock.Key) {
			w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
			w.Drop(kvblock.GPU, 0, named(0, keys[:len(keys)-1]...))
		},
		"orphans": func(w Writer, keys []kvblock.Key) { w.Store(kvblock.GPU, 0, Parent{1, true}, named(0, keys...), keys) },
		"windows": func(w Writer, keys []kvblock.Key) {
			w.StoreWindow(kvblock.GPU, 3, Window{Keys: 1, Blocks: 1}, named(0, keys...), keys)
		},
		"one life after the other": func(w Writer, keys []kvblock.Key) {
			w.Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
			if keys[0]%512 == 0 {
				w.Clear()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix := NewIndex(Options{Budget: budget})
			var holders []Holder
			for i := range honest {
				holders = append(holders, ix.Join())
				storeChain(ix, holders[i], someKeys(uint64(i+1), blocks))
			}
			liar := ix.Join()
			w := ix.Writer(liar)
			for i := range lies {
				lie(w, someKeys(uint64(1000+i), 200))
				if ix.Bytes() > budget {
					t.Fatalf("the index takes %d bytes", ix.Bytes())
				}
			}
			for i, h := range holders {
				if got := matchOf(ix, h, someKeys(uint64(i+1), blocks)); got != blocks {
					t.Errorf("holder %d matches %d of %d blocks", i, got, blocks)
				}
			}
			if name != "the ends of chains" && w.Len() < 500 {
				t.Errorf("the liar keeps %d blocks, less than its share", w.Len())
			}
			ix.check(t)
		})
	}
}
