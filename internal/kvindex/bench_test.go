package kvindex

import (
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// The workload of the benchmarks here, which are of writers alone (test/bench measures the full path of events):
// endpoints that hold prompts of 512 blocks, half of them shared. In the layout "hot" every endpoint has every shared
// half; in "spread" four have. They are measured after churn: see world.churn.
const (
	promptBlocks = 512
	sharedBlocks = promptBlocks / 2
	eventBlocks  = 32
)

type prompt struct {
	endpoint int
	keys     []kvblock.Key
	hashes   []kvevent.Hash
	whole    bool // nothing of it is missing at its endpoint
}

type world struct {
	book    Book
	rng     *rand.Rand
	holders []Holder
	writers []Writer
	prompts []*prompt
	byOwner [][]*prompt
	held    int
	guesses []*Guess
}

var implementations = []struct {
	name string
	book func() Book
}{
	{"fast", func() Book { return NewIndex(Options{}) }},
	{"plain", func() Book { return New() }},
}

func newWorld(book Book, layout string, endpoints, blocks int) *world {
	w := &world{book: book, rng: rand.New(rand.NewPCG(1, uint64(endpoints)))}
	for range endpoints {
		h := book.Join()
		w.holders = append(w.holders, h)
		w.writers = append(w.writers, book.Writer(h))
	}
	each := blocks / promptBlocks
	shared := each // prefixes, each at every endpoint
	if layout == "spread" {
		shared = each * endpoints / 4
	}
	prefixes := make([][]kvblock.Key, shared)
	for i := range prefixes {
		prefixes[i] = w.randomKeys(nil, sharedBlocks)
	}
	w.byOwner = make([][]*prompt, endpoints)
	for e := range endpoints {
		for i := range each {
			prefix := prefixes[(e*each/4+i)%shared]
			p := &prompt{endpoint: e, keys: w.randomKeys(append([]kvblock.Key(nil), prefix...), promptBlocks), whole: true}
			for _, key := range p.keys {
				p.hashes = append(p.hashes, kvevent.Hash(scramble(uint64(key)+uint64(e))))
			}
			w.prompts = append(w.prompts, p)
			w.byOwner[e] = append(w.byOwner[e], p)
		}
	}
	// Engines serve many requests at a time, so that prompts arrive in pieces and interleaved.
	for at := 0; at < promptBlocks; at += eventBlocks {
		for _, i := range w.rng.Perm(len(w.prompts)) {
			w.store(w.prompts[i], at, at+eventBlocks)
		}
	}
	w.churn()
	w.held = endpoints * each * promptBlocks
	if ix, ok := book.(*Index); ok {
		ix.Settle()
		_, w.held, _ = ix.Size()
	}
	return w
}

func (w *world) randomKeys(keys []kvblock.Key, n int) []kvblock.Key {
	for len(keys) < n {
		keys = append(keys, kvblock.Key(w.rng.Uint64()|1))
	}
	return keys
}

func (w *world) store(p *prompt, from, to int) {
	for ; from < to; from += eventBlocks {
		end := min(from+eventBlocks, to)
		var parent Parent
		if from > 0 {
			parent = Parent{p.hashes[from-1], true}
		}
		w.writers[p.endpoint].Store(kvblock.GPU, 0, parent, p.hashes[from:end], p.keys[from:end])
	}
}

// drop drops blocks from the end on, as engines evict them.
func (w *world) drop(tier kvblock.Tier, p *prompt, from, to int) {
	for i := to - 1; i >= from; i-- {
		w.writers[p.endpoint].Drop(tier, 0, p.hashes[i:i+1])
	}
}

// churn lets endpoints be cleared and filled again, evicts the second half of every prompt once and lets it come back,
// announces copies of a tenth of the blocks and drops most of them again, keeps a tenth of the prompts on the CPU too,
// lets some prompts have their tail there only, leaves holes in a fiftieth of the prompts, and leaves two guesses per
// endpoint.
func (w *world) churn() {
	for e := 0; e < len(w.writers); e += 16 {
		w.writers[e].Clear()
		for _, p := range w.byOwner[e] {
			w.store(p, 0, promptBlocks)
		}
	}
	for _, i := range w.rng.Perm(len(w.prompts)) {
		p := w.prompts[i]
		cut := sharedBlocks + w.rng.IntN(sharedBlocks)
		w.drop(kvblock.GPU, p, cut, promptBlocks)
		w.store(p, cut, promptBlocks)
		if w.rng.IntN(10) == 0 {
			from := w.rng.IntN(promptBlocks - eventBlocks)
			for range 3 {
				w.store(p, from, from+eventBlocks)
			}
			w.drop(kvblock.GPU, p, from, from+eventBlocks)
			w.drop(kvblock.GPU, p, from, from+eventBlocks)
		}
		if w.rng.IntN(10) == 0 {
			w.writers[p.endpoint].Copy(kvblock.CPU, 0, p.hashes)
			if w.rng.IntN(4) == 0 {
				w.drop(kvblock.GPU, p, promptBlocks-64, promptBlocks)
				p.whole = false
			}
		}
		if w.rng.IntN(50) == 0 {
			for range 3 {
				hole := sharedBlocks + w.rng.IntN(sharedBlocks)
				w.writers[p.endpoint].Drop(kvblock.GPU, 0, p.hashes[hole:hole+1])
			}
			p.whole = false
		}
	}
	for e := range w.writers {
		for range 2 {
			keys := append([]kvblock.Key(nil), w.byOwner[e][w.rng.IntN(len(w.byOwner[e]))].keys[:sharedBlocks]...)
			w.guesses = append(w.guesses, w.book.Speculate(w.holders[e], w.randomKeys(keys, promptBlocks)))
		}
	}
}

// wholePrompts are requests that hit in full at one endpoint, in random order.
func (w *world) wholePrompts() [][]kvblock.Key {
	var all [][]kvblock.Key
	for _, p := range w.prompts {
		if p.whole {
			all = append(all, p.keys)
		}
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// BenchmarkWrite removes prompts of full endpoints and stores them again: each operation is an event that stores, after one
// of as many blocks that drops, in a random prompt. blocks/cpu-s counts both, by the CPU time of the process.
func BenchmarkWrite(b *testing.B) {
	for _, impl := range implementations {
		b.Run("impl="+impl.name, func(b *testing.B) {
			w := newWorld(impl.book(), "spread", 64, 40_000)
			for _, batch := range []int{1, eventBlocks} {
				name := "batch=32"
				if batch == 1 {
					name = "batch=1"
				}
				b.Run(name, func(b *testing.B) { w.write(b, batch) })
			}
		})
	}
}

func (w *world) write(b *testing.B, batch int) {
	b.ReportAllocs()
	// Prompts lose their tail, event by event, and then get it back.
	type tail struct {
		p  *prompt
		at int
	}
	var drops, stores []tail
	n := 0
	start := processCPU()
	for b.Loop() {
		if len(stores) == 0 {
			for range 64 {
				p := w.prompts[w.rng.IntN(len(w.prompts))]
				for at := promptBlocks - batch; at >= promptBlocks-2*eventBlocks; at -= batch {
					drops = append(drops, tail{p, at})
				}
			}
			for i := len(drops) - 1; i >= 0; i-- {
				stores = append(stores, drops[i])
			}
			for _, d := range drops {
				w.writers[d.p.endpoint].Drop(kvblock.GPU, 0, d.p.hashes[d.at:d.at+batch])
			}
			n += len(drops) * batch
			drops = drops[:0]
		}
		s := stores[0]
		stores = stores[1:]
		w.writers[s.p.endpoint].Store(kvblock.GPU, 0, Parent{s.p.hashes[s.at-1], true}, s.p.hashes[s.at:s.at+batch], s.p.keys[s.at:s.at+batch])
		n += batch
	}
	b.ReportMetric(float64(n)/(float64(processCPU()-start)/1e9), "blocks/cpu-s")
	for _, s := range stores {
		w.store(s.p, s.at, s.at+batch)
	}
}

// BenchmarkFill stores 2.56 million blocks in an empty index, in events of 32 blocks.
func BenchmarkFill(b *testing.B) {
	for _, impl := range implementations {
		b.Run("impl="+impl.name, func(b *testing.B) {
			w := newWorld(impl.book(), "spread", 64, 40_000)
			n := 0
			var cpu int64
			for b.Loop() {
				b.StopTimer()
				w.book = impl.book()
				for e := range w.writers {
					w.holders[e] = w.book.Join()
					w.writers[e] = w.book.Writer(w.holders[e])
				}
				runtime.GC()
				b.StartTimer()
				start := processCPU()
				for _, p := range w.prompts {
					w.store(p, 0, promptBlocks)
					n += promptBlocks
				}
				cpu += processCPU() - start
			}
			b.ReportMetric(float64(n)/(float64(cpu)/1e9), "blocks/cpu-s")
		})
	}
}

// BenchmarkSpeculate guesses that a request of 512 blocks, half of them known, will be held, and takes it back.
func BenchmarkSpeculate(b *testing.B) {
	for _, impl := range implementations {
		b.Run("impl="+impl.name, func(b *testing.B) {
			w := newWorld(impl.book(), "hot", 64, 40_000)
			var requests [][]kvblock.Key
			for range 256 {
				keys := append([]kvblock.Key(nil), w.prompts[w.rng.IntN(len(w.prompts))].keys[:sharedBlocks]...)
				requests = append(requests, w.randomKeys(keys, promptBlocks))
			}
			b.ReportAllocs()
			i, start := 0, processCPU()
			for b.Loop() {
				w.book.Speculate(w.holders[i%64], requests[i%256]).Withdraw()
				i++
			}
			b.ReportMetric(float64(processCPU()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processCPU is the CPU time of all threads, in nanoseconds.
func processCPU() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkWriteBeyondTheBudget stores chains of some holders in turn in an index that is full, so that each needs others to go: long
// prompts, or chains of a single block.
func BenchmarkWriteBeyondTheBudget(b *testing.B) {
	for name, length := range map[string]int{"prompts": promptBlocks, "single": 1} {
		b.Run("chains="+name, func(b *testing.B) {
			ix := NewIndex(Options{Budget: 32 << 20})
			var writers []Writer
			for range 16 {
				writers = append(writers, ix.Writer(ix.Join()))
			}
			seed, n := uint64(0), 0
			store := func() {
				seed++
				keys := someKeys(seed, length)
				writers[seed%16].Store(kvblock.GPU, 0, Parent{}, named(0, keys...), keys)
				n += length
			}
			for ix.Evicted() == 0 {
				store()
			}
			n = 0
			start := processCPU()
			for b.Loop() {
				store()
			}
			b.ReportMetric(float64(processCPU()-start)/float64(n), "cpu-ns/block")
		})
	}
}
