package events

import (
	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// again keeps the copies of blocks on the GPU that a stream has counted below what the engine can have.
//
// An engine announces a block again when it has computed a second copy, which will be removed by an event of its own;
// but also when a request asks for a report of what it found in the cache (vLLM 0.26 and newer, vllm_xargs:
// kv_cache_report_mode), and then nothing is removed. The two look alike: an event that begins at a prompt's first block,
// of blocks that are known. Such copies count, and are remembered as uncertain. Each real copy takes a physical block. The
// engine has a known number of these, and removes nothing before all of them are in use: so many copies that do not exist
// show in the sum. Then all uncertain ones are struck off. Known limit: blocks without a hash are in use, too, and missing in
// the sum, so that a few such copies can outlive their blocks. Striking them when a block is removed would strike real second
// copies as well (the request shapes of test/real show it).
//
// Where the history has gaps, the sum lacks what they hide and can stay below the engine's size for hours. Then no uncertain copy
// counts from the start.
//
// Where more than twice as many blocks remain as the engine has, all of them certain, the stream is not the engine's history: removals were
// lost, or the engine, or an impostor, announces what it cannot have. Then no block on the GPU counts any more, and everything is replayed.
// Twice, because the number is of another source (the engine's metrics), and a margin costs only memory.
//
// A copy that was struck off can be real. Two facts about an engine's cache bring it back, or keep it: a block is never
// evicted before those that follow it, and a block that is stored after another one proves that the other one is held.
type again struct {
	share     *budget.Share
	bytes     int // taken of share
	copies    int // of all blocks on the GPU; too many rather than too few
	perBlock  int // keys of a block, and the most of all that were seen
	mostKeys  int
	uncertain map[blockID]*doubt
	checked   int // the sum that is known to be right although it is too high; 0 for none
	// forgetful: there was no room to remember a doubt, so that too high a sum says nothing about the engine.
	forgetful bool
	// gone are the blocks of uncertain that count as removed, oldest first; some of them can be held again.
	gone     []blockID
	dropping []kvevent.Hash
}

// doubt is a block whose copies can be counted too high or, after a correction, too low.
type doubt struct {
	copies int  // that are uncertain
	struck bool // some were struck off
	parent kvindex.Parent
	keys   []kvblock.Key
	gone   bool
}

const (
	// doubtBytes is about what a doubt takes besides its keys.
	doubtBytes = 192
	// maxGone bounds the blocks that count as removed and are remembered.
	maxGone = 4096
	// mostBlocks is how many times as many blocks as it has an engine can announce before none of them count.
	mostBlocks = 2
	// maxSearches bounds how often one event has the holder's blocks searched for those that follow a block.
	maxSearches = 8
)

func (d *doubt) size() int { return doubtBytes + 8*len(d.keys) }

func newAgain(share *budget.Share) *again {
	return &again{share: share, uncertain: map[blockID]*doubt{}}
}

// remember enters a doubt if there is room. Otherwise the copies of the block count as certain.
func (a *again) remember(id blockID, d *doubt) bool {
	if !a.share.Take(d.size()) {
		a.forgetful = true
		return false
	}
	a.bytes += d.size()
	a.uncertain[id] = d
	return true
}

func (a *again) drop(id blockID, d *doubt) {
	delete(a.uncertain, id)
	a.bytes -= d.size()
	a.share.Put(d.size())
}

func idOf(e *kvevent.Event, hash kvevent.Hash) blockID {
	return blockID{hash, int32(e.Group)} // at most MaxGroup
}

// note remembers the blocks of an event that begins a prompt and already had copies on the GPU, and strikes their new copies off if
// the history has gaps. keys are the keys of all of its blocks. It returns how many copies were struck off.
func (a *again) note(w kvindex.Writer, e *kvevent.Event, keys []kvblock.Key, gaps bool) (struck int) {
	per := len(keys) / len(e.Hashes)
	for i, hash := range e.Hashes {
		n := w.Copies(kvblock.GPU, e.Group, hash)
		d := a.uncertain[idOf(e, hash)]
		if n < 2 {
			continue
		}
		if d == nil {
			d = &doubt{keys: append([]kvblock.Key(nil), keys[i*per:(i+1)*per]...)}
			if i > 0 {
				d.parent = kvindex.Parent{Hash: e.Hashes[i-1], OK: true}
			}
			if !a.remember(idOf(e, hash), d) {
				continue
			}
		}
		d.copies, d.gone = min(d.copies+1, n-1), false
		if gaps {
			taken := takeCopies(w, idOf(e, hash), 1)
			a.copies -= taken
			struck += taken
			d.copies, d.struck = d.copies-taken, true
		}
	}
	return struck
}

// removable returns the hashes of a Removed event whose blocks lose a copy. A block with too few copies keeps its last one
// while other blocks follow it: the engine evicts those first, so it still has another copy.
func (a *again) removable(w kvindex.Writer, e *kvevent.Event) []kvevent.Hash {
	if len(a.uncertain) == 0 {
		return e.Hashes
	}
	a.dropping = a.dropping[:0]
	searches := 0
	for _, hash := range e.Hashes {
		if d := a.uncertain[idOf(e, hash)]; d != nil && d.struck && w.Copies(kvblock.GPU, e.Group, hash) == 1 && searches < maxSearches {
			if searches++; w.Followed(kvblock.GPU, e.Group, hash) {
				continue
			}
		}
		a.dropping = append(a.dropping, hash)
	}
	return a.dropping
}

// forget takes what was removed out of the sums.
func (a *again) forget(w kvindex.Writer, e *kvevent.Event) {
	if len(a.uncertain) == 0 {
		return
	}
	for _, hash := range e.Hashes {
		id := idOf(e, hash)
		d := a.uncertain[id]
		if d == nil || d.gone {
			continue
		}
		n := w.Copies(kvblock.GPU, e.Group, hash)
		if d.copies = min(d.copies, n); n > 0 {
			continue
		}
		if !d.struck {
			a.drop(id, d)
		} else {
			d.gone = true
			a.gone = append(a.gone, id)
		}
	}
	for len(a.gone) > maxGone {
		if d := a.uncertain[a.gone[0]]; d != nil && d.gone {
			a.drop(a.gone[0], d)
		}
		a.gone = a.gone[1:]
	}
}

// revive stores a block that counts as removed, and those before it, because the engine has just stored one after it.
func (a *again) revive(w kvindex.Writer, group int, hash kvevent.Hash) {
	var chain []blockID
	for id := (blockID{hash, int32(group)}); len(chain) < maxGone; { // at most MaxGroup
		d := a.uncertain[id]
		if d == nil || !d.gone {
			break
		}
		chain = append(chain, id)
		if !d.parent.OK {
			break
		}
		id.hash = d.parent.Hash
	}
	for i := len(chain) - 1; i >= 0; i-- {
		d := a.uncertain[chain[i]]
		d.gone = false
		w.Store(kvblock.GPU, group, d.parent, []kvevent.Hash{chain[i].hash}, d.keys)
		a.copies++
	}
}

// settle compares the sum with what the engine has, once a batch is applied. It returns how many copies were struck off, and whether
// those that remain are more than the engine can have.
func (a *again) settle(w kvindex.Writer, windows uint64, capacity int) (struck int, impossible bool) {
	if capacity <= 0 || a.copies < capacity || a.copies <= a.checked {
		return 0, false
	}
	// What the index evicted or refused was counted, too: the sum is computed again.
	if a.copies = a.copiesOf(w, windows, a.perBlock); a.copies >= capacity {
		struck = a.strike(w)
	}
	a.checked = 0
	if a.copies >= capacity {
		a.checked = a.copies + capacity/16 // the engine reports too few blocks; do not look at each batch
	}
	// Where groups have blocks of several sizes, the sum can be too high.
	most := mostBlocks * capacity
	return struck, a.copies > most && !a.forgetful && a.copiesOf(w, windows, a.mostKeys) > most
}

// forgetAll forgets what is known of all blocks on the GPU.
func (a *again) forgetAll() {
	for id, d := range a.uncertain {
		a.drop(id, d)
	}
	a.copies, a.checked, a.gone = 0, 0, nil
}

// strike strikes all uncertain copies off, and returns how many there were.
func (a *again) strike(w kvindex.Writer) (struck int) {
	for id, d := range a.uncertain {
		struck += takeCopies(w, id, d.copies)
		d.copies, d.struck = 0, d.struck || d.copies > 0
		if n := w.Copies(kvblock.GPU, int(id.group), id.hash); n == 0 && !d.gone {
			d.gone = true
			a.gone = append(a.gone, id)
		}
	}
	a.copies -= struck
	return struck
}

// takeCopies takes n copies of a block on the GPU away, and returns how many there were.
func takeCopies(w kvindex.Writer, id blockID, n int) (taken int) {
	hash := []kvevent.Hash{id.hash}
	for taken < n && w.Drop(kvblock.GPU, int(id.group), hash) == 0 {
		taken++
	}
	return taken
}

// copiesOf is the number of copies on the GPU. The writer knows a block of a group without a window by each of its keys.
func (a *again) copiesOf(w kvindex.Writer, windows uint64, perBlock int) int {
	keys, blocks := 0, 0
	w.Each(func(b kvindex.Block) bool {
		if windows>>b.Group&1 != 0 {
			blocks += b.Copies[kvblock.GPU]
		} else {
			keys += b.Copies[kvblock.GPU]
		}
		return true
	})
	return blocks + keys/max(1, perBlock)
}
