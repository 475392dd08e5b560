// Package bench measures the index as it is used: filled by streams of engine events, through decoder and mirror. `make
// bench-index` runs it; docs/performance.md has the figures and how to read them.
package bench

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// The workload: endpoints that hold prompts of 512 blocks, half of them shared. In the layout "hot" every endpoint has
// every shared half; in "spread" four have.
const (
	blockTokens  = 16
	promptBlocks = 512
	sharedBlocks = promptBlocks / 2
	eventBlocks  = 32
	vocabulary   = 128_000
	model        = "model"
)

var implementations = []struct {
	name string
	book func() kvindex.Book
}{
	{"fast", func() kvindex.Book { return kvindex.NewIndex(kvindex.Options{}) }},
	{"plain", func() kvindex.Book { return kvindex.New() }},
	{"naive", func() kvindex.Book { return newNaive() }},
}

// prompt is what one endpoint holds of one request.
type prompt struct {
	endpoint       int
	prefix, suffix uint64 // what its tokens are drawn from
	keys           []kvblock.Key
	hashes         []kvevent.Hash
	whole          bool // nothing of it is missing at its endpoint
}

// publisher is an engine without sockets: what is sent goes into the queue of its stream.
type publisher struct {
	take  func(frames [][]byte) error
	stats *events.Stats
	sent  uint64
}

// world is an index with the streams that fill it. It is an events.Source, whose addresses are numbers of publishers.
type world struct {
	tb         testing.TB
	book       kvindex.Book
	rng        *rand.Rand
	seed       kvblock.Seed
	streams    *events.Manager
	holders    []kvindex.Holder
	publishers []*publisher
	subscribed sync.WaitGroup
	prompts    []*prompt
	byOwner    [][]*prompt
	guesses    []*kvindex.Guess
	tokens     []uint32 // scratch
	held       int
	bytes      float64 // of the heap, by held block
}

// newWorld fills an index with about so many blocks at each endpoint, and churns it.
func newWorld(tb testing.TB, book kvindex.Book, layout string, endpoints, blocks int) *world {
	tb.Helper()
	seed, err := kvblock.NewSeed([]byte(strings.Repeat("s", kvblock.MinSeedBytes)))
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, book: book, seed: seed, rng: rand.New(rand.NewPCG(1, uint64(endpoints)))}
	w.write(layout, endpoints, blocks/promptBlocks)
	before := heapBytes()
	w.open(endpoints)
	// Engines serve many requests at a time, so that prompts arrive in pieces and interleaved.
	for at := 0; at < promptBlocks; at += eventBlocks {
		for _, i := range w.rng.Perm(len(w.prompts)) {
			w.store(w.prompts[i], at, at+eventBlocks)
		}
	}
	w.churn()
	w.settle()
	if ix, ok := book.(*kvindex.Index); ok {
		ix.Settle()
	}
	if _, w.held, _ = book.Size(); w.held < endpoints*(blocks/promptBlocks)*promptBlocks*9/10 {
		tb.Fatalf("only %d blocks are held", w.held)
	}
	w.bytes = float64(heapBytes()-before) / float64(w.held)
	tb.Cleanup(w.streams.Close)
	return w
}

// write makes up the prompts, so many for each endpoint.
func (w *world) write(layout string, endpoints, each int) {
	prefixes := each // each at every endpoint
	if layout == "spread" {
		prefixes = each * endpoints / 4
	}
	w.byOwner = make([][]*prompt, endpoints)
	for e := range endpoints {
		for i := range each {
			p := &prompt{endpoint: e, prefix: uint64((e*each/4 + i) % prefixes), suffix: uint64(1<<40 + len(w.prompts)), whole: true}
			p.keys = kvblock.AppendKeys(nil, w.seed.Root(model, ""), w.tokensOf(p, 0, promptBlocks), blockTokens)
			p.hashes = make([]kvevent.Hash, promptBlocks)
			for b, key := range p.keys {
				p.hashes[b] = kvevent.Hash(endpoint.Mix(uint64(key) + uint64(e)))
			}
			w.prompts = append(w.prompts, p)
			w.byOwner[e] = append(w.byOwner[e], p)
		}
	}
}

// tokensOf are the tokens of blocks [from, to), until the next call.
func (w *world) tokensOf(p *prompt, from, to int) []uint32 {
	w.tokens = w.tokens[:0]
	for b := from; b < to; b++ {
		text := p.prefix
		if b >= sharedBlocks {
			text = p.suffix
		}
		for k := range uint64(blockTokens) {
			w.tokens = append(w.tokens, uint32(endpoint.Mix(text<<20+uint64(b)<<4+k)%vocabulary))
		}
	}
	return w.tokens
}

// open begins the streams.
func (w *world) open(endpoints int) {
	w.streams = events.New(events.Config{Source: w})
	var feeds []events.Feed
	for e := range endpoints {
		h := w.book.Join()
		w.holders = append(w.holders, h)
		w.publishers = append(w.publishers, &publisher{})
		feeds = append(feeds, events.Feed{
			Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: strconv.Itoa(e)}, EventsAddress: strconv.Itoa(e)},
			Engine:   "VLLM", Writer: w.book.Writer(h),
			Keys: events.Keys{Model: model, Seed: w.seed, BlockTokens: blockTokens},
		})
	}
	w.subscribed.Add(endpoints)
	w.streams.Set("pool", feeds)
	w.subscribed.Wait()
	for _, s := range w.streams.Status("pool") {
		e, err := strconv.Atoi(s.Endpoint.EventsAddress)
		if err != nil {
			w.tb.Fatal(err)
		}
		w.publishers[e].stats = s.Stats
	}
}

// Subscribe implements events.Source.
func (w *world) Subscribe(ctx context.Context, addr string, up func(), each func(frames [][]byte) error) error {
	e, err := strconv.Atoi(addr)
	if err != nil {
		return err
	}
	up()
	w.publishers[e].take = each
	w.subscribed.Done()
	<-ctx.Done()
	return ctx.Err()
}

// Replay implements events.Source. Nothing is lost on the way, so it is never called.
func (w *world) Replay(context.Context, string, uint64, func(uint64, []byte) error) error { return nil }

// maxQueued is how much can wait in a stream, well below where it would overflow.
const maxQueued = events.DefaultQueueBytes / 4

// send publishes a payload.
func (w *world) send(e int, payload []byte) {
	p := w.publishers[e]
	for p.stats.QueuedBytes.Load() > maxQueued {
		time.Sleep(50 * time.Microsecond)
	}
	if err := p.take([][]byte{nil, binary.BigEndian.AppendUint64(nil, p.sent), payload}); err != nil {
		w.tb.Fatal(err)
	}
	p.sent++
}

// settle waits until everything sent has been applied.
func (w *world) settle() {
	for e, p := range w.publishers {
		for p.stats.Batches.Load() < p.sent {
			time.Sleep(50 * time.Microsecond)
			if p.stats.DecodeErrors.Load() > 0 || p.stats.Overflows.Load() > 0 {
				w.tb.Fatalf("endpoint %d: %d payloads not read, %d overflows", e, p.stats.DecodeErrors.Load(), p.stats.Overflows.Load())
			}
		}
	}
}

// stored is the payload that announces blocks [from, to) of a prompt, in events of so many.
func (w *world) stored(p *prompt, from, to, perEvent int) []byte {
	var m message
	for ; from < to; from += perEvent {
		end := min(from+perEvent, to)
		var parent kvevent.Hash
		if from > 0 {
			parent = p.hashes[from-1]
		}
		m.stored(parent, p.hashes[from:end], w.tokensOf(p, from, end))
	}
	return m.payload()
}

func (w *world) store(p *prompt, from, to int) {
	w.send(p.endpoint, w.stored(p, from, to, eventBlocks))
}

// removed is the payload that removes blocks [from, to), the last first and one by one, as engines evict.
func (w *world) removed(p *prompt, from, to int) []byte {
	var m message
	for i := to - 1; i >= from; i-- {
		m.removed(p.hashes[i : i+1])
	}
	return m.payload()
}

func (w *world) drop(p *prompt, from, to int) { w.send(p.endpoint, w.removed(p, from, to)) }

func (w *world) offload(p *prompt) {
	var m message
	m.offloaded(p.hashes)
	w.send(p.endpoint, m.payload())
}

func (w *world) clear(e int) {
	var m message
	m.cleared()
	w.send(e, m.payload())
}

// churn lets endpoints be cleared and filled again, evicts the second half of every prompt once and lets it come back,
// announces copies of a tenth of the blocks and drops most of them again, keeps a tenth of the prompts on the CPU too,
// lets some prompts have their tail there only, leaves holes in a fiftieth of the prompts, and leaves two guesses per
// endpoint.
func (w *world) churn() {
	for e := 0; e < len(w.publishers); e += 16 {
		w.clear(e)
		for _, p := range w.byOwner[e] {
			w.store(p, 0, promptBlocks)
		}
	}
	for _, i := range w.rng.Perm(len(w.prompts)) {
		p := w.prompts[i]
		cut := sharedBlocks + w.rng.IntN(sharedBlocks)
		w.drop(p, cut, promptBlocks)
		w.store(p, cut, promptBlocks)
		if w.rng.IntN(10) == 0 {
			from := w.rng.IntN(promptBlocks - eventBlocks)
			for range 3 {
				w.store(p, from, from+eventBlocks)
			}
			w.drop(p, from, from+eventBlocks)
			w.drop(p, from, from+eventBlocks)
		}
		if w.rng.IntN(10) == 0 {
			w.offload(p)
			if w.rng.IntN(4) == 0 {
				w.drop(p, promptBlocks-64, promptBlocks)
				p.whole = false
			}
		}
		if w.rng.IntN(50) == 0 {
			for range 3 {
				hole := sharedBlocks + w.rng.IntN(sharedBlocks)
				w.drop(p, hole, hole+1)
			}
			p.whole = false
		}
	}
	w.settle()
	for e := range w.holders {
		for range 2 {
			keys := append([]kvblock.Key(nil), w.byOwner[e][w.rng.IntN(len(w.byOwner[e]))].keys[:sharedBlocks]...)
			for len(keys) < promptBlocks {
				keys = append(keys, kvblock.Key(w.rng.Uint64()|1))
			}
			w.guesses = append(w.guesses, w.book.Speculate(w.holders[e], keys))
		}
	}
}

// requests are prompts that one endpoint holds in full, in random order.
func (w *world) requests() [][]kvblock.Key {
	var all [][]kvblock.Key
	for _, p := range w.prompts {
		if p.whole {
			all = append(all, p.keys)
		}
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// threadCPU is the CPU time of this thread, processCPU that of all, in nanoseconds.
func threadCPU() int64  { return cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) }
func processCPU() int64 { return cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID) }

func cpuTime(clock int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0
	}
	return t.Nano()
}
