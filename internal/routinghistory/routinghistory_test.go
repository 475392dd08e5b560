package routinghistory

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

func chain(text string, size, limit int) []Chunk {
	var c Chain
	c.Reset(7, size, limit)
	c.Add([]byte(text))
	return slices.Clone(c.Chunks())
}

func TestChainsNameBeginnings(t *testing.T) {
	text := strings.Repeat("All that is gold does not glitter. ", 40)
	all := chain(text, 64, 1000)
	if len(all) != len(text)/64 {
		t.Fatalf("%d chunks of %d bytes", len(all), len(text))
	}
	for cut := 0; cut < len(text); cut += 13 {
		if got := chain(text[:cut], 64, 1000); !slices.Equal(got, all[:cut/64]) {
			t.Errorf("the first %d bytes have other chunks", cut)
		}
		other := []byte(text)
		other[cut] ^= 1
		got := chain(string(other), 64, 1000)
		for i := range got {
			if same := got[i] == all[i]; same != (i < cut/64) {
				t.Errorf("byte %d is another, and chunk %d the same: %v", cut, i, same)
			}
		}
	}
	if got := chain(text, 64, 3); !slices.Equal(got, all[:3]) {
		t.Errorf("bounded: %d chunks", len(got))
	}
	if len(chain("x", 64, 1)) != 0 || len(chain("", 64, 1)) != 0 || len(chain(text, 64, 0)) != 0 {
		t.Error("chunks of nothing")
	}
	var c Chain
	c.Reset(8, 64, 1000)
	c.Add([]byte(text))
	if c.Chunks()[0] == all[0] {
		t.Error("another root, and the same names")
	}
}

// FuzzChain: pieces make no difference.
func FuzzChain(f *testing.F) {
	f.Add([]byte("some text that is added in pieces, whatever they are"), uint64(1), uint8(1))
	f.Add(make([]byte, 300), uint64(99), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64, chunk uint8) {
		size := 1 + int(chunk%70)
		want := chain(string(text), size, 20)
		r := rand.New(rand.NewPCG(seed, 1))
		var c Chain
		c.Reset(1, 8, 5)
		c.Add([]byte("left over from before"))
		c.Reset(7, size, 20)
		if got := c.Rest(); got != 20*size {
			t.Errorf("%d bytes count, want %d", got, 20*size)
		}
		for rest := text; len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			c.Add(rest[:n])
			rest = rest[n:]
			if got, want := c.Rest(), 20*size-(len(text)-len(rest)); got != max(0, want) {
				t.Errorf("%d bytes still count after %d, want %d", got, len(text)-len(rest), max(0, want))
			}
		}
		if !slices.Equal(c.Chunks(), want) {
			t.Errorf("in pieces %x, at once %x", c.Chunks(), want)
		}
	})
}

// model is a Memory that is plain: a list, the most recent chunk first.
type model struct {
	limit int
	list  []Chunk
}

func (m *model) record(chain []Chunk) {
	chain = chain[:min(len(chain), m.limit)]
	for _, c := range slices.Backward(chain) {
		m.list = slices.Insert(slices.DeleteFunc(m.list, func(o Chunk) bool { return o == c }), 0, c)
	}
	m.list = m.list[:min(len(m.list), m.limit)]
}

func (m *model) match(chain []Chunk) int {
	for i, c := range chain {
		if !slices.Contains(m.list, c) {
			return i
		}
	}
	return len(chain)
}

// TestMemoryIsItsModel: a tree of conversations, routed and asked for at random.
func TestMemoryIsItsModel(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		limit := 1 + r.IntN(60)
		memory, plain := NewMemory(limit), &model{limit: limit}
		next := Chunk(0)
		chains := [][]Chunk{nil}
		for step := range 400 {
			c := slices.Clone(chains[r.IntN(len(chains))])
			c = c[:r.IntN(len(c)+1)]
			for range r.IntN(12) {
				next++
				c = append(c, next)
			}
			chains = append(chains, c)
			if r.IntN(3) > 0 {
				memory.Record(c)
				plain.record(c)
			}
			if memory.Len() != len(plain.list) || memory.Len() > limit {
				t.Fatalf("seed %d, step %d: holds %d chunks, its model %d, at most %d", seed, step, memory.Len(), len(plain.list), limit)
			}
			for range 5 {
				c := chains[r.IntN(len(chains))]
				if got, want := memory.Match(c, r.IntN(14)), plain.match(c); got != want {
					t.Fatalf("seed %d, step %d: matches %d of %d chunks, its model %d", seed, step, got, len(c), want)
				}
			}
		}
	}
}

// TestACopyOfAMemoryIsAsGood: what a replica that starts has copied, in parts and while texts are routed, holds no chunk without those
// before it; and if nothing was routed meanwhile, it stays the same as the original.
func TestACopyOfAMemoryIsAsGood(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		limit := 1 + r.IntN(60)
		memory, copied := NewMemory(limit), NewMemory(limit)
		before := map[Chunk]Chunk{}
		chains := [][]Chunk{nil}
		route := func(to ...*Memory) {
			c := slices.Clone(chains[r.IntN(len(chains))])
			c = c[:r.IntN(len(c)+1)]
			for range r.IntN(12) {
				next := Chunk(len(before) + 1)
				if len(c) > 0 {
					before[next] = c[len(c)-1]
				} else {
					before[next] = 0
				}
				c = append(c, next)
			}
			chains = append(chains, c)
			for _, m := range to {
				m.Record(c)
			}
		}
		for range r.IntN(40) {
			route(memory)
		}
		quiet := seed%2 == 0
		most := 1 + r.IntN(2*limit)
		for rest := memory.Recent(most); len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			copied.Append(rest[:n])
			copied.Append(rest[:n]) // the answer was aborted, and is repeated
			rest = rest[n:]
			if !quiet {
				route(memory, copied)
			}
		}
		for range 20 {
			held := copied.Recent(limit + 1)
			if len(held) > limit || len(held) != copied.Len() {
				t.Fatalf("seed %d: holds %d chunks, counts %d, at most %d", seed, len(held), copied.Len(), limit)
			}
			for _, c := range held {
				if b := before[c]; b != 0 && !slices.Contains(held, b) {
					t.Fatalf("seed %d: holds chunk %d without %d before it", seed, c, b)
				}
			}
			if all := memory.Recent(limit); quiet && !slices.Equal(held, all[:min(len(held), len(all))]) {
				t.Fatalf("seed %d: holds %v, the original %v", seed, held, all)
			}
			route(memory, copied)
		}
		if quiet && most >= limit && !slices.Equal(copied.Recent(limit), memory.Recent(limit)) {
			t.Fatalf("seed %d: %v has become %v", seed, memory.Recent(limit), copied.Recent(limit))
		}
	}
}

// TestEqualNamesDoNoHarm: hashes can collide, within a chain too.
func TestEqualNamesDoNoHarm(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := NewMemory(1 + r.IntN(8))
		for range 60 {
			chain := make([]Chunk, r.IntN(12))
			for i := range chain {
				chain[i] = Chunk(1 + r.IntN(9))
			}
			m.Record(chain)
			if n := m.Match(chain, r.IntN(14)); n > len(chain) {
				t.Fatalf("seed %d: matches %d of %d chunks", seed, n, len(chain))
			}
			seen := map[int32]bool{}
			for n := m.order[0].next; n != 0 && !seen[n]; n = m.order[n].next {
				seen[n] = true
				if m.at[m.chunks[n]] != n || m.order[m.order[n].next].prev != n {
					t.Fatalf("seed %d: the order of use is broken after %v", seed, chain)
				}
			}
			if len(seen) != m.Len() || m.Len() > m.limit {
				t.Fatalf("seed %d: %d chunks in order, %d held, at most %d", seed, len(seen), m.Len(), m.limit)
			}
		}
	}
}

func TestMemoryOfNothing(t *testing.T) {
	var zero Memory
	zero.Record([]Chunk{1, 2})
	if zero.Match([]Chunk{1}, 1) != 0 || zero.Len() != 0 {
		t.Error("the zero value holds something")
	}
}

func TestMemoryTakesManyGoroutines(t *testing.T) {
	m := NewMemory(100)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for range 300 {
				c := make([]Chunk, r.IntN(30))
				for i := range c {
					c[i] = Chunk(g%2*1000 + i)
				}
				m.Record(c)
				if n := m.Match(c, r.IntN(40)); n > len(c) {
					t.Errorf("matches %d of %d", n, len(c))
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkMatch: a prompt of 8,000 tokens against 100 endpoints that hold half of it.
func BenchmarkMatch(b *testing.B) {
	text := []byte(strings.Repeat("All that is gold does not glitter. ", 32000/35))
	var c Chain
	memories := make([]*Memory, 100)
	c.Reset(1, 64, 4096)
	c.Add(text)
	for i := range memories {
		memories[i] = NewMemory(31250)
		memories[i].Record(c.Chunks()[:len(c.Chunks())/2])
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Reset(1, 64, 4096)
		c.Add(text)
		n := 0
		for _, m := range memories {
			if n = m.Match(c.Chunks(), n); n != len(c.Chunks())/2 {
				b.Fatal("another match")
			}
		}
	}
}

// BenchmarkRecord: prompts of 8,000 tokens, in turn.
func BenchmarkRecord(b *testing.B) {
	var prompts [16][]Chunk
	for i := range prompts {
		prompts[i] = chain(strings.Repeat(string(rune('a'+i))+"ll that is gold does not glitter. ", 32000/35), 64, 4096)
	}
	m := NewMemory(31250)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.Record(prompts[i%len(prompts)])
	}
}

// BenchmarkMatchOfOthers: a prompt of 8,000 tokens against 100 endpoints that hold its first chunk and thousands of others.
func BenchmarkMatchOfOthers(b *testing.B) {
	asked := chain(strings.Repeat("All that is gold does not glitter. ", 32000/35), 64, 4096)
	memories := make([]*Memory, 100)
	for i := range memories {
		memories[i] = NewMemory(31250)
		memories[i].Record(asked[:1])
		for j := range 16 {
			memories[i].Record(chain(strings.Repeat(string(rune('a'+j))+"ll that is gold does not glitter. ", 32000/35), 64, 4096))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for _, m := range memories {
			if n = m.Match(asked, n); n > 1 {
				b.Fatal("another match")
			}
		}
	}
}
