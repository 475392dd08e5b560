package kvindex

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Index is the fast implementation: lookups take no lock and allocate nothing, and cost by run and holder rather than
// by block.
//
// Because keys are chained, a key identifies everything before it, and no tree is needed. Consecutive blocks are stored in
// runs of up to 256; a key has one place only, next to its parent or at the head of a run of its own:
//
//	heads: key of a run's first block -> number of the run           runs: number -> run
//
//	 run 7 (depth 0)                                                  run 9 (depth 3)
//	+-------------------------------------------+                    +-----------------+
//	| keys   k0   k1   k2   k3   k4  | n = 5    |      k2's other    | keys   x3   x4  |
//	|--------------------------------|          |      child heads   |-----------------|
//	| cells  slot 1, GPU   1 1 1 1 1 |          |  --> a run of its  | slot 2, GPU 1 1 |
//	|        slot 2, GPU   1 1 1 0 0 |          |      own           +-----------------+
//	|        slot 2, guess 1 1 1 1 0 |          |
//	|        slot 4, CPU   1 0 1 1 1 |  a hole  |
//	+-------------------------------------------+
//
//	holder -> slot (one word)        per holder, for its writer: engine's hash -> (run, offset), copies
//
// A lookup finds the run of its first key, then how much of the run belongs to the request (one comparison where all of it
// does, because equal keys imply equal keys before them), and then for each cell of a requested slot the number of leading
// ones. Then it looks for the run that the next key heads. So holes cost nothing, and results are exact for any number of
// holders and any mixture of tiers. Speculation is one more tier, below all others.
//
// Writers lock a run while they change it. Bits change in place; any other change makes a new version of the run (64 bytes,
// and the changed parts), which replaces the old one atomically. Readers can continue with the old one, which was correct
// when they found it, until the garbage collector frees it. A run without cells is deleted.
//
// Clear gives a holder a fresh slot, which is one store. The old slot's cells are swept in the background, and the slot is
// reused only afterwards. A shadow is a slot that has no holder yet.
//
// Known limits: keys must really be chained, or matches are too short (and a wrong chain from one holder can shorten those
// of others); 2^24 runs; guesses must be made from a request's first block on; a block whose parent its holder lacks is an
// orphan, which takes ten times the memory and costs lookups that reach it a few microseconds; keys that a holder announces
// by several names in one tier take about 50 bytes more for each further name.
type Index struct {
	budget atomic.Int64
	salt   uint64

	heads   heads
	runs    runs
	stripes [stripes]stripe
	orphans orphans
	pages   atomic.Pointer[[]*page]
	slots   atomic.Uint32 // the highest slot there is
	reused  atomic.Uint64 // how many times a slot was used again
	turns   atomic.Uint64 // how many times a holder's word changed
	lookups sync.Pool     // of *lookup

	bytes      atomic.Int64
	guessBytes atomic.Int64 // of bytes, taken for guesses; about
	evicted    atomic.Uint64
	unguessed  atomic.Uint64
	evicting   sync.Mutex

	// mu guards the generations of the holders and the fields below. It can be taken while a generation is locked, not the other way.
	mu          sync.Mutex
	joined      Holder
	generations map[*generation]struct{} // those that can be written to
	vacant      []uint32                 // slots that nothing speaks of
	retired     []*generation
	sweeping    bool      // a goroutine is
	swept       uint64    // how many generations were given back
	settled     sync.Cond // another one was, or the goroutine has ended
}

// Options of an Index.
type Options struct {
	// Budget is the memory in bytes that blocks can take, 0 for any amount: an eighth is for guesses, and further ones are
	// not made. If confirmed blocks take more than the rest, the deepest blocks of the holder that takes most are removed. A holder that
	// takes less than 3/4 of an equal share of the rest loses none, whatever others store.
	Budget int64
}

// NewIndex returns an empty index.
func NewIndex(o Options) *Index { return newIndex(o, rand.Uint64()) }

// newIndex is NewIndex with the secret that decides on the places of keys in tables.
func newIndex(o Options, salt uint64) *Index {
	ix := &Index{salt: salt, generations: map[*generation]struct{}{}}
	ix.budget.Store(o.Budget)
	ix.heads.init(ix.salt, &ix.bytes)
	ix.runs.init(&ix.bytes)
	ix.orphans.init()
	ix.pages.Store(&[]*page{})
	ix.lookups.New = func() any { return &lookup{turn: ^uint64(0)} }
	ix.settled.L = &ix.mu
	return ix
}

var _, _ Book = (*Index)(nil), (*Table)(nil)

const (
	pageBits = 10
	pageLen  = 1 << pageBits
	pageSize = pageLen * 16
)

// page keeps what readers need to know of holders. The word of a holder that is there:
//
//	| number of the generation 30 | has windows 1 | has orphans 1 | slot 32 |
type page struct {
	words       [pageLen]atomic.Uint64
	generations [pageLen]atomic.Pointer[generation]
	left        int // holders that have left, under Index.mu
}

const (
	orphansBit = 1 << 32
	windowsBit = 1 << 33
	lifeShift  = 34
)

// bits are flags for what readers must look at besides the runs. The generation is locked, or not shared yet.
func (l *generation) bits() (word uint64) {
	if len(l.orphans) > 0 {
		word |= orphansBit
	}
	if l.windows.Load() != nil {
		word |= windowsBit
	}
	return word
}

func (ix *Index) page(h Holder) *page {
	pages := *ix.pages.Load()
	if at := int(h >> pageBits); at < len(pages) {
		return pages[at]
	}
	return nil
}

// word is what readers need to know of a holder, 0 if it has left.
func (ix *Index) word(h Holder) uint64 {
	if p := ix.page(h); p != nil {
		return p.words[h%pageLen].Load()
	}
	return 0
}

// generationOf is the present generation of a holder, nil if it has left.
func (ix *Index) generationOf(h Holder) *generation {
	if p := ix.page(h); p != nil {
		return p.generations[h%pageLen].Load()
	}
	return nil
}

// setGeneration replaces the generation of an existing holder, at once for readers. ix.mu is locked.
func (ix *Index) setGeneration(h Holder, l *generation) {
	p := ix.page(h)
	word := (p.words[h%pageLen].Load()>>lifeShift+1)<<lifeShift | l.bits() | uint64(l.slot)
	p.generations[h%pageLen].Store(l)
	p.words[h%pageLen].Store(word)
	ix.turns.Add(1)
}

// flag publishes to readers whether a generation has orphans or windows. The generation is locked.
func (ix *Index) flag(l *generation) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	p := ix.page(l.holder)
	if p == nil || p.generations[l.holder%pageLen].Load() != l {
		return
	}
	was := p.words[l.holder%pageLen].Load()
	word := was&^(orphansBit|windowsBit) | l.bits()
	if word != was {
		p.words[l.holder%pageLen].Store(word)
		ix.turns.Add(1)
	}
}

// setPage publishes a page, or that all its holders have left. ix.mu is locked.
func (ix *Index) setPage(at int, p *page) {
	pages := append([]*page(nil), *ix.pages.Load()...)
	if at == len(pages) {
		pages = append(pages, nil)
	}
	if p != nil {
		ix.bytes.Add(pageSize)
	} else {
		ix.bytes.Add(-pageSize)
	}
	pages[at] = p
	ix.pages.Store(&pages)
}

// Join implements Book.
func (ix *Index) Join() Holder {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.joined++
	h := ix.joined
	for at := int(h >> pageBits); at >= len(*ix.pages.Load()); {
		ix.setPage(at, &page{})
	}
	ix.setGeneration(h, ix.newGeneration(h))
	return h
}

// Leave implements Book. The memory is given back in the background.
func (ix *Index) Leave(h Holder) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	l := ix.generationOf(h)
	if l == nil {
		return
	}
	p := ix.page(h)
	p.words[h%pageLen].Store(0)
	p.generations[h%pageLen].Store(nil)
	ix.turns.Add(1)
	if p.left++; p.left == pageLen || h < pageLen && p.left == pageLen-1 {
		ix.setPage(int(h>>pageBits), nil)
	}
	ix.retire(l)
}

// Writer implements Book.
func (ix *Index) Writer(h Holder) Writer { return &writer{ix: ix, holder: h} }

// Settle waits until the memory of all generations that have ended so far has been given back.
func (ix *Index) Settle() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for ix.sweeping {
		ix.settled.Wait()
	}
}

// Bytes is the memory that the index takes, everything included, as requested from the allocator.
func (ix *Index) Bytes() int64 { return ix.bytes.Load() + ix.orphans.bytes.Load() }

// Evicted is the number of blocks taken out, or refused, for lack of memory.
func (ix *Index) Evicted() uint64 { return ix.evicted.Load() }

// Held implements Reader.
func (ix *Index) Held(h Holder) int {
	if l := ix.generationOf(h); l != nil {
		return int(l.held.Load())
	}
	return 0
}

// Size implements Reader. It visits every run.
func (ix *Index) Size() (distinct, held, speculative int) {
	for _, chunk := range *ix.runs.chunks.Load() {
		if chunk == nil {
			continue
		}
		for i := range chunk.runs {
			if r := chunk.runs[i].Load(); r != nil {
				distinct += r.distinct()
			}
		}
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for l := range ix.generations {
		if ix.generationOf(l.holder) == l {
			held += int(l.held.Load())
			speculative += int(l.guessed.Load())
		}
	}
	return distinct + ix.orphans.len(), held, speculative
}

// distinct is the number of the run's blocks that anyone has.
func (r *run) distinct() int {
	var all mask
	for i := range r.cells {
		if tierOf(atomic.LoadUint64(&r.cells[i])) == tierGuess {
			continue
		}
		m := r.load(i)
		for j := range m {
			all[j] |= m[j]
		}
	}
	return all.blocks()
}
