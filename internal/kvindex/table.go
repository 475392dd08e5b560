// Package kvindex answers one question: for these block keys and these endpoints, how long is each endpoint's
// gapless match, per tier?
//
// It is exact: an endpoint that lost block 3 gets credit for blocks 0 to 2 only, any number of endpoints can hold a
// block, and every copy of a block is counted, because engines announce copies and remove them one by one.
//
// Confirmed facts (announced by the pods) and speculation (assumed because a request has just been routed) are
// stored separately: speculation never changes a fact, and its creator always withdraws it.
//
// Table is the plain implementation, obviously right rather than fast; Index is the fast one, and Table its oracle.
// Writers translate what engines report about their blocks into changes of an index.
package kvindex

import (
	"sync"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// sweepChunk bounds how many blocks are swept under one lock, and with it how long a reader can wait for a sweep.
const sweepChunk = 512

// slot is one generation of a holder. Clearing a holder gives it a fresh slot; no reader looks at the old one again.
type slot uint32

// place is where a copy of a block lies.
type place struct {
	slot slot
	tier kvblock.Tier
}

// copies counts the copies of one block in one place.
type copies struct {
	place
	n uint32
}

// Table is an index of blocks. It is safe for concurrent use.
type Table struct {
	mu       sync.RWMutex
	next     uint32
	live     map[Holder]slot
	blocks   map[kvblock.Key][]copies       // confirmed; every n > 0
	held     map[slot]map[kvblock.Key]int32 // keys of each slot, dead ones included until swept; counts places
	guesses  map[kvblock.Key][]copies       // speculative; the tier is not used
	guessedN int
	// committed are shadows that the holders' writers have not taken over yet.
	committed map[Holder]*shadowGeneration
	// windows are the groups of generations whose hits need only their last blocks.
	windows map[slot]*windows
}

// New returns an empty table.
func New() *Table {
	return &Table{
		live:    map[Holder]slot{},
		blocks:  map[kvblock.Key][]copies{},
		held:    map[slot]map[kvblock.Key]int32{},
		guesses: map[kvblock.Key][]copies{},

		committed: map[Holder]*shadowGeneration{}, windows: map[slot]*windows{},
	}
}

// Join adds a holder that holds nothing.
func (t *Table) Join() Holder {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.freshSlot()
	h := Holder(s)
	t.live[h] = s
	return h
}

// Leave removes a holder with all it holds. Later writes for it have no effect, so that a late event cannot bring a
// dead pod back.
func (t *Table) Leave(h Holder) {
	t.mu.Lock()
	old, ok := t.live[h]
	delete(t.live, h)
	delete(t.committed, h)
	t.mu.Unlock()
	if ok {
		t.sweep(old)
	}
}

// Clear forgets all blocks of a holder, speculative ones too. For readers it takes effect at once; the memory is
// given back before Clear returns.
func (t *Table) Clear(h Holder) {
	t.mu.Lock()
	old, ok := t.live[h]
	if ok {
		t.live[h] = t.freshSlot()
	}
	t.mu.Unlock()
	if ok {
		t.sweep(old)
	}
}

// Store counts one more copy of a block in a tier of a holder.
func (t *Table) Store(h Holder, tier kvblock.Tier, key kvblock.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.live[h]
	if ok {
		t.storeAt(s, tier, key)
	}
}

// storeAt counts one more copy. t is locked.
func (t *Table) storeAt(s slot, tier kvblock.Tier, key kvblock.Key) {
	if t.held[s] == nil {
		return // the generation has ended
	}
	at := place{slot: s, tier: tier}
	list := t.blocks[key]
	for i := range list {
		if list[i].place == at {
			list[i].n++
			return
		}
	}
	t.blocks[key] = append(list, copies{place: at, n: 1})
	t.held[s][key]++
}

// Drop counts one copy less. A copy that was never stored is ignored.
func (t *Table) Drop(h Holder, tier kvblock.Tier, key kvblock.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.live[h]
	if ok {
		t.dropAt(s, tier, key)
	}
}

// dropAt counts one copy less. t is locked.
func (t *Table) dropAt(s slot, tier kvblock.Tier, key kvblock.Key) {
	at := place{slot: s, tier: tier}
	list := t.blocks[key]
	for i := range list {
		if list[i].place != at {
			continue
		}
		list[i].n--
		if list[i].n == 0 {
			t.setBlock(key, cut(list, i))
			t.unhold(s, key)
		}
		return
	}
}

// Match fills out[i] with the match of holders[i]. out must be as long as holders. A holder that has left matches
// nothing.
func (t *Table) Match(keys []kvblock.Key, holders []Holder, out []Match) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, h := range holders {
		out[i] = Match{}
		s, ok := t.live[h]
		if !ok {
			continue
		}
		for _, key := range keys {
			if tier, ok := nearest(t.blocks[key], s); ok {
				out[i].Tiers[tier]++
			} else if _, ok := nearest(t.guesses[key], s); ok {
				out[i].Speculative++
			} else {
				break
			}
		}
		if ws := t.windows[s]; ws != nil {
			out[i] = ws.trim(keys, out[i])
		}
	}
}

// Size is the number of blocks in the table: distinct keys, (holder, key) pairs, and speculative (holder, key) pairs.
func (t *Table) Size() (distinct, held, speculative int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.live {
		held += len(t.held[s])
	}
	return len(t.blocks), held, t.guessedN
}

// Held is the number of distinct blocks that a holder has.
func (t *Table) Held(h Holder) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.held[t.live[h]])
}

func (t *Table) freshSlot() slot {
	t.next++
	s := slot(t.next)
	t.held[s] = map[kvblock.Key]int32{}
	return s
}

// sweep gives back the memory of a slot that no reader sees any more.
func (t *Table) sweep(dead slot) {
	for t.sweepSome(dead) {
	}
}

func (t *Table) sweepSome(dead slot) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := t.held[dead]
	swept := 0
	for key := range keys {
		if swept == sweepChunk {
			return true
		}
		list := t.blocks[key]
		for i := len(list) - 1; i >= 0; i-- {
			if list[i].slot == dead {
				list = cut(list, i)
			}
		}
		t.setBlock(key, list)
		delete(keys, key)
		swept++
	}
	delete(t.held, dead)
	delete(t.windows, dead)
	return false
}

func (t *Table) setBlock(key kvblock.Key, list []copies) {
	if len(list) == 0 {
		delete(t.blocks, key)
		return
	}
	t.blocks[key] = list
}

func (t *Table) unhold(s slot, key kvblock.Key) {
	keys := t.held[s]
	if keys[key]--; keys[key] == 0 {
		delete(keys, key)
	}
}

// nearest finds the fastest tier in which a slot has a block.
func nearest(list []copies, s slot) (kvblock.Tier, bool) {
	best, ok := kvblock.Tier(0), false
	for i := range list {
		if list[i].slot == s && (!ok || list[i].tier < best) {
			best, ok = list[i].tier, true
		}
	}
	return best, ok
}

// cut removes element i; the order does not matter.
func cut(list []copies, i int) []copies {
	last := len(list) - 1
	list[i] = list[last]
	return list[:last]
}
