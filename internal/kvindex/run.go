package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

const (
	runBlocks = 256 // in a run, at most
	runWords  = runBlocks / 64
	runSize   = 64 // bytes, without keys and cells
)

// tierGuess is the tier of cells that hold speculation, below all real ones.
const tierGuess = uint8(kvblock.NumTiers)

// run is one version of a stretch of up to runBlocks consecutive blocks of a chain: their keys, and for each (slot,
// tier) that has something in it a cell, which says what.
//
// Within all versions that share keys or cells a position has one key: whoever reads a bit in the cells of a version
// may trust that it speaks of the key in that version. Writers hold the lock of the run's stripe. In place they change
// only bits, n (upwards, after the keys are there) and top; everything else makes a new version, which replaces the
// old one at once for readers to come. Old versions stay as they were, and the garbage collector ends them.
type run struct {
	keys  []kvblock.Key // as long as there is room; the first n count
	cells []uint64      // sorted by header
	n     atomic.Uint32
	depth uint32 // blocks of the chain before the first of the run
	id    uint32
	top   uint16 // no one has a block from here on; for writers only
	width uint8  // words of a cell's mask
	lower bool   // there are cells of other tiers than the GPU
}

// mask says which of a run's blocks are meant.
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

// headerOf is the first word of a cell.
func headerOf(slot uint32, tier uint8) uint64 { return uint64(slot)<<8 | uint64(tier) }

// cellOf is where a cell begins, or where it belongs.
func (r *run) cellOf(header uint64) (at int, ok bool) {
	step := int(r.width) + 1
	lo, hi := 0, len(r.cells)/step
	for lo < hi {
		mid := (lo + hi) / 2
		if r.cells[mid*step] < header {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	at = lo * step
	return at, at < len(r.cells) && r.cells[at] == header
}

// load reads the mask of the cell that begins at a place.
func (r *run) load(at int) (m mask) {
	for i := range int(r.width) {
		m[i] = atomic.LoadUint64(&r.cells[at+1+i])
	}
	return m
}

// store changes the mask of the cell that begins at a place.
func (r *run) store(at int, m *mask) {
	for i := range int(r.width) {
		if cell := &r.cells[at+1+i]; *cell != m[i] {
			atomic.StoreUint64(cell, m[i])
		}
	}
}

// confirmed is the union of what a slot has in all real tiers, but for one.
func (r *run) confirmed(slot uint32, but uint8) (m mask) {
	at, _ := r.cellOf(headerOf(slot, 0))
	for step := int(r.width) + 1; at < len(r.cells) && r.cells[at] < headerOf(slot, tierGuess); at += step {
		if uint8(r.cells[at]) == but {
			continue
		}
		for i := range int(r.width) {
			m[i] |= r.cells[at+1+i]
		}
	}
	return m
}

// held is the union of what anyone has.
func (r *run) held() (m mask) {
	for at := 0; at < len(r.cells); at += int(r.width) + 1 {
		for i := range int(r.width) {
			m[i] |= r.cells[at+1+i]
		}
	}
	return m
}

// version is a copy to be changed and published.
func (r *run) version() *run {
	v := &run{keys: r.keys, cells: r.cells, depth: r.depth, id: r.id, top: r.top, width: r.width, lower: r.lower}
	v.n.Store(r.n.Load())
	return v
}

// withCell has one more cell, at its place.
func (r *run) withCell(at int, header uint64, m *mask) *run {
	step := int(r.width) + 1
	v := r.version()
	v.cells = make([]uint64, len(r.cells)+step)
	copy(v.cells, r.cells[:at])
	v.cells[at] = header
	copy(v.cells[at+1:at+step], m[:])
	copy(v.cells[at+step:], r.cells[at:])
	v.lower = r.lower || uint8(header) != uint8(kvblock.GPU)
	return v
}

// without has the cells [from, to) no more.
func (r *run) without(from, to int) *run {
	v := r.version()
	v.cells = make([]uint64, len(r.cells)-(to-from))
	copy(v.cells, r.cells[:from])
	copy(v.cells[from:], r.cells[to:])
	v.lower = false
	for at := 0; at < len(v.cells); at += int(v.width) + 1 {
		v.lower = v.lower || uint8(v.cells[at]) != uint8(kvblock.GPU)
	}
	return v
}

// resized has its first n blocks only, and room for as many as asked. If blocks are cut off, no one may have them.
func (r *run) resized(n, room int) *run {
	v := r.version()
	capacity := roomFor(room)
	v.keys = make([]kvblock.Key, capacity)
	copy(v.keys, r.keys[:n])
	v.width = widthFor(capacity)
	// Cells are copied even where their width stays: a bit of a block cut off may come to mean another key.
	from, to := int(r.width)+1, int(v.width)+1
	v.cells = make([]uint64, len(r.cells)/from*to)
	for i := range len(r.cells) / from {
		copy(v.cells[i*to:(i+1)*to], r.cells[i*from:(i+1)*from])
	}
	v.n.Store(uint32(n))
	return v
}

func (r *run) bytes() int64 { return runSize + 8*int64(len(r.keys)+len(r.cells)) }

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
