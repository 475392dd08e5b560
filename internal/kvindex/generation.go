package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// name is what an engine calls a block.
type name struct {
	hash  kvevent.Hash
	group int
}

// copyName is a block's copies in one tier, spotTier a key's presence in one.
type (
	copyName struct {
		name
		tier kvblock.Tier
	}
	spotTier struct {
		at   spot
		tier kvblock.Tier
	}
)

// generation is what a holder has from one Clear to the next. A shadow is a generation that no reader sees yet.
type generation struct {
	holder Holder
	slot   uint32

	// mu guards the facts. Their writer nearly always finds it free: only eviction and the end of the generation compete.
	mu      sync.Mutex
	closed  bool
	rev     reverse
	more    map[copyName]uint32   // copies beyond what an entry counts
	aliases map[spotTier]uint32   // announcers of a key in a tier beyond the first
	orphans map[name]orphan       // blocks that do not follow one the holder has
	waiting map[name][]name       // orphans by parent
	digests map[digestKey]*Digest // by tier and group
	perHash int                   // the most keys that a block has had, if it is more than one
	full    int                   // the most keys that a block of a group of full attention has had
	evicted int                   // blocks taken out for lack of memory
	scratch writing

	// windows are the groups of another kind, nil while there are none. Written with mu locked.
	windows atomic.Pointer[windows]

	held atomic.Int64 // distinct keys

	// guessMu guards the guesses.
	guessMu     sync.Mutex
	guessClosed bool
	guesses     map[uint32][]guessed // by run
	guessed     atomic.Int64         // distinct keys
	guessN      int
	guessBytes  int64
}

type digestKey struct {
	tier  kvblock.Tier
	group int
}

// generationBytes is what a generation takes by itself.
const generationBytes = 512

// digestBytes is what a digest takes.
const digestBytes = 8*DigestBuckets + 8

// newGeneration begins a generation that no reader sees. ix.mu is locked.
func (ix *Index) newGeneration(h Holder) *generation {
	l := &generation{holder: h, slot: ix.takeSlot()}
	l.rev.salt = ix.salt
	ix.generations[l] = struct{}{}
	ix.bytes.Add(generationBytes)
	return l
}

// takeSlot returns a slot that nothing in the index refers to. ix.mu is locked.
func (ix *Index) takeSlot() uint32 {
	if n := len(ix.vacant); n > 0 {
		slot := ix.vacant[n-1]
		ix.vacant = ix.vacant[:n-1]
		// A concurrent reader can still attribute the slot to its former owner.
		ix.reused.Add(1)
		return slot
	}
	return ix.slots.Add(1)
}

// retire ends a generation that no reader finds any more, in the background. ix.mu is locked.
func (ix *Index) retire(l *generation) {
	delete(ix.generations, l)
	ix.retired = append(ix.retired, l)
	if !ix.sweeping {
		ix.sweeping = true
		go ix.sweep() // until nothing is retired; Settle waits for it
	}
}

// sweep gives back what retired generations hold, and then their slots.
func (ix *Index) sweep() {
	for {
		ix.mu.Lock()
		if len(ix.retired) == 0 {
			ix.retired, ix.sweeping = nil, false
			ix.settled.Broadcast()
			ix.mu.Unlock()
			return
		}
		l := ix.retired[0] // the oldest, for which awaitSweep waits
		ix.retired[0], ix.retired = nil, ix.retired[1:]
		ix.mu.Unlock()

		ix.end(l)

		ix.mu.Lock()
		ix.vacant = append(ix.vacant, l.slot)
		ix.swept++
		ix.settled.Broadcast()
		ix.mu.Unlock()
	}
}

// end closes a generation and takes all it holds out of the index, run by run.
func (ix *Index) end(l *generation) {
	var in runSet
	l.guessMu.Lock()
	l.guessClosed = true
	for run := range l.guesses {
		in.add(run)
	}
	l.guesses = nil
	ix.guessBytes.Add(-l.guessBytes)
	ix.bytes.Add(-guessSize * int64(l.guessN))
	l.guessMu.Unlock()

	l.mu.Lock()
	l.closed = true
	rev := l.rev.entries
	given := generationBytes + l.rev.bytes() + int64(len(l.digests))*digestBytes
	for _, s := range l.orphans {
		ix.orphans.forget(s.key, l.slot)
	}
	l.rev, l.more, l.aliases, l.orphans, l.waiting, l.digests = reverse{}, nil, nil, nil, nil, nil
	l.scratch = writing{}
	if ws := l.windows.Load(); ws != nil {
		ws.release()
	}
	l.mu.Unlock()

	for i := range rev {
		if at := rev[i].at; at > pendingSpot && !rev[i].vacant() {
			in.add(at.run())
		}
	}
	c := change{slot: l.slot}
	in.each(func(run uint32) { ix.forget(&c, run) })
	ix.bytes.Add(c.bytes - given)
}

// runSet is a set of numbers of runs.
type runSet []uint64

func (s *runSet) add(run uint32) {
	word := int(run / 64)
	for word >= len(*s) {
		*s = append(*s, make([]uint64, word+1-len(*s))...)
	}
	(*s)[word] |= 1 << (run % 64)
}

func (s runSet) each(f func(run uint32)) {
	for i, word := range s {
		for bit := uint32(0); word != 0; bit, word = bit+1, word>>1 {
			if word&1 != 0 {
				f(uint32(i)*64 + bit)
			}
		}
	}
}
