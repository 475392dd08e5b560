package cachesync

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// rules are the groups of an engine whose hits need only their last blocks (see kvindex.Window).
//
// The engine gives a block the same hash in every group. So where the model has groups that need all of a prefix, a block
// of a group with a window is a record without tokens under its prefix record, the record of that hash in such a group, and
// has the prefix record's key. Chains stay complete there, while the early blocks of a window are evicted first, and some
// releases announce only those that a hit can need. In a model that has only windows, each group has its own chains.
type rules struct {
	of map[int32]rule // by group
	// full has a bit for each group that needs all of a prefix.
	full uint64
	// fullTokens are in one block of those groups.
	fullTokens int
}

// rule is one group's: tokens in its blocks, and how many blocks up to the end of a hit must be held.
type rule struct{ tokens, blocks int }

func newRules() rules { return rules{of: map[int32]rule{}} }

func (r *rules) has(group int32) bool {
	_, ok := r.of[group]
	return ok
}

// window is the rule of a group in keys, nil if it has none that goes with keys of that size.
func (r *rules) window(group int32, blockTokens int) *pb.Window {
	w, ok := r.of[group]
	if !ok || blockTokens <= 0 || w.tokens%blockTokens != 0 {
		return nil
	}
	return &pb.Window{Keys: uint32(w.tokens / blockTokens), Blocks: uint32(w.blocks), FullKeys: uint32(r.fullTokens / blockTokens)}
}

// note records what an event says about its group. It reports whether the event waits for those of other groups in the same
// batch: blocks are added after their prefix records, and removed after them.
func (r *rules) note(e *kvevent.Event) (later bool) {
	switch {
	case e.Group < 0 || e.Group > maxGroup:
		return false
	case e.Kind == kvevent.Removed:
		return r.has(int32(e.Group))
	case e.Kind != kvevent.Stored || e.Partial:
		return false
	case e.Tail == 0:
		r.full |= 1 << e.Group
		r.fullTokens = max(r.fullTokens, min(e.BlockSize, maxBlockSize))
		return false
	case e.BlockSize <= 0 || e.BlockSize > maxBlockSize:
		return false
	}
	r.of[int32(e.Group)] = rule{tokens: e.BlockSize, blocks: (e.Tail + e.BlockSize - 1) / e.BlockSize}
	return true
}

// prefixRecord is the record of a hash in a group that needs all of a prefix; 0 if there is none.
func (m *Mirror) prefixRecord(hash kvevent.Hash) id {
	for group, bits := int32(0), m.rules.full; bits != 0; group, bits = group+1, bits>>1 {
		if bits&1 != 0 {
			if n, ok := m.ids[blockID{hash, group}]; ok {
				return n
			}
		}
	}
	return 0
}

// storeWindow applies a Stored event of a group with a window.
func (m *Mirror) storeWindow(e *kvevent.Event, tier kvblock.Tier) {
	if tier == kvblock.GPU && !e.HasParent && m.reported(e) {
		return
	}
	m.windowed += uint64(len(e.Hashes))
	begins := !e.HasParent || e.Parent == 0
	for i, hash := range e.Hashes {
		n, known := m.ids[blockID{hash, int32(e.Group)}]
		if !known {
			if n = m.createInWindow(e, i, begins); n == 0 {
				continue
			}
		}
		if m.room(n) {
			m.more(n, tier)
		}
	}
	m.trim()
}

// createInWindow makes the record of an event's block; 0 if it cannot be distinguished or there is no room.
func (m *Mirror) createInWindow(e *kvevent.Event, i int, begins bool) id {
	hash, group := e.Hashes[i], int32(e.Group)
	if up := m.prefixRecord(hash); up != 0 {
		n := m.create(hash, group, nil, 0)
		if n == 0 {
			m.room(0)
			return 0
		}
		m.hangBelow(n, up)
		return n
	}
	if len(e.Tokens) != len(e.Hashes)*e.BlockSize {
		m.lost(&m.stats.Unkeyed, 1)
		return 0
	}
	n := m.create(hash, group, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], itemsAt(e, i))
	switch {
	case n == 0:
		m.room(0)
	case i > 0:
		m.link(n, e.Hashes[i-1], nil)
	case begins:
		m.link(n, 0, &chainRoot{e.Adapter, e.Salt})
	default:
		m.link(n, e.Parent, nil)
	}
	return n
}

// hangBelow puts a fresh record without tokens below its prefix record.
func (m *Mirror) hangBelow(n, up id) {
	r := m.arena.at(n)
	r.parent = r.hash
	m.hang(n, up)
	if r.rooted = m.arena.at(up).rooted; r.rooted {
		m.settle(n)
	}
}

// reported recognises what vLLM (0.26 and newer) announces again of a prompt's cached blocks: in a group with a window it
// names all blocks of the hit, although it has only the last ones (see package events).
func (m *Mirror) reported(e *kvevent.Event) bool {
	for _, hash := range e.Hashes[max(0, len(e.Hashes)-m.rules.of[int32(e.Group)].blocks):] {
		if n, ok := m.ids[blockID{hash, int32(e.Group)}]; !ok || m.arena.at(n).copies[kvblock.GPU] == 0 {
			return false
		}
	}
	return true
}

// Bounds on a window received from a peer.
const (
	maxWindowKeys   = maxBlockSize
	maxWindowBlocks = 1 << 20
)

// readWindow checks a window received from a peer.
func readWindow(w *pb.Window) (kvindex.Window, error) {
	if w.GetKeys() == 0 || w.GetKeys() > maxWindowKeys || w.GetFullKeys() > maxWindowKeys || w.GetBlocks() == 0 ||
		w.GetBlocks() > maxWindowBlocks {
		return kvindex.Window{}, wrong("a window of %d blocks of %d keys", w.GetBlocks(), w.GetKeys())
	}
	return kvindex.Window{Keys: int(w.GetKeys()), Blocks: int(w.GetBlocks()), Full: int(w.GetFullKeys())}, nil
}
