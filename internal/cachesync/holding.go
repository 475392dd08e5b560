package cachesync

import (
	"maps"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// holding is what a receiver has written to an index, and a digest of what it received.
type holding struct {
	w        kvindex.Writer
	reported map[section]*kvindex.Digest
	// groups has a bit for each group that was ever spoken of.
	groups uint64
	// windows are the rules of the groups that have one.
	windows map[int]kvindex.Window
	// refused means that there was no room for some blocks.
	refused bool
	// Buffers.
	keys   []kvblock.Key
	hashes []kvevent.Hash
}

func newHolding(w kvindex.Writer) *holding {
	h := &holding{w: w, groups: 1, windows: map[int]kvindex.Window{}}
	h.forget()
	return h
}

// adopt takes the groups that a shadow has received.
func (h *holding) adopt(shadow *holding) {
	h.groups |= shadow.groups
	maps.Copy(h.windows, shadow.windows)
}

// learn takes the rule of a group in. The index must know it even while the group holds nothing: nothing can be hit then.
func (h *holding) learn(group int, window kvindex.Window) {
	if known, ok := h.windows[group]; ok && known == window {
		return
	}
	h.windows[group] = window
	h.w.StoreWindow(kvblock.GPU, group, window, nil, nil)
}

// store enters keys, which are the blocks' names too. It returns how many were refused.
func (h *holding) store(at section, parent uint64, hashes []kvevent.Hash, keys []kvblock.Key) (refused int) {
	if window, ok := h.windows[at.group]; ok {
		return h.w.StoreWindow(at.tier, at.group, window, hashes, keys)
	}
	return h.w.Store(at.tier, at.group, parentOf(parent), hashes, keys)
}

func (h *holding) forget() { h.reported, h.refused = map[section]*kvindex.Digest{}, false }

// room reports whether there is room for n more blocks, and remembers if not.
func (h *holding) room(n, most int) bool {
	if h.w.Len()+n > most {
		h.refused = true
		return false
	}
	return true
}

func (h *holding) clear() {
	h.w.Clear()
	h.forget()
	for group, window := range h.windows {
		h.w.StoreWindow(kvblock.GPU, group, window, nil, nil)
	}
}

func (h *holding) digest(at section) *kvindex.Digest {
	d := h.reported[at]
	if d == nil {
		d = &kvindex.Digest{}
		h.reported[at] = d
	}
	return d
}

// has is the digest of what the index holds.
func (h *holding) has(at section) kvindex.Digest { return h.w.Digest(at.tier, at.group) }

// readSection checks a (tier, group).
func readSection(tier, group uint32) (section, error) {
	if tier >= uint32(kvblock.NumTiers) || group > maxGroup {
		return section{}, wrong("tier %d, group %d", tier, group)
	}
	return section{kvblock.Tier(tier), int(group)}, nil
}

// names fills the buffers with keys, which are names too: the reporter has settled copies and hashes.
func (h *holding) names(keys []uint64) error {
	h.keys, h.hashes = h.keys[:0], h.hashes[:0]
	for _, key := range keys {
		if key == 0 {
			return wrong("a key is 0")
		}
		h.keys = append(h.keys, kvblock.Key(key))
		h.hashes = append(h.hashes, kvevent.Hash(key))
	}
	return nil
}

// apply makes one change.
func (h *holding) apply(c *pb.Change, most int) error {
	if c.GetKind() == pb.Change_KIND_CLEARED {
		h.clear()
		return nil
	}
	at, err := readSection(c.GetTier(), c.GetGroup())
	if err != nil {
		return err
	}
	if err := h.names(c.GetKeys()); err != nil {
		return err
	}
	h.groups |= 1 << at.group
	if c.GetWindow() != nil {
		window, err := readWindow(c.GetWindow())
		if err != nil {
			return err
		}
		h.learn(at.group, window)
	}
	d := h.digest(at)
	switch c.GetKind() {
	case pb.Change_KIND_STORED:
		for _, key := range h.keys {
			d.Add(key)
		}
		if h.room(len(h.keys), most) && h.store(at, c.GetParent(), h.hashes, h.keys) > 0 {
			h.refused = true
		}
	case pb.Change_KIND_REMOVED:
		for _, key := range h.keys {
			d.Remove(key)
		}
		h.w.Drop(at.tier, at.group, h.hashes)
	default:
		return wrong("change of kind %d", c.GetKind())
	}
	return nil
}

func parentOf(key uint64) kvindex.Parent {
	return kvindex.Parent{Hash: kvevent.Hash(key), OK: key != 0}
}
