package kvindex

import (
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// Share is how many of a holder's blocks no other holder has, and how many others have too.
type Share struct{ Unique, Shared int }

// Sharing returns for each of the holders what it shares with the others. It visits every run, as Size does, and is not for
// the hot path. Orphans (blocks whose parent the holder lacks) are in neither number.
func (ix *Index) Sharing(holders []Holder) []Share {
	out := make([]Share, len(holders))
	at := make(map[uint32]int, len(holders)) // by slot
	for i, h := range holders {
		if word := ix.word(h); word != 0 {
			at[uint32(word)] = i // the slot is the lower half
		}
	}
	var owners []int
	var owned []mask
	for _, chunk := range *ix.runs.chunks.Load() {
		if chunk == nil {
			continue
		}
		for i := range chunk.runs {
			r := chunk.runs[i].Load()
			if r == nil {
				continue
			}
			owners, owned = r.owners(at, owners[:0], owned[:0])
			var once, twice mask
			for j := range owned {
				for w, word := range owned[j] {
					twice[w] |= once[w] & word
					once[w] |= word
				}
			}
			for j, owner := range owners {
				var both mask
				for w := range both {
					both[w] = owned[j][w] & twice[w]
				}
				shared := both.blocks()
				out[owner].Shared += shared
				out[owner].Unique += owned[j].blocks() - shared
			}
		}
	}
	return out
}

// owners appends which of the requested slots have blocks of the run, and which blocks, in any tier.
func (r *run) owners(at map[uint32]int, owners []int, owned []mask) ([]int, []mask) {
	last := -1
	for i := range r.cells {
		header := atomic.LoadUint64(&r.cells[i])
		owner, ok := at[uint32(header>>slotShift)] // the slot is the upper half
		if !ok || tierOf(header) == tierGuess {
			continue
		}
		if owner != last { // cells are sorted by slot
			owners, owned, last = append(owners, owner), append(owned, mask{}), owner
		}
		m, all := r.load(i), &owned[len(owned)-1]
		for w := range m {
			all[w] |= m[w]
		}
	}
	return owners, owned
}

// Sharing implements Reader.
func (t *Table) Sharing(holders []Holder) []Share {
	t.mu.RLock()
	defer t.mu.RUnlock()
	count := map[kvblock.Key]int{}
	for _, h := range holders {
		if s, ok := t.live[h]; ok {
			for key := range t.held[s] {
				count[key]++
			}
		}
	}
	out := make([]Share, len(holders))
	for i, h := range holders {
		s, ok := t.live[h]
		if !ok {
			continue
		}
		for key := range t.held[s] {
			if count[key] > 1 {
				out[i].Shared++
			} else {
				out[i].Unique++
			}
		}
	}
	return out
}
