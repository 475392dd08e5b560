package enginemodel

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// naivePool is the obvious pool: a slice is the free queue, scans answer everything.
type naivePool struct {
	hash []Hash
	refs []int
	free []Block
	// age orders the commits: lookups return the oldest copy.
	age  []int
	tick int
}

func newNaivePool(n int) *naivePool {
	p := &naivePool{hash: make([]Hash, n), refs: make([]int, n), age: make([]int, n)}
	for i := range n {
		p.free = append(p.free, Block(i))
	}
	return p
}

func (p *naivePool) lookup(h Hash) (Block, bool) {
	best := noBlock
	for i := range p.hash {
		if p.hash[i] == h && (best == noBlock || p.age[i] < p.age[best]) {
			best = Block(i)
		}
	}
	return best, best != noBlock
}

func (p *naivePool) touch(b Block) {
	if i := slices.Index(p.free, b); i >= 0 {
		p.free = slices.Delete(p.free, i, i+1)
	}
	p.refs[b]++
}

func (p *naivePool) allocate() (Block, Hash, bool) {
	if len(p.free) == 0 {
		return noBlock, 0, false
	}
	b := p.free[0]
	p.free = p.free[1:]
	h := p.hash[b]
	p.hash[b], p.refs[b] = 0, 1
	return b, h, true
}

func (p *naivePool) commit(b Block, h Hash) {
	p.tick++
	p.hash[b], p.age[b] = h, p.tick
}

func (p *naivePool) release(blocks []Block) {
	for _, b := range slices.Backward(blocks) {
		p.refs[b]--
		switch {
		case p.refs[b] > 0:
		case p.hash[b] == 0:
			p.free = slices.Insert(p.free, 0, b)
		default:
			p.free = append(p.free, b)
		}
	}
}

func (p *naivePool) evict(n int, evicted func(Hash)) {
	for _, b := range p.free {
		if n > 0 && p.hash[b] != 0 {
			evicted(p.hash[b])
			p.hash[b] = 0
			n--
		}
	}
}

// freeQueue is the pool's free queue, front first.
func (p *Pool) freeQueue() []Block {
	var out []Block
	for b := p.head; b != noBlock; b = p.blocks[b].next {
		out = append(out, b)
	}
	return out
}

func copiesOf(p *Pool) map[Hash]int {
	out := map[Hash]int{}
	for h, n := range p.All {
		out[h] = n
	}
	return out
}

func (p *naivePool) copies() map[Hash]int {
	out := map[Hash]int{}
	for _, h := range p.hash {
		if h != 0 {
			out[h]++
		}
	}
	return out
}

func comparePools(t *testing.T, step int, got *Pool, want *naivePool) {
	t.Helper()
	if queue := got.freeQueue(); !slices.Equal(want.free, queue) {
		t.Fatalf("step %d: free queue (-want +got):\n%s", step, cmp.Diff(want.free, queue))
	}
	if got.Free() != len(want.free) {
		t.Fatalf("step %d: Free() = %d, want %d", step, got.Free(), len(want.free))
	}
	if w, g := want.copies(), copiesOf(got); !maps.Equal(w, g) {
		t.Fatalf("step %d: cached hashes (-want +got):\n%s", step, cmp.Diff(w, g))
	}
	for b := range got.blocks {
		if got.Refs(Block(b)) != want.refs[b] || got.Refs(Block(b)) < 0 {
			t.Fatalf("step %d: block %d has %d references, want %d", step, b, got.Refs(Block(b)), want.refs[b])
		}
	}
}

func TestPoolEqualsNaivePool(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(24)
		got, want := NewPool(n), newNaivePool(n)
		var held [][]Block // requests
		for step := range 2000 {
			switch op := rng.IntN(10); {
			case op < 5: // a request hits some blocks, then allocates and commits some
				var blocks []Block
				for h := Hash(1); h <= Hash(1+rng.IntN(6)); h++ {
					gb, gok := got.Lookup(h)
					wb, wok := want.lookup(h)
					if gok != wok || gok && gb != wb {
						t.Fatalf("step %d: Lookup(%d) = %d %v, want %d %v", step, h, gb, gok, wb, wok)
					}
					if !gok {
						break
					}
					got.Touch(gb)
					want.touch(wb)
					blocks = append(blocks, gb)
				}
				for range rng.IntN(5) {
					gb, gh, gok := got.Allocate()
					wb, wh, wok := want.allocate()
					if gb != wb || gh != wh || gok != wok {
						t.Fatalf("step %d: Allocate() = %d %x %v, want %d %x %v", step, gb, gh, gok, wb, wh, wok)
					}
					if !gok {
						break
					}
					blocks = append(blocks, gb)
					if rng.IntN(4) > 0 {
						h := Hash(len(blocks))
						got.Commit(gb, h)
						want.commit(wb, h)
					}
				}
				if len(blocks) > 0 {
					held = append(held, blocks)
				}
			case op < 9 && len(held) > 0:
				i := rng.IntN(len(held))
				got.Release(held[i])
				want.release(held[i])
				held = slices.Delete(held, i, i+1)
			case op == 9 && rng.IntN(20) == 0:
				var g, w []Hash
				k := rng.IntN(4)
				got.EvictOldest(k, func(h Hash) { g = append(g, h) })
				want.evict(k, func(h Hash) { w = append(w, h) })
				if diff := cmp.Diff(w, g); diff != "" {
					t.Fatalf("step %d: EvictOldest(%d) (-want +got):\n%s", step, k, diff)
				}
			}
			comparePools(t, step, got, want)
		}
	}
}

func TestPoolResetsOnlyWhenUnreferenced(t *testing.T) {
	p := NewPool(3)
	b, _, _ := p.Allocate()
	p.Commit(b, 7)
	if p.Reset() {
		t.Error("Reset succeeded while a block was referenced")
	}
	if p.Copies(7) != 1 {
		t.Error("a refused Reset changed the cache")
	}
	p.Release([]Block{b})
	if !p.Reset() || p.Cached() != 0 || p.Free() != 3 {
		t.Errorf("after Reset: cached %d, free %d", p.Cached(), p.Free())
	}
}

func TestPoolRefusesMisuse(t *testing.T) {
	cases := map[string]func(p *Pool, b Block){
		"releasing a free block":         func(p *Pool, b Block) { p.Release([]Block{b, b}) },
		"committing a block twice":       func(p *Pool, b Block) { p.Commit(b, 1); p.Commit(b, 2) },
		"committing no hash":             func(p *Pool, b Block) { p.Commit(b, 0) },
		"committing an unreferenced one": func(p *Pool, b Block) { p.Release([]Block{b}); p.Commit(b, 1) },
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := NewPool(2)
			b, _, _ := p.Allocate()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			tc(p, b)
		})
	}
}
