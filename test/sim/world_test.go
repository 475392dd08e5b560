// Package sim runs the entire event plane in virtual time: engines whose block pools are the truth, frames as real releases
// send them, the production streams, mirrors, senders, receivers and index, over both roads; and everything that can fail
// does. A world follows from its seed, so that a failure can be run again.
//
//	make sim                                        10,000 seeds
//	make soak SOAK=1h                               other seeds, longer lives
//	go test ./test/sim -run TestEventPlane -sim.seed=N    one seed, and what happens in it
//
// There are no goroutines and no clocks: a step lets each part do a few things, in an order that the seed decides, and
// events in between can interrupt a replay. What a part does between two such points is one moment. Deliberately left out
// are sockets (test/e2e, internal/zmtp), concurrent readers (internal/kvindex) and the account of requests
// (internal/picker).
package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// faults are what can fail, each once in so many occasions; 0 is never.
type faults struct {
	lose, repeat, spoil, malform, far, replay, cut, late, clear                int // of messages and connections
	restart, silent, remove, picker, reporter, amnesia, stall, cutPush, rotate int // by step
}

const maxRoots = 3

// world is a cluster in virtual time. Everything in it follows from its seed.
type world struct {
	seed   uint64
	rng    *rand.Rand
	faults faults
	now    time.Time
	calm   bool // nothing fails any more
	step   int
	counts map[string]int
	trace  io.Writer // nil for none

	blockTokens           int
	queueBytes            int
	maxBlocks, maxOrphans int
	logBytes              int
	budget                int64
	plain                 bool
	roots                 []cachesync.Root
	releases              []release
	common                [][]uint32 // beginnings of prompts

	pods    []*pod
	named   int // pods so far
	pickers []*picker
	ids     uint64
	lives   int
	batches []int          // the life that published each
	epochs  map[uint64]int // the life that each epoch of a reporter is about
	ever    map[place]uint64
}

// failure is what a world panics with when a law is broken.
type failure struct{ text string }

func (w *world) fail(format string, args ...any) {
	panic(failure{fmt.Sprintf("seed %d, step %d: ", w.seed, w.step) + fmt.Sprintf(format, args...)})
}

// count notes that something has happened.
func (w *world) count(what string) {
	w.counts[what]++
	if w.trace != nil {
		fmt.Fprintf(w.trace, "step %d: %s\n", w.step, what)
	}
}

// chance reports whether a fault happens now.
func (w *world) chance(in int) bool { return in > 0 && !w.calm && w.rng.IntN(in) == 0 }

func one[T any](w *world, of ...T) T { return of[w.rng.IntN(len(of))] }

func testRoot(text string, blockTokens int) cachesync.Root {
	seed, err := kvblock.NewSeed([]byte(strings.Repeat(text, kvblock.MinSeedBytes)))
	if err != nil {
		panic(err)
	}
	return cachesync.NewRoot(seed, "model", blockTokens, nil)
}

// start is when time begins.
var start = time.Unix(1_000_000, 0)

func newWorld(seed uint64, trace io.Writer) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 0x6b7661736972)), now: start, counts: map[string]int{},
		epochs: map[uint64]int{}, ever: map[place]uint64{}, trace: trace,
	}
	w.blockTokens = one(w, 4, 8)
	w.queueBytes = one(w, 1<<10, 4<<10, 1<<20)
	w.maxBlocks, w.maxOrphans = one(w, 4096, 4096, 4096, 24), one(w, 4, 4096)
	w.logBytes = one(w, 2<<10, 1<<20)
	w.plain = w.rng.IntN(4) == 0
	if !w.plain && w.rng.IntN(6) == 0 {
		w.budget = freshIndex + 2<<10
	}
	for i := range one(w, 1, maxRoots) {
		w.roots = append(w.roots, testRoot(string(rune('a'+i)), w.blockTokens))
	}
	for range 3 {
		w.common = append(w.common, w.tokens(w.blockTokens*(2+w.rng.IntN(12))))
	}
	w.drawFaults()
	for range one(w, 1, 1, 2) {
		w.releases = append(w.releases, w.drawRelease())
	}
	for range 1 + w.rng.IntN(3) {
		w.addPod("")
	}
	for i := range 1 + w.rng.IntN(2) {
		p := w.startPicker(fmt.Sprintf("picker %d", i), 0)
		w.pickers = append(w.pickers, p)
		p.sync()
	}
	return w
}

// freshIndex is what an index takes that holds nothing any more.
var freshIndex = func() int64 {
	ix := kvindex.NewIndex(kvindex.Options{})
	h := ix.Join()
	ix.Writer(h).Store(kvblock.GPU, 0, kvindex.Parent{}, []kvevent.Hash{1}, []kvblock.Key{1})
	ix.Leave(h)
	ix.Settle()
	return ix.Bytes()
}()

func (w *world) drawFaults() {
	few, all := w.rng.IntN(8), false
	switch few {
	case 0:
		return // nothing fails
	case 1:
		all = true
	}
	draw := func(rate *int, from, to int) {
		if n := from + w.rng.IntN(to-from); all || w.rng.IntN(3) == 0 {
			*rate = n
		}
	}
	f := &w.faults
	draw(&f.lose, 3, 40)
	draw(&f.repeat, 5, 40)
	draw(&f.spoil, 30, 200)
	draw(&f.malform, 20, 100)
	draw(&f.far, 40, 200)
	draw(&f.replay, 2, 20)
	draw(&f.cut, 10, 80)
	draw(&f.late, 1, 4)
	draw(&f.clear, 1, 4)
	draw(&f.restart, 15, 150)
	draw(&f.silent, 40, 200)
	draw(&f.remove, 30, 200)
	draw(&f.picker, 60, 300)
	draw(&f.reporter, 30, 200)
	draw(&f.amnesia, 60, 300)
	draw(&f.stall, 10, 60)
	draw(&f.cutPush, 10, 80)
	draw(&f.rotate, 40, 200)
}

func (w *world) drawRelease() release {
	r := release{
		engine: "VLLM", layout: vllmsim.Layout(1 + w.rng.IntN(int(vllmsim.Layout024))), outerMap: w.rng.IntN(10) == 0,
		newer: w.rng.IntN(3) == 0, murky: w.rng.IntN(12) == 0, blocks: 24 + w.rng.IntN(40), groups: 1, replay: w.rng.IntN(5) > 0,
		blockSize: one(w, w.blockTokens, w.blockTokens, 2*w.blockTokens, w.blockTokens/2, w.blockTokens/4),
	}
	if w.rng.IntN(6) == 0 {
		r.engine, r.layout = "SGLang", vllmsim.Layout0102
	}
	if r.layout >= vllmsim.Layout0102 {
		r.digests = w.rng.IntN(4) == 0
		if w.rng.IntN(2) == 0 {
			r.lower, r.lowerKnown, r.lowerBlocks = one(w, "CPU", "cpu", "FS", "OBJ", "TAPE"), true, 16
			switch r.lower {
			case "CPU", "cpu":
				r.lowerTier = kvblock.CPU
			case "FS":
				r.lowerTier = kvblock.Disk
			case "OBJ":
				r.lowerTier = kvblock.Remote
			default:
				r.lowerKnown = false
			}
		}
	}
	if r.layout >= vllmsim.Layout020 && w.rng.IntN(3) == 0 {
		r.groups = 2
	}
	if r.replay && w.rng.IntN(4) == 0 {
		r.keep = 4 + w.rng.IntN(30)
	}
	return r
}

// tokens are random ones of few kinds, but for the first of each block.
func (w *world) tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = one(w, w.rng.Uint32N(100), w.rng.Uint32N(1<<17), w.rng.Uint32())
	}
	return out
}

// prompt is a part of a common beginning, and then something of its own.
func (w *world) prompt(blockSize int) []uint32 {
	begin := w.common[w.rng.IntN(len(w.common))]
	begin = begin[:w.rng.IntN(len(begin)+1)]
	return append(slices.Clone(begin), w.tokens(1+w.rng.IntN(4*blockSize))...)
}

// addPod adds a pod that has an address of its own, or the one that is given.
func (w *world) addPod(addr string) {
	w.named++
	p := &pod{uid: fmt.Sprintf("pod-%d", w.named), addr: addr, release: w.releases[w.rng.IntN(len(w.releases))]}
	if addr == "" {
		p.addr = fmt.Sprintf("10.0.0.%d", w.named)
	}
	p.direct = w.rng.IntN(3) > 0
	w.pods = append(w.pods, p)
	if w.lives < maxLives {
		p.engine = w.newEngine(&p.release)
	} else {
		p.started = 1 << 30
	}
	if !p.direct || w.rng.IntN(3) == 0 {
		p.reporter = w.startReporter(p, nil, 0)
	}
}

// maxLives bounds the lives of engines, which are bits.
const maxLives = 64

// at is the engine behind an address.
func (w *world) at(addr string) *engine {
	for _, p := range w.pods {
		if p.addr == addr {
			return p.engine
		}
	}
	return nil
}

// remember notes that a life has had a block in a place.
func (w *world) remember(e *engine, b *cacheBlock, tier kvblock.Tier, group int) {
	for root := range w.roots {
		for _, key := range w.keysOf(b, root) {
			w.ever[place{key, tier, group}] |= 1 << e.life
		}
	}
}

// someChain are the keys of a prefix that an engine has had, and perhaps of a block that was never stored.
func (w *world) someChain(root int) (keys []kvblock.Key) {
	p := w.pods[w.rng.IntN(len(w.pods))]
	if p.engine == nil || len(p.engine.order) == 0 {
		return nil
	}
	keys = w.chain(p.engine.order[w.rng.IntN(len(p.engine.order))], root)
	if len(keys) > 0 && w.rng.IntN(3) == 0 {
		keys = append(keys, kvblock.Next(keys[len(keys)-1], w.tokens(w.blockTokens), 0))
	}
	return keys
}

// chain are the keys of a prefix.
func (w *world) chain(b *cacheBlock, root int) (keys []kvblock.Key) {
	for ; b != nil; b = b.parent {
		own := w.keysOf(b, root)
		for i := range own {
			keys = append(keys, own[len(own)-1-i])
		}
	}
	slices.Reverse(keys)
	return keys
}

// ports are all subscribers, in a fixed order.
func (w *world) ports() (all []*port) {
	for _, p := range w.pods {
		if p.reporter != nil {
			all = append(all, p.reporter.port)
		}
	}
	for _, p := range w.pickers {
		for _, e := range p.ends {
			if e.port != nil {
				all = append(all, e.port)
			}
		}
	}
	return all
}

func (w *world) pushes() (all []*push) {
	for _, p := range w.pods {
		if p.reporter != nil {
			all = append(all, p.reporter.pushes...)
		}
	}
	return all
}

// meet opens the report streams that are missing, each one perhaps.
func (w *world) meet(all bool) {
	for _, p := range w.pods {
		if p.reporter == nil {
			continue
		}
		for _, k := range w.pickers {
			for _, e := range k.ends {
				if e.pod == p && e.push == nil && (all || w.rng.IntN(3) == 0) {
					w.connectPush(p.reporter, e)
				}
			}
		}
	}
}

// fingerprint sums up a world, to report whether two are the same.
func (w *world) fingerprint() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, w.step, w.now, w.lives, w.ids, len(w.batches), w.rng.Uint64())
	for _, p := range w.pickers {
		fmt.Fprintln(h, p.name, p.root, p.digests())
		for _, e := range p.ends {
			fmt.Fprintln(h, e.pod.uid, e.owned, e.receiver.Status())
			if e.port != nil {
				fmt.Fprintln(h, e.port.stream.State(), e.port.stream.Wake(), e.port.stream.Stats().Batches.Load())
			}
		}
	}
	return h.Sum64()
}
