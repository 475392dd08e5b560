package events

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// groupRules is what a mirror knows of the groups whose hits need only their last blocks (kvindex.Window), in one life of
// an engine.
//
// Events of such groups are applied after those of the other groups in the same batch: an engine gives a block the same
// hash in every group, so its key is that of the same hash in a group of full attention, which keeps chains complete. The
// early blocks of a window are evicted first, and some releases announce only those that a hit can need.
type groupRules struct {
	windows uint64 // a bit for each group that has a window
	full    uint64 // and for each that has none
	later   []int  // events of the batch that wait for the others
	keys    []kvblock.Key
}

// postpone reports whether an event waits for those of other groups.
func (g *groupRules) postpone(e *kvevent.Event) bool {
	if e.Group < 0 || e.Group > kvindex.MaxGroup {
		return false
	}
	bit := uint64(1) << e.Group
	switch {
	case e.Kind == kvevent.Removed:
		return g.windows&bit != 0
	case e.Kind != kvevent.Stored || e.Partial:
		return false
	case e.Tail > 0:
		g.windows |= bit
		return true
	default:
		g.full |= bit
		return false
	}
}

// storeWindow applies a Stored event of a group with a window.
func (m *mirror) storeWindow(e *kvevent.Event, tier kvblock.Tier) {
	ours := m.feed.Keys.BlockTokens
	rule := kvindex.Window{Keys: e.BlockSize / ours, Blocks: (e.Tail + e.BlockSize - 1) / e.BlockSize}
	if tier == kvblock.GPU && !e.HasParent && m.reported(e, rule) {
		return
	}
	if m.max-m.writer.Len() < len(e.Hashes) {
		m.stats.Refused.Add(uint64(len(e.Hashes)))
		return
	}
	keys := m.windowKeys(e)
	m.stats.Unkeyed.Add(uint64(m.writer.StoreWindow(tier, e.Group, rule, e.Hashes, keys)))
}

// windowKeys are the keys at the ends of an event's blocks, 0 for those that have none.
func (m *mirror) windowKeys(e *kvevent.Event) []kvblock.Key {
	g := &m.groups
	g.keys = slices.Grow(g.keys[:0], len(e.Hashes))[:len(e.Hashes)]
	missing := false
	for i, hash := range e.Hashes {
		g.keys[i] = m.keyIn(g.full, hash)
		missing = missing || g.keys[i] == 0
	}
	if !missing || len(e.Tokens) != len(e.Hashes)*e.BlockSize {
		return g.keys
	}
	// The chain from the parent on, as in a model that has windows only.
	_, key := m.parentOf(e)
	if key == 0 {
		key = m.keyIn(g.full, e.Parent)
	}
	if key == 0 {
		return g.keys
	}
	m.keys = m.appendKeys(m.keys[:0], key, e, 0)
	perHash := e.BlockSize / m.feed.Keys.BlockTokens
	for i := range g.keys {
		g.keys[i] = m.keys[(i+1)*perHash-1]
	}
	return g.keys
}

// keyIn finds a block's key in any of some groups, 0 if it is in none.
func (m *mirror) keyIn(groups uint64, hash kvevent.Hash) kvblock.Key {
	for group := 0; groups != 0; group, groups = group+1, groups>>1 {
		if groups&1 != 0 {
			if key, ok := m.writer.Key(group, hash); ok {
				return key
			}
		}
	}
	return 0
}

// reported recognises what vLLM (0.26 and newer) announces again of a prompt's cached blocks when a request asks for it
// (kv_cache_report_mode). In a group with a window it names all blocks of the hit, although it has only the last ones.
// That those are known shows it: an engine that had found them would not have stored the prompt from its beginning.
func (m *mirror) reported(e *kvevent.Event, rule kvindex.Window) bool {
	last := e.Hashes[max(0, len(e.Hashes)-rule.Blocks):]
	for _, hash := range last {
		if m.writer.Copies(kvblock.GPU, e.Group, hash) == 0 {
			return false
		}
	}
	return true
}
