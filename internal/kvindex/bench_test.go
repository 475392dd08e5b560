package kvindex

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// The workload of the benchmarks: endpoints that hold prompts of 512 blocks, half of them shared. In the layout "hot"
// every endpoint has every shared half; in "spread" four have. They are measured after churn: see world.churn.
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
	bytes   float64 // of the heap, by held block
	guesses []*Guess
}

var implementations = []struct {
	name string
	book func() Book
}{
	{"fast", func() Book { return NewIndex(Options{}) }},
	{"plain", func() Book { return New() }},
	{"naive", func() Book { return newNaive() }},
}

func newWorld(book Book, layout string, endpoints, blocks int) *world {
	before := heapBytes()
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
	own := heapBytes() - before
	// Engines serve many requests at a time, so that prompts come in pieces and interleaved.
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
	w.bytes = float64(heapBytes()-before-own) / float64(w.held)
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

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
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

func (w *world) match(b *testing.B, blocks int) {
	requests := w.wholePrompts()
	out := make([]Match, len(w.holders))
	hits, i := 0, 0
	w.book.Match(requests[0][:blocks], w.holders, out)
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadCPU()
	for b.Loop() {
		w.book.Match(requests[i%len(requests)][:blocks], w.holders, out)
		i++
	}
	b.ReportMetric(float64(threadCPU()-start)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(w.bytes, "bytes/block")
	for i := range out {
		hits = max(hits, out[i].Blocks())
	}
	if hits != blocks {
		b.Fatalf("longest match is %d blocks, want %d", hits, blocks)
	}
}

// BenchmarkMatch looks up requests that one endpoint holds in full. cpu-ns/op is the CPU time of the reading thread,
// bytes/block what the heap grew by per held block.
func BenchmarkMatch(b *testing.B) {
	for _, impl := range implementations {
		b.Run("impl="+impl.name, func(b *testing.B) {
			for _, layout := range []string{"hot", "spread"} {
				b.Run("layout="+layout, func(b *testing.B) {
					w := newWorld(impl.book(), layout, 64, 40_000)
					b.Run("blocks=64", func(b *testing.B) { w.match(b, 64) })
					b.Run("blocks=512", func(b *testing.B) { w.match(b, 512) })
					if impl.name == "fast" {
						b.Run("blocks=512/writes=1M", func(b *testing.B) { w.matchWhileWriting(b, 512) })
					}
				})
			}
		})
	}
}

// BenchmarkMatchManyEndpoints looks up among 512 endpoints, which together hold as much as those of BenchmarkMatch.
func BenchmarkMatchManyEndpoints(b *testing.B) {
	for _, impl := range implementations[:1] {
		b.Run("impl="+impl.name, func(b *testing.B) {
			for _, layout := range []string{"hot", "spread"} {
				b.Run("layout="+layout, func(b *testing.B) {
					w := newWorld(impl.book(), layout, 512, 5120)
					b.Run("endpoints=512/blocks=512", func(b *testing.B) { w.match(b, 512) })
				})
			}
		})
	}
}

// matchWhileWriting is match while another goroutine applies a million block events a second.
func (w *world) matchWhileWriting(b *testing.B, blocks int) {
	var stop atomic.Bool
	var events atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(2, 2))
		for began := time.Now(); !stop.Load(); {
			if due := time.Since(began).Microseconds(); events.Load() >= due {
				time.Sleep(50 * time.Microsecond)
				continue
			}
			// A tail is evicted, and comes again. It is a prompt with holes, which is never asked for.
			p := w.prompts[rng.IntN(len(w.prompts))]
			if p.whole {
				continue
			}
			cut := sharedBlocks + rng.IntN(sharedBlocks/eventBlocks)*eventBlocks
			w.writers[p.endpoint].Drop(kvblock.GPU, 0, p.hashes[cut:])
			w.store(p, cut, promptBlocks)
			events.Add(int64(2 * (promptBlocks - cut)))
		}
	}()
	began := time.Now()
	w.match(b, blocks)
	stop.Store(true)
	<-done
	b.ReportMetric(float64(events.Load())/time.Since(began).Seconds(), "events/s")
}

// BenchmarkWrite lets prompts of full endpoints go and come again: each operation is an event that stores, after one of
// as many blocks that drops, in a random prompt. blocks/cpu-s counts both, by the CPU time of the whole process.
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
	for _, impl := range implementations[:2] {
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

// BenchmarkClear clears an endpoint of 400,000 blocks beside a reader. clear-ns is how long Clear takes, sweep-ns/block
// the time until all memory is back. The reader looks up 64 blocks all the time: p999-ns and longest-ns are its
// slowest lookups meanwhile, quiet-p999-ns and quiet-longest-ns those in as much time without a clear, for whatever
// else the machine does shows in both.
func BenchmarkClear(b *testing.B) {
	for _, impl := range implementations[:2] {
		b.Run("impl="+impl.name, func(b *testing.B) {
			w := newWorld(impl.book(), "spread", 8, 40_000)
			writer := w.book.Writer(w.book.Join())
			keys := w.randomKeys(nil, 400_000)
			hashes := make([]kvevent.Hash, len(keys))
			for i := range hashes {
				hashes[i] = kvevent.Hash(keys[i])
			}
			r := reader{w: w, requests: w.wholePrompts(), out: make([]Match, len(w.holders))}
			var clears, sweeps time.Duration
			var meanwhile, quiet []time.Duration
			for b.Loop() {
				b.StopTimer()
				for from := 0; from < len(keys); from += promptBlocks {
					to := min(from+promptBlocks, len(keys))
					writer.Store(kvblock.GPU, 0, Parent{}, hashes[from:to], keys[from:to])
				}
				runtime.GC()
				var swept atomic.Bool
				b.StartTimer()
				began := time.Now()
				go func() {
					began := time.Now()
					writer.Clear()
					clears += time.Since(began)
					if ix, ok := w.book.(*Index); ok {
						ix.Settle()
					}
					swept.Store(true)
				}()
				meanwhile = r.read(meanwhile, swept.Load)
				took := time.Since(began)
				sweeps += took
				b.StopTimer()
				began = time.Now()
				quiet = r.read(quiet, func() bool { return time.Since(began) > took })
				b.StartTimer()
			}
			b.ReportMetric(float64(clears)/float64(b.N), "clear-ns")
			b.ReportMetric(float64(sweeps)/float64(b.N)/400_000, "sweep-ns/block")
			for name, times := range map[string][]time.Duration{"": meanwhile, "quiet-": quiet} {
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)*999/1000]), name+"p999-ns")
				b.ReportMetric(float64(times[len(times)-1]), name+"longest-ns")
			}
		})
	}
}

// reader looks up again and again.
type reader struct {
	w        *world
	requests [][]kvblock.Key
	out      []Match
}

// read appends how long lookups take to times, until told to stop.
func (r *reader) read(times []time.Duration, stop func() bool) []time.Duration {
	for i := 0; i == 0 || !stop(); i++ {
		began := time.Now()
		r.w.book.Match(r.requests[i%len(r.requests)][:64], r.w.holders, r.out)
		times = append(times, time.Since(began))
	}
	return times
}

// threadCPU is the CPU time of this thread, in nanoseconds.
func threadCPU() int64 { return cpuTime(1) }

// processCPU is the CPU time of all threads, in nanoseconds.
func processCPU() int64 { return cpuTime(0) }

func cpuTime(who int) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
