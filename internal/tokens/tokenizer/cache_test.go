package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCacheAgainstAMap compares the cache with a plain map under random operations: it can forget, but not err.
func TestCacheAgainstAMap(t *testing.T) {
	type key struct {
		partKey
		text string
	}
	for _, limit := range []int64{0, 10_000, 100_000, 1 << 20} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, uint64(limit)))
			c := NewCache(limit)
			model := map[key]uint32{}
			found := 0
			for range 20_000 {
				text := strings.Repeat(string(rune('a'+rng.IntN(26))), 1+rng.IntN(60))
				// Hashes collide all the time.
				k := partKey{hash: 1 + uint64(rng.IntN(50))<<56 + uint64(rng.IntN(4)), space: uint64(rng.IntN(3)), model: uint64(rng.IntN(2))}
				id, known := model[key{k, text}]
				p := c.find(k, text)
				switch {
				case p == nil:
					id = rng.Uint32()
					if rng.IntN(2) == 0 {
						if p := c.add(k, text, []uint32{id}); p != nil && p.ids[0] == id {
							model[key{k, text}] = id
						}
					}
				case !known || p.ids[0] != id || p.text != text:
					t.Fatalf("found %v %q for %q, added was %v", p.ids, p.text, text, id)
				default:
					found++
					if place := &p.links[0]; rng.IntN(10) == 0 {
						c.link(p, place, &link{tail: make([]uint32, rng.IntN(20)), keys: nil})
					}
				}
				if s := c.Stats(); rng.IntN(100) == 0 && s.Bytes > limit {
					t.Fatalf("%d bytes of %d", s.Bytes, limit)
				}
			}
			if (found > 0) != (limit > 50_000) {
				t.Errorf("%d found", found)
			}
			checkBytesOf(t, c)
		})
	}
}

// checkBytesOf adds up what a cache says it holds.
func checkBytesOf(t *testing.T, c *Cache) {
	t.Helper()
	var sum int64
	for i := range c.shards {
		s := &c.shards[i]
		for j := range s.slots {
			if p := s.slots[j].part.Load(); p != nil {
				sum += int64(len(p.text)) + 4*int64(len(p.ids)) + partOverhead + p.links[0].Load().bytes() + p.links[1].Load().bytes()
			}
		}
	}
	if got := c.Stats().Bytes; got != sum {
		t.Errorf("%d bytes counted, %d held", got, sum)
	}
}

func TestCacheKeepsWhatIsUsed(t *testing.T) {
	c := NewCache(2 << 20)
	text := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", 500)) }
	key := func(i int) partKey { return partKey{hash: mix(uint64(i) + 1)} }
	for i := range 200 {
		c.add(key(i), text(i), []uint32{uint32(i)})
	}
	for i := range 20_000 {
		c.add(key(1000+i), text(1000+i), []uint32{1})
		if i%10 == 0 { // the first are asked for all the time
			for j := range 200 {
				c.find(key(j), text(j))
			}
		}
	}
	kept := 0
	for i := range 200 {
		if c.find(key(i), text(i)) != nil {
			kept++
		}
	}
	if kept < 190 {
		t.Errorf("%d of 200 kept", kept)
	}
}

func TestSaltsDoNotShare(t *testing.T) {
	m := model(t, spmSmall)
	c := NewCache(1 << 20)
	text := mixed(500, 1)
	for _, salt := range []string{"", "a", "b", ""} {
		if _, err := m.EncodeCached(t.Context(), c.Space(salt), nil, text, false); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.Misses != 3 || s.Hits != 1 {
		t.Errorf("%+v", s)
	}
	var none *Cache
	if none.Space("a") != (Space{}) {
		t.Error("a space of no cache")
	}
}
