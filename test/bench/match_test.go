package bench

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// BenchmarkMatch looks up requests that one of 64 endpoints holds in full, after churn. cpu-ns/op is the CPU time of the
// reading thread, bytes/block what the heap grew by per held block, streams included.
func BenchmarkMatch(b *testing.B) {
	eachWorld(b, 64, 40_000, func(b *testing.B, w *world, fast bool) {
		b.Run("blocks=64", func(b *testing.B) { w.match(b, 64) })
		b.Run("blocks=512", func(b *testing.B) { w.match(b, 512) })
		if fast {
			b.Run("blocks=512/writes=1M", func(b *testing.B) { w.matchWhileWriting(b, 512) })
		}
	})
}

// BenchmarkMatchManyEndpoints looks up among 512 endpoints, which together hold as much as those of BenchmarkMatch.
func BenchmarkMatchManyEndpoints(b *testing.B) {
	eachWorld(b, 512, 5120, func(b *testing.B, w *world, _ bool) {
		b.Run("blocks=512/endpoints=512", func(b *testing.B) { w.match(b, 512) })
	})
}

func eachWorld(b *testing.B, endpoints, blocks int, run func(b *testing.B, w *world, fast bool)) {
	b.Helper()
	for _, impl := range implementations {
		b.Run("impl="+impl.name, func(b *testing.B) {
			for _, layout := range []string{"hot", "spread"} {
				b.Run("layout="+layout, func(b *testing.B) {
					run(b, newWorld(b, impl.book(), layout, endpoints, blocks), impl.name == "fast")
				})
			}
		})
	}
}

func (w *world) match(b *testing.B, blocks int) {
	requests := w.requests()
	out := make([]kvindex.Match, len(w.holders))
	w.book.Match(requests[0][:blocks], w.holders, out)
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	i, start := 0, threadCPU()
	for b.Loop() {
		w.book.Match(requests[i%len(requests)][:blocks], w.holders, out)
		i++
	}
	b.ReportMetric(float64(threadCPU()-start)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(w.bytes, "bytes/block")
	hits := 0
	for i := range out {
		hits = max(hits, out[i].Blocks())
	}
	if hits != blocks {
		b.Fatalf("longest match is %d blocks, want %d", hits, blocks)
	}
}

// matchWhileWriting is match while another goroutine publishes events of a million blocks a second: tails are evicted block
// by block, and stored again. They are of prompts with holes, which are never requested.
func (w *world) matchWhileWriting(b *testing.B, blocks int) {
	type change struct {
		endpoint, blocks int
		gone, back       []byte
	}
	var changes []change
	for _, p := range w.prompts {
		if !p.whole {
			cut := sharedBlocks + w.rng.IntN(sharedBlocks/eventBlocks)*eventBlocks
			changes = append(changes, change{
				p.endpoint, promptBlocks - cut, w.removed(p, cut, promptBlocks), w.stored(p, cut, promptBlocks, eventBlocks),
			})
		}
	}
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
			c := &changes[rng.IntN(len(changes))]
			w.send(c.endpoint, c.gone)
			w.send(c.endpoint, c.back)
			events.Add(int64(2 * c.blocks))
		}
	}()
	began := time.Now()
	w.match(b, blocks)
	stop.Store(true)
	<-done
	w.settle()
	b.ReportMetric(float64(events.Load())/time.Since(began).Seconds(), "events/s")
}

// BenchmarkIngest applies events from their payloads to the index: decoder, stream, mirror, keys, index. An op is one
// message with one event; the blocks are the tails of random prompts, which are removed and stored again, and only the
// named kind is measured. blocks/cpu-s is by the CPU time of the process.
func BenchmarkIngest(b *testing.B) {
	for _, impl := range implementations {
		b.Run("impl="+impl.name, func(b *testing.B) {
			w := newWorld(b, impl.book(), "spread", 64, 40_000)
			for _, event := range []string{"stored", "removed"} {
				for _, blocks := range []int{1, eventBlocks} {
					b.Run("event="+event+"/blocks="+strconv.Itoa(blocks), func(b *testing.B) { w.ingest(b, event == "stored", blocks) })
				}
			}
		})
	}
}

// ingestPrompts are the prompts that lose their tails at a time, tailBlocks each.
const (
	ingestPrompts = 512
	tailBlocks    = 128
)

func (w *world) ingest(b *testing.B, stored bool, blocks int) {
	type sending struct {
		endpoint int
		payload  []byte
	}
	var gone, back []sending
	for _, i := range w.rng.Perm(len(w.prompts))[:ingestPrompts] {
		p := w.prompts[i]
		for from := promptBlocks - tailBlocks; from < promptBlocks; from += blocks {
			back = append(back, sending{p.endpoint, w.stored(p, from, from+blocks, blocks)})
		}
		for to := promptBlocks; to > promptBlocks-tailBlocks; to -= blocks {
			var m message
			m.removed(p.hashes[to-blocks : to])
			gone = append(gone, sending{p.endpoint, m.payload()})
		}
	}
	all := func(list []sending) {
		for i := range list {
			w.send(list[i].endpoint, list[i].payload)
		}
		w.settle()
	}
	measured, undo := back, func() { all(gone) }
	if !stored {
		measured, undo = gone, func() { all(back) }
	}
	if stored {
		undo()
	}
	b.ReportAllocs()
	i, n := 0, 0
	start, cpu := processCPU(), int64(0)
	for b.Loop() {
		w.send(measured[i].endpoint, measured[i].payload)
		n += blocks
		if i++; i == len(measured) {
			w.settle()
			cpu += processCPU() - start
			b.StopTimer()
			undo()
			i, start = 0, processCPU()
			b.StartTimer()
		}
	}
	w.settle()
	cpu += processCPU() - start
	b.ReportMetric(float64(n)/(float64(cpu)/1e9), "blocks/cpu-s")
	all(measured[i:])
	if !stored {
		all(back)
	}
}
