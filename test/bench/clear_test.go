package bench

import (
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// BenchmarkClear clears an endpoint beside a reader, which looks up 64 blocks at 8 other endpoints all the time. clear-ns
// is how long Clear takes, sweep-cpu-ns/block the CPU time until all memory is back. longest-cpu-ns is the most CPU time
// that a lookup took meanwhile, p999-ns and longest-ns are by the clock on the wall. quiet- says the same of as much time
// without a clear: whatever else the machine does shows in both.
func BenchmarkClear(b *testing.B) {
	for _, impl := range implementations[:2] {
		b.Run("impl="+impl.name, func(b *testing.B) {
			w := newWorld(b, impl.book(), "spread", 8, 40_000)
			for _, blocks := range []int{100_000, 400_000} {
				b.Run("blocks="+strconv.Itoa(blocks), func(b *testing.B) { w.clearOne(b, blocks) })
			}
		})
	}
}

func (w *world) clearOne(b *testing.B, blocks int) {
	holder := w.book.Join()
	defer w.book.Leave(holder)
	writer := w.book.Writer(holder)
	keys := make([]kvblock.Key, blocks)
	hashes := make([]kvevent.Hash, blocks)
	for i := range keys {
		keys[i] = kvblock.Key(w.rng.Uint64() | 1)
		hashes[i] = kvevent.Hash(keys[i])
	}
	r := reader{w: w, requests: w.requests(), out: make([]kvindex.Match, len(w.holders))}
	runtime.LockOSThread() // the reader's CPU time is its thread's
	defer runtime.UnlockOSThread()
	var clears time.Duration
	var sweeps int64
	var meanwhile, quiet []lookup
	for b.Loop() {
		b.StopTimer()
		for from := 0; from < blocks; from += promptBlocks {
			to := min(from+promptBlocks, blocks)
			writer.Store(kvblock.GPU, 0, kvindex.Parent{}, hashes[from:to], keys[from:to])
		}
		runtime.GC()
		var swept atomic.Bool
		b.StartTimer()
		began, cpu, own := time.Now(), processCPU(), threadCPU()
		go func() {
			began := time.Now()
			writer.Clear()
			clears += time.Since(began)
			if ix, ok := w.book.(*kvindex.Index); ok {
				ix.Settle()
			}
			swept.Store(true)
		}()
		meanwhile = r.read(meanwhile, swept.Load)
		sweeps += processCPU() - cpu - (threadCPU() - own)
		took := time.Since(began)
		b.StopTimer()
		began = time.Now()
		quiet = r.read(quiet, func() bool { return time.Since(began) > took })
		b.StartTimer()
	}
	b.ReportMetric(float64(clears)/float64(b.N), "clear-ns")
	b.ReportMetric(float64(sweeps)/float64(b.N)/float64(blocks), "sweep-cpu-ns/block")
	for name, lookups := range map[string][]lookup{"": meanwhile, "quiet-": quiet} {
		slices.SortFunc(lookups, func(a, b lookup) int { return int(a.cpu - b.cpu) })
		b.ReportMetric(float64(lookups[len(lookups)-1].cpu), name+"longest-cpu-ns")
		slices.SortFunc(lookups, func(a, b lookup) int { return int(a.wall - b.wall) })
		b.ReportMetric(float64(lookups[len(lookups)*999/1000].wall), name+"p999-ns")
		b.ReportMetric(float64(lookups[len(lookups)-1].wall), name+"longest-ns")
	}
}

// reader looks up again and again.
type reader struct {
	w        *world
	requests [][]kvblock.Key
	out      []kvindex.Match
}

// lookup is how long one took.
type lookup struct{ wall, cpu time.Duration }

// read appends how long lookups take, until stop returns true.
func (r *reader) read(lookups []lookup, stop func() bool) []lookup {
	for i := 0; i == 0 || !stop(); i++ {
		began, cpu := time.Now(), threadCPU()
		r.w.book.Match(r.requests[i%len(r.requests)][:64], r.w.holders, r.out)
		lookups = append(lookups, lookup{time.Since(began), time.Duration(threadCPU() - cpu)})
	}
	return lookups
}
