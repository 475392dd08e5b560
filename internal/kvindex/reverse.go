package kvindex

import (
	"math/bits"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// spot is the position of a key: a run's number and the block's offset in it (8 bits). Numbers of runs begin at 1.
type spot uint32

// Spots that are none.
const (
	noSpot      spot = 0 // the key is in no run: the block is an orphan
	pendingSpot spot = 1 // the key is being placed
)

const maxRuns = 1 << 24

func spotOf(run uint32, offset int) spot { return spot(run<<8 | uint32(offset)) }
func (s spot) run() uint32               { return uint32(s) >> 8 }
func (s spot) offset() int               { return int(s & 0xff) }

// entry is a block of a holder: the engine's name, the position of its key, and its copies.
//
//	info: | group 6 | remote 6 | disk 6 | CPU 6 | GPU 8 |   counts of copies; more of them are counted elsewhere
type entry struct {
	hash kvevent.Hash
	at   spot
	info uint32
}

const (
	entryBytes = 16
	groupShift = 26
	countsMask = 1<<groupShift - 1
)

var (
	countShift = [kvblock.NumTiers]uint32{0, 8, 14, 20}
	countMax   = [kvblock.NumTiers]uint32{255, 63, 63, 63}
)

func (e *entry) vacant() bool { return e.info&countsMask == 0 }
func (e *entry) group() int   { return int(e.info >> groupShift) }

func (e *entry) count(tier kvblock.Tier) uint32 {
	return e.info >> countShift[tier] & countMax[tier]
}

// reverse maps what an engine calls its blocks to entries: open addressing with linear probing, any capacity (the
// hash is scaled to it rather than masked), deletion by shifting back. There are no pointers in it.
type reverse struct {
	entries []entry
	n       int
	salt    uint64
	touched uint32
}

func (r *reverse) bytes() int64 { return int64(len(r.entries)) * entryBytes }

func (r *reverse) home(hash kvevent.Hash, group int) int {
	hi, _ := bits.Mul64(blend(uint64(hash)+uint64(group)<<58, r.salt), uint64(len(r.entries)))
	return int(hi)
}

// find is the place of a block, or where it belongs. There must be a vacant entry.
func (r *reverse) find(hash kvevent.Hash, group int) (int, bool) {
	if len(r.entries) == 0 {
		return 0, false
	}
	for i := r.home(hash, group); ; {
		e := &r.entries[i]
		if e.vacant() {
			return i, false
		}
		if e.hash == hash && e.group() == group {
			return i, true
		}
		if i++; i == len(r.entries) {
			i = 0
		}
	}
}

// touch reads where blocks belong, so that the memory is on its way for all of them before the first is needed.
func (r *reverse) touch(hashes []kvevent.Hash, group int) {
	if len(r.entries) == 0 || len(hashes) < 2 {
		return
	}
	sum := uint32(0)
	for _, hash := range hashes {
		sum += r.entries[r.home(hash, group)].info
	}
	r.touched = sum
}

// reserve makes room for more entries, so that none moves while they are put in.
func (r *reverse) reserve(more int) {
	// At most 13/16 full: an absent block costs about 15 steps, over neighbouring entries.
	if want := r.n + more; want*16 > len(r.entries)*13 {
		growth := len(r.entries) / 2
		if len(r.entries) > 8192 {
			growth = len(r.entries) / 5
		}
		r.resize(max(want*16/13+2, len(r.entries)+growth))
	}
}

// trim gives memory back once most of it lies idle.
func (r *reverse) trim() {
	if len(r.entries) > 64 && r.n*16 < len(r.entries)*5 {
		r.resize(r.n*24/16 + 8)
	}
}

func (r *reverse) resize(capacity int) {
	old := r.entries
	r.entries = make([]entry, capacity)
	for i := range old {
		if e := &old[i]; !e.vacant() {
			at, _ := r.find(e.hash, e.group())
			r.entries[at] = *e
		}
	}
}

// remove makes entry i vacant and moves later ones up, so that every block is found from its home on without passing a
// vacant entry.
func (r *reverse) remove(i int) {
	r.n--
	for j := i; ; {
		if j++; j == len(r.entries) {
			j = 0
		}
		e := &r.entries[j]
		if e.vacant() {
			break
		}
		if home := r.home(e.hash, e.group()); r.steps(home, j) >= r.steps(i, j) {
			r.entries[i] = *e
			i = j
		}
	}
	r.entries[i] = entry{}
}

// steps is the way from entry i to entry j, upwards.
func (r *reverse) steps(i, j int) int {
	if j < i {
		return j - i + len(r.entries)
	}
	return j - i
}
