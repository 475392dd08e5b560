package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

const (
	runBlocks = 256 // in a run, at most
	runWords  = runBlocks / 64
	runSize   = 80 // bytes, without keys and cells
)

// tierGuess is the tier of cells that hold speculation, below all real ones.
const tierGuess = uint8(kvblock.NumTiers)

// run is one version of a stretch of up to runBlocks consecutive blocks of a chain: their keys, and for each (slot, tier)
// that has some of the blocks, a cell with a mask of them.
//
// Within all versions that share keys or cells a position has one key: a reader of a bit in the cells of a version can rely
// on it to refer to the key in that version. Writers hold the lock of the run's stripe. In place they change only cells'
// masks, n (upwards, after the keys are written) and top; everything else makes a new version, which replaces the old one
// atomically for later readers. Old versions stay unchanged until the garbage collector frees them.
type run struct {
	keys []kvblock.Key // as long as there is room; the first n count
	// cells are the headers of cells, sorted. Between length and capacity lie their masks, width words each.
	cells []uint64
	n     atomic.Uint32
	depth uint32 // blocks of the chain before the first of the run
	// parent is the key that the first one follows, 0 for none.
	parent kvblock.Key
	id     uint32
	top    uint16 // no holder has a block from here on; for writers only
	width  uint8  // words of a cell's mask
}

// A header holds the cell's slot and how many leading blocks of the run are in it, so that readers seldom need the mask:
//
//	| slot 32 | tier 8 | leading ones of the mask 24 |
//
// Header and mask change one after the other. Each was true at some instant while a writer changes them.
const (
	tierShift = 24
	slotShift = 32
	onesMask  = 1<<tierShift - 1
)

// headerOf is the header of an empty cell.
func headerOf(slot uint32, tier uint8) uint64 {
	return uint64(slot)<<slotShift | uint64(tier)<<tierShift
}

func tierOf(header uint64) uint8 { return uint8(header >> tierShift) }

// mask marks some of a run's blocks.
type mask [runWords]uint64

// stretchMask is the mask of n blocks from offset on.
func stretchMask(offset, n int) (m mask) {
	for i := offset; i < offset+n; {
		word, bit := i/64, i%64
		count := min(64-bit, offset+n-i)
		m[word] |= ^uint64(0) >> (64 - count) << bit
		i += count
	}
	return m
}

func (m *mask) has(offset int) bool { return m[offset/64]>>(offset%64)&1 != 0 }
func (m *mask) set(offset int)      { m[offset/64] |= 1 << (offset % 64) }
func (m *mask) empty() bool         { return m[0]|m[1]|m[2]|m[3] == 0 }

// top is one more than the last offset.
func (m *mask) top() int {
	for i := runWords - 1; i >= 0; i-- {
		if m[i] != 0 {
			return 64*i + bits.Len64(m[i])
		}
	}
	return 0
}

func (m *mask) blocks() int {
	return bits.OnesCount64(m[0]) + bits.OnesCount64(m[1]) + bits.OnesCount64(m[2]) + bits.OnesCount64(m[3])
}

// ones is the number of leading ones.
func (m *mask) ones() (n int) {
	for i := range m {
		if m[i] != ^uint64(0) {
			return n + bits.TrailingZeros64(^m[i])
		}
		n += 64
	}
	return n
}

// newCells has room for the headers and masks of n cells.
func newCells(n int, width uint8) []uint64 { return make([]uint64, n*(1+int(width)))[:n] }

// maskOf is the mask of cell i, as it lies in the run.
func (r *run) maskOf(i int) []uint64 {
	from := len(r.cells) + i*int(r.width)
	return r.cells[from : from+int(r.width)]
}

// cellOf is the cell of a slot and tier, or where it belongs.
func (r *run) cellOf(slot uint32, tier uint8) (i int, ok bool) {
	header := headerOf(slot, tier)
	lo, hi := 0, len(r.cells)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); atomic.LoadUint64(&r.cells[mid]) < header {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(r.cells) && atomic.LoadUint64(&r.cells[lo])&^onesMask == header
}

// load reads the mask of cell i.
func (r *run) load(i int) (m mask) {
	for j, words := 0, r.maskOf(i); j < len(words); j++ {
		m[j] = atomic.LoadUint64(&words[j])
	}
	return m
}

// store changes the mask of cell i.
func (r *run) store(i int, m *mask) {
	for j, words := 0, r.maskOf(i); j < len(words); j++ {
		if words[j] != m[j] {
			atomic.StoreUint64(&words[j], m[j])
		}
	}
	if header := r.cells[i]&^onesMask | uint64(m.ones()); header != r.cells[i] {
		atomic.StoreUint64(&r.cells[i], header)
	}
}

// confirmed is the union of what a slot has in all real tiers. The run is locked.
func (r *run) confirmed(slot uint32) (m mask) {
	i, _ := r.cellOf(slot, 0)
	for end := headerOf(slot, tierGuess); i < len(r.cells) && r.cells[i] < end; i++ {
		for j, word := range r.maskOf(i) {
			m[j] |= word
		}
	}
	return m
}

// held is the union of what anyone has. The run is locked.
func (r *run) held() (m mask) {
	for i := range r.cells {
		for j, word := range r.maskOf(i) {
			m[j] |= word
		}
	}
	return m
}

// version is a copy to be changed and published.
func (r *run) version() *run {
	v := &run{keys: r.keys, cells: r.cells, depth: r.depth, parent: r.parent, id: r.id, top: r.top, width: r.width}
	v.n.Store(r.n.Load())
	return v
}

// withCell has one more cell, at its place.
func (r *run) withCell(i int, header uint64, m *mask) *run {
	v := r.version()
	v.cells = newCells(len(r.cells)+1, r.width)
	copy(v.cells, r.cells[:i])
	v.cells[i] = header | uint64(m.ones())
	copy(v.cells[i+1:], r.cells[i:])
	masks, at := v.masks(), i*int(r.width)
	copy(masks, r.masks()[:at])
	copy(masks[at:], m[:r.width])
	copy(masks[at+int(r.width):], r.masks()[at:])
	return v
}

// without has the cells [from, to) no more, nor any that is idle.
func (r *run) without(from, to int) *run {
	stays := func(i int) bool { return (i < from || i >= to) && !idle(r.cells[i]) }
	n := 0
	for i := range r.cells {
		if stays(i) {
			n++
		}
	}
	v := r.version()
	v.cells = newCells(n, r.width)
	at := 0
	for i, header := range r.cells {
		if stays(i) {
			v.cells[at] = header
			copy(v.maskOf(at), r.maskOf(i))
			at++
		}
	}
	return v
}

// idle reports whether a cell belongs to a slot that has no speculation at the moment. Such cells stay for a while, because
// the next guess about the slot will need one again. Guesses cover leading blocks, so the header is enough to decide.
func idle(header uint64) bool { return tierOf(header) == tierGuess && header&onesMask == 0 }

// wanted reports whether a cell outside of [from, to) is not idle.
func (r *run) wanted(from, to int) bool {
	for i, header := range r.cells {
		if (i < from || i >= to) && !idle(header) {
			return true
		}
	}
	return false
}

// resized has its first n blocks only, and room for as many as requested. Dropped blocks must have no holders.
func (r *run) resized(n, room int) *run {
	v := r.version()
	capacity := roomFor(room)
	v.keys = make([]kvblock.Key, capacity)
	copy(v.keys, r.keys[:n])
	v.width = widthFor(capacity)
	// Cells are copied even where their width stays: a bit of a removed block can later refer to another key.
	v.cells = newCells(len(r.cells), v.width)
	copy(v.cells, r.cells)
	for i := range v.cells {
		copy(v.maskOf(i), r.maskOf(i))
	}
	v.n.Store(uint32(n))
	return v
}

// masks are the masks of all cells.
func (r *run) masks() []uint64 { return r.cells[len(r.cells):cap(r.cells)] }

func (r *run) bytes() int64 { return runSize + 8*int64(len(r.keys)+cap(r.cells)) }

// rooms are the capacities of runs in blocks; allocated sizes fit them without loss.
var rooms = [...]int{2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, runBlocks}

func roomFor(n int) int {
	for _, room := range rooms {
		if n <= room {
			return room
		}
	}
	return runBlocks
}

func widthFor(room int) uint8 { return uint8((room + 63) / 64) }
