package cachesync

import (
	"crypto/rand"
	"encoding/binary"
	"sort"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// Options of a Mirror. Zero values take the defaults.
type Options struct {
	// MaxBlocks bounds the blocks that are mirrored, those without a key included; further ones are refused.
	MaxBlocks int
	// MaxOrphans bounds the blocks whose chain is not known up to its first block; the oldest are dropped first.
	MaxOrphans int
	// MaxGhosts bounds the removed blocks that are kept because blocks that follow them exist; the oldest are dropped
	// first.
	MaxGhosts int
	// LogBytes bounds the changes that are kept for pickers that were away for a moment.
	LogBytes int
	// Share, if set, bounds what records and their tokens take; blocks without room are refused.
	Share *budget.Share
	// NewID draws numbers that were never used before; random ones by default.
	NewID func() uint64
}

// Defaults of Options.
const (
	DefaultMaxBlocks  = 2 << 20
	DefaultMaxOrphans = 64 << 10
	DefaultMaxGhosts  = 64 << 10
	DefaultLogBytes   = 2 << 20
)

func (o Options) withDefaults() Options {
	number := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	number(&o.MaxBlocks, DefaultMaxBlocks)
	number(&o.MaxOrphans, DefaultMaxOrphans)
	number(&o.MaxGhosts, DefaultMaxGhosts)
	number(&o.LogBytes, DefaultLogBytes)
	if o.NewID == nil {
		o.NewID = randomID
	}
	return o
}

func randomID() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// blockID is how an engine names a block.
type blockID struct {
	hash  kvevent.Hash
	group int32
}

// chainRoot is what a chain begins with, in the engine's words. An empty model is the base model.
type chainRoot struct{ model, salt string }

// rootUse counts the first blocks of a root.
type rootUse struct {
	chainRoot
	uses int
}

// Stats counts what a mirror did and has. Numbers of blocks include copies where events are counted.
type Stats struct {
	Batches, Events, Skipped         uint64
	Stored, Removed, Cleared         uint64
	RemovedUnknown                   uint64
	Partial, Unkeyed, UnknownMedium  uint64
	Misaligned, BlockSizeUnsupported uint64
	Refused, OrphansDropped          uint64
	GhostsDropped                    uint64
	Epochs                           uint64
	// Struck and Superseded are those of events.Stats.
	Struck, Superseded uint64
	// Blocks that the engine holds; those of them that wait for the beginning of their chain apart, and those kept
	// because of others.
	Blocks, Orphans, Ghosts int
}

// Mirror is what one engine holds, by the engine's names and with the tokens, so that it can be keyed by any root. It
// is safe for concurrent use.
//
// Known limits: multimodal items are not distinguished inside an engine block of several key blocks, and among several
// engine blocks of one key block they are distinguished only by the block's first token.
//
// It has many fields because blocks, their order and the counts of them change together under one lock.
type Mirror struct {
	options Options
	// Changed, if set before the first use, is called after a change that senders might have to send. The mirror is locked
	// meanwhile.
	changed func()

	mu    sync.Mutex // guards all that follows
	epoch uint64
	state pb.State
	at    events.Position
	hold  bool // a replay of the same epoch is running: nothing is sent
	// unreadable: the layout of the last batch was unknown.
	unreadable bool
	lookahead  bool // a block's hash covered tokens that follow it; not saved: the next stored block shows it again

	arena    arena
	ids      map[blockID]id
	waiting  map[blockID]id // first child of a parent that has no record
	roots    []rootUse      // by number, from 1
	rootIDs  map[chainRoot]uint32
	freeRoot []uint32
	classes  [numClasses]int // how many records there are
	orphans  ring            // in order of arrival
	ghosts   ring
	stack    []id // of walks down from a block
	parts    []id // of walks down inside a key block
	stats    Stats
	again    again
	rules    rules
	later    []int // events of a batch that wait for the others
	// windowed counts blocks of groups with a window since the epoch began.
	windowed uint64
	// unindexable and refused count blocks since the epoch began.
	unindexable, refused uint64

	blockTokens int
	media       map[string]kvblock.Tier
	views       [maxViews]*view
}

// NewMirror returns a mirror that knows nothing of its engine. changed can be nil; see Mirror.
func NewMirror(o Options, changed func()) *Mirror {
	if changed == nil {
		changed = func() {}
	}
	m := &Mirror{options: o.withDefaults(), changed: changed, state: pb.State_STATE_DISCONNECTED, rules: newRules()}
	m.reset()
	m.epoch = m.options.NewID()
	return m
}

// reset forgets all blocks, by no fault of the views.
func (m *Mirror) reset() {
	m.arena.end()
	m.arena = arena{share: m.options.Share}
	m.ids, m.waiting = map[blockID]id{}, map[blockID]id{}
	m.roots, m.rootIDs, m.freeRoot = nil, map[chainRoot]uint32{}, nil
	m.orphans, m.ghosts, m.classes = ring{}, ring{}, [numClasses]int{}
	m.unindexable, m.refused, m.windowed = 0, 0, 0
	m.again = newAgain(m.again.capacity)
}

// Begin implements events.Sink: it forgets all blocks. With sameLife pickers keep what they have until the next Mark.
func (m *Mirror) Begin(sameLife bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset()
	m.hold, m.at = sameLife, events.Position{}
	if !sameLife {
		m.rules, m.lookahead = newRules(), false
		m.epoch = m.options.NewID()
		m.stats.Epochs++
	}
	for _, v := range m.views {
		if v != nil {
			v.reset()
		}
	}
	m.changed()
}

// Unreadable implements events.LayoutSink.
func (m *Mirror) Unreadable(now bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unreadable = now
}

// Revert implements events.Sink: the earlier state is not kept beside the replayed one.
func (m *Mirror) Revert() bool { return false }

// Mark implements events.Sink: a replay has ended.
func (m *Mirror) Mark(at events.Position, state events.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = at
	if now := states[state]; m.state != now || m.hold {
		m.state, m.hold = now, false
		m.changed()
	}
}

// states are the stream states as pickers receive them.
var states = map[events.State]pb.State{
	events.Disconnected: pb.State_STATE_DISCONNECTED,
	events.Syncing:      pb.State_STATE_SYNCING,
	events.Synced:       pb.State_STATE_SYNCED,
	events.Unverified:   pb.State_STATE_UNVERIFIED,
	events.Degraded:     pb.State_STATE_DEGRADED,
}

// State is the state of the engine's stream as pickers receive it.
func (m *Mirror) State() pb.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Position is the place in the engine's batches that the mirror is at.
func (m *Mirror) Position() events.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

// Stats are the counts so far.
func (m *Mirror) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Blocks, s.Orphans, s.Ghosts = m.classes[placed], m.classes[orphan], m.classes[ghost]
	return s
}

// Apply implements events.Sink: it makes the changes of a batch, in its order.
func (m *Mirror) Apply(b *kvevent.Batch, at events.Position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = at
	m.stats.Batches++
	m.stats.Events += uint64(len(b.Events))
	m.stats.Skipped += uint64(b.Skipped)
	m.lookahead = m.lookahead || b.Lookahead()
	m.later = m.later[:0]
	for i := range b.Events {
		e := &b.Events[i]
		if m.rules.note(e) {
			m.later = append(m.later, i)
			continue
		}
		if e.Kind == kvevent.Cleared {
			m.catchUp(b)
		}
		m.event(e)
	}
	m.catchUp(b)
	m.settleCopies()
	m.flush()
	m.changed()
}

// catchUp applies the events that wait.
func (m *Mirror) catchUp(b *kvevent.Batch) {
	for _, i := range m.later {
		m.event(&b.Events[i])
	}
	m.later = m.later[:0]
}

// event makes one change.
func (m *Mirror) event(e *kvevent.Event) {
	switch e.Kind {
	case kvevent.Stored:
		m.store(e)
	case kvevent.Removed:
		m.remove(e)
	case kvevent.Cleared:
		m.clear(e)
	}
}

// flush ends the views' chains of changes.
func (m *Mirror) flush() {
	for _, v := range m.views {
		if v != nil {
			v.flush()
		}
	}
}

// store applies a Stored event.
func (m *Mirror) store(e *kvevent.Event) {
	n := uint64(len(e.Hashes))
	m.stats.Stored += n
	tier, ok := events.TierOf(e.Medium, m.media)
	switch {
	case !ok:
		m.lost(&m.stats.UnknownMedium, n)
	case e.Partial: // the conditions for a hit in the group are unknown
		m.lost(&m.stats.Partial, n)
	case e.Group < 0 || e.Group > maxGroup:
		m.lost(&m.stats.Partial, n)
	case e.Unkeyed || len(e.Tokens) == 0 && e.BlockSize == 0:
		for _, hash := range e.Hashes {
			i, ok := m.ids[blockID{hash, int32(e.Group)}]
			switch {
			case !ok:
				m.lost(&m.stats.Unkeyed, 1)
			case m.room(i):
				m.more(i, tier)
			}
		}
	case e.BlockSize <= 0 || e.Tail == 0 && len(e.Tokens) != len(e.Hashes)*e.BlockSize:
		m.lost(&m.stats.Misaligned, n)
	case e.BlockSize > maxBlockSize:
		m.lost(&m.stats.BlockSizeUnsupported, n)
	case e.Tail > 0:
		m.storeWindow(e, tier)
	default:
		m.storeChain(e, tier)
	}
}

// lost counts blocks that cannot be indexed.
func (m *Mirror) lost(why *uint64, n uint64) {
	*why += n
	m.unindexable += n
}

// storeChain applies a Stored event with all its tokens.
func (m *Mirror) storeChain(e *kvevent.Event, tier kvblock.Tier) {
	hasParent := e.HasParent && e.Parent != 0 // one simulator writes 0 for none
	parent, begins := e.Parent, !hasParent
	m.superseded(e)
	for i, hash := range e.Hashes {
		extra := itemsAt(e, i)
		n, ok := m.ids[blockID{hash, int32(e.Group)}]
		if !ok {
			if n = m.create(hash, int32(e.Group), e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], extra); n != 0 {
				var root *chainRoot
				if !hasParent {
					root = &chainRoot{e.Adapter, e.Salt}
				}
				m.link(n, parent, root)
			}
		}
		if m.room(n) {
			m.noteAgain(n, tier, begins)
			m.more(n, tier)
		}
		parent, hasParent = hash, true
	}
	m.trim()
}

// itemsAt folds the items of an event's block; they are in the order of the blocks.
func itemsAt(e *kvevent.Event, block int) (extra uint64) {
	first := sort.Search(len(e.Items), func(i int) bool { return e.Items[i].Block >= block })
	for i := first; i < len(e.Items) && e.Items[i].Block == block; i++ {
		extra = kvblock.ItemExtra(extra, e.Items[i].Key, e.Items[i].Offset)
	}
	return extra
}

// remove applies a Removed event.
func (m *Mirror) remove(e *kvevent.Event) {
	m.stats.Removed += uint64(len(e.Hashes))
	tier, ok := events.TierOf(e.Medium, m.media)
	if !ok {
		m.stats.UnknownMedium += uint64(len(e.Hashes))
		return
	}
	for _, hash := range e.Hashes {
		n, ok := m.ids[blockID{hash, int32(e.Group)}]
		if !ok || m.arena.at(n).copies[tier] == 0 {
			m.stats.RemovedUnknown++
			continue
		}
		if m.keeps(n, tier) {
			continue
		}
		m.less(n, tier, 1)
	}
	m.trim()
}

// clear applies a Cleared event: everything goes, or one tier where the engine names it.
func (m *Mirror) clear(e *kvevent.Event) {
	m.stats.Cleared++
	if e.Medium == "" {
		m.reset()
		for _, v := range m.views {
			if v != nil {
				v.clear()
			}
		}
		return
	}
	tier, ok := events.TierOf(e.Medium, m.media)
	if !ok {
		m.stats.UnknownMedium++
		return
	}
	m.clearTier(tier)
}

// clearTier forgets all copies in a tier.
func (m *Mirror) clearTier(tier kvblock.Tier) {
	var held []id
	m.arena.each(func(i id, r *record) {
		if r.copies[tier] > 0 {
			held = append(held, i)
		}
	})
	for _, i := range held {
		m.less(i, tier, m.arena.at(i).copies[tier])
	}
	m.trim()
}
