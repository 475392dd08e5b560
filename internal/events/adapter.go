package events

import (
	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// adapters separates the blocks of LoRA adapters, because an adapter can be loaded again under the same name with other
// weights. vLLM 0.31 and newer then make other hashes (they cover the adapter's path), so that no request finds the old
// blocks any more; but no event reports it, and the old blocks are removed only by eviction.
//
// In one life of an engine the same first block of the same adapter has one hash. When it is announced by another hash
// while the old one is held, the adapter is another one, and its old blocks are forgotten. Releases before 0.31 find the
// old blocks (their hashes cover the name only), and so does the index.
type adapters struct {
	share *budget.Share
	of    map[blockID]string      // adapter by block
	first map[kvblock.Key]blockID // of the first blocks of prompts, by their key
}

// What an entry of each map takes, in bytes: of and first. An adapter's name counts besides.
const ofBytes, firstBytes = 96, 64

// forgetAll gives back what all entries take.
func (a *adapters) forgetAll() {
	bytes := len(a.first) * firstBytes
	for _, name := range a.of {
		bytes += ofBytes + len(name)
	}
	a.share.Put(bytes)
	a.of, a.first = nil, nil
}

// drop removes a block.
func (a *adapters) drop(id blockID) {
	if name, ok := a.of[id]; ok {
		delete(a.of, id)
		a.share.Put(ofBytes + len(name))
	}
}

// note enters blocks of an adapter as far as there is room. first is the key of the event's first block if that begins a prompt,
// else 0. It returns the blocks that can no longer be found: those of the adapter's former weights.
func (a *adapters) note(w kvindex.Writer, e *kvevent.Event, first kvblock.Key) (former []blockID) {
	if a.of == nil {
		a.of, a.first = map[blockID]string{}, map[kvblock.Key]blockID{}
	}
	if first != 0 {
		if old, ok := a.first[first]; ok && old.hash != e.Hashes[0] && w.Copies(kvblock.GPU, int(old.group), old.hash) > 0 {
			for id, name := range a.of {
				if name == e.Adapter {
					former = append(former, id)
					a.drop(id)
				}
			}
		}
		if _, ok := a.first[first]; ok || a.share.Take(firstBytes) {
			a.first[first] = blockID{e.Hashes[0], int32(e.Group)} // at most MaxGroup
		}
	}
	for _, hash := range e.Hashes {
		id := blockID{hash, int32(e.Group)} // at most MaxGroup
		if name, ok := a.of[id]; ok && name == e.Adapter {
			continue
		}
		if a.drop(id); !a.share.Take(ofBytes + len(e.Adapter)) {
			break
		}
		a.of[id] = e.Adapter
	}
	return former
}

// forget removes blocks without any copy.
func (a *adapters) forget(w kvindex.Writer, e *kvevent.Event) {
	if len(a.of) == 0 {
		return
	}
	for _, hash := range e.Hashes {
		if _, known := w.Key(e.Group, hash); !known {
			a.drop(blockID{hash, int32(e.Group)}) // at most MaxGroup
		}
	}
	if len(a.first) > 2*len(a.of)+64 {
		for key, id := range a.first {
			if _, held := a.of[id]; !held {
				delete(a.first, key)
				a.share.Put(firstBytes)
			}
		}
	}
}

// dropAll takes all copies of blocks away.
func dropAll(w kvindex.Writer, blocks []blockID) {
	for _, id := range blocks {
		hash := []kvevent.Hash{id.hash}
		for tier := range kvblock.Tier(kvblock.NumTiers) {
			for w.Drop(tier, int(id.group), hash) == 0 {
			}
		}
	}
}
