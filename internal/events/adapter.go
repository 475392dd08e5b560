package events

import (
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
	of    map[blockID]string      // adapter by block
	first map[kvblock.Key]blockID // of the first blocks of prompts, by their key
}

// note enters blocks of an adapter. first is the key of the event's first block if that begins a prompt, else 0. It
// returns the blocks that can no longer be found: those of the adapter's former weights.
func (a *adapters) note(w kvindex.Writer, e *kvevent.Event, first kvblock.Key) (former []blockID) {
	if a.of == nil {
		a.of, a.first = map[blockID]string{}, map[kvblock.Key]blockID{}
	}
	if first != 0 {
		if old, ok := a.first[first]; ok && old.hash != e.Hashes[0] && w.Copies(kvblock.GPU, int(old.group), old.hash) > 0 {
			for id, name := range a.of {
				if name == e.Adapter {
					former = append(former, id)
					delete(a.of, id)
				}
			}
		}
		a.first[first] = blockID{e.Hashes[0], int32(e.Group)} // at most MaxGroup
	}
	for _, hash := range e.Hashes {
		a.of[blockID{hash, int32(e.Group)}] = e.Adapter // at most MaxGroup
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
			delete(a.of, blockID{hash, int32(e.Group)}) // at most MaxGroup
		}
	}
	if len(a.first) > 2*len(a.of)+64 {
		for key, id := range a.first {
			if _, held := a.of[id]; !held {
				delete(a.first, key)
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
