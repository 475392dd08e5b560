package events

import (
	"math"
	"sort"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// blockID is how an engine names a block, within one endpoint and life.
type blockID struct {
	hash  kvevent.Hash
	group int32
}

// mirror keeps what one endpoint holds in one life: known blocks are with the index's writer, by the engine's names,
// because engines name blocks by hashes of their own in removals and as parents; blocks whose parent is not known yet
// wait here. It is for one goroutine.
//
// An engine's block can be several key blocks long: it then has as many keys. Engine blocks that are parts of a key block
// are handled by sizer, not by a mirror. Known limits: multimodal items are not distinguished inside an engine block of
// several key blocks, and a block counts as held if one of several groups of full attention has it.
type mirror struct {
	feed    *Feed
	cfg     *Config
	writer  kvindex.Writer
	stats   *Stats
	share   *budget.Share
	max     int
	orphans *orphanage
	// before are the orphans of the life to be replaced, while writer is that of a shadow; else nil.
	before *orphanage
	// gaps is whether the history has some, as of the last Mark.
	gaps bool
	// impossible: more blocks were held than the engine can have, since the stream asked last.
	impossible bool
	// stored collects the keys for Feed.OnStored, work the orphans whose parent has arrived, keys those of one event.
	stored []kvblock.Key
	work   []*orphan
	keys   []kvblock.Key

	groups groupRules
	facts
	factsBefore facts // while writer is that of a shadow
}

func newMirror(feed *Feed, c *Config, share *budget.Share, stats *Stats) *mirror {
	return &mirror{feed: feed, cfg: c, writer: feed.Writer, stats: stats, share: share, max: c.MaxBlocks,
		orphans: newOrphanage(c, share, stats), facts: newFacts(share)}
}

// Begin implements Sink. Replayed events load into a shadow, so that requests find the earlier blocks until the replay
// is complete; another epoch of the engine begins with no blocks at once.
func (m *mirror) Begin(sameLife bool) {
	m.Revert()
	m.gaps = false
	if !sameLife {
		m.groups = groupRules{}
		m.clear()
		return
	}
	m.factsBefore, m.facts = m.facts, newFacts(m.share)
	m.before, m.orphans, m.writer = m.orphans, newOrphanage(m.cfg, m.share, m.stats), m.feed.Writer.Shadow()
	m.gauge()
}

// Revert implements Sink.
func (m *mirror) Revert() bool {
	if m.before == nil {
		return false
	}
	m.writer.Discard()
	m.orphans.reset()
	m.end()
	m.writer, m.orphans, m.before = m.feed.Writer, m.before, nil
	m.facts, m.factsBefore = m.factsBefore, facts{}
	m.gauge()
	return true
}

// Apply implements Sink.
func (m *mirror) Apply(b *kvevent.Batch, _ Position) { m.apply(b) }

// Mark implements Sink.
func (m *mirror) Mark(_ Position, state State) {
	gaps := state == Unverified || state == Degraded
	if gaps && !m.gaps {
		m.stats.Struck.Add(uint64(m.again.strike(m.writer)))
	}
	m.gaps = gaps
	if m.before != nil {
		m.writer.Commit()
		m.before.reset()
		m.factsBefore.end()
		m.writer, m.before, m.factsBefore = m.feed.Writer, nil, facts{}
	}
	m.gauge()
}

// clear begins a new life: nothing is held.
func (m *mirror) clear() {
	m.writer.Clear()
	m.orphans.reset()
	m.end()
	m.facts, m.gaps = newFacts(m.share), false
	m.gauge()
}

func (m *mirror) gauge() {
	m.stats.Blocks.Store(int64(m.writer.Len()))
	m.stats.Orphans.Store(int64(len(m.orphans.byID)))
	m.stats.OrphanBytes.Store(int64(m.orphans.bytes))
}

// apply makes the changes of a batch, in its order.
func (m *mirror) apply(b *kvevent.Batch) {
	m.stats.Batches.Add(1)
	m.stats.Events.Add(uint64(len(b.Events)))
	m.stats.Skipped.Add(uint64(b.Skipped))
	m.stored = m.stored[:0]
	m.groups.later = m.groups.later[:0]
	for i := range b.Events {
		e := &b.Events[i]
		if m.groups.postpone(e) {
			m.groups.later = append(m.groups.later, i)
			continue
		}
		if e.Kind == kvevent.Cleared {
			m.catchUp(b)
		}
		m.event(e)
	}
	m.catchUp(b)
	if m.feed.Capacity != nil {
		struck, impossible := m.again.settle(m.writer, m.groups.windows, m.feed.Capacity())
		m.stats.Struck.Add(uint64(struck))
		if impossible {
			m.disbelieve()
		}
	}
	m.gauge()
	if len(m.stored) > 0 && m.feed.OnStored != nil {
		m.feed.OnStored(m.stored)
	}
	m.trim()
}

// catchUp applies the events that were postponed so far.
func (m *mirror) catchUp(b *kvevent.Batch) {
	for _, i := range m.groups.later {
		m.event(&b.Events[i])
	}
	m.groups.later = m.groups.later[:0]
}

// event makes one change.
func (m *mirror) event(e *kvevent.Event) {
	switch e.Kind {
	case kvevent.Stored:
		m.store(e)
	case kvevent.Removed:
		m.remove(e)
	case kvevent.Cleared:
		m.clearEvent(e)
	}
}

// store applies a Stored event.
func (m *mirror) store(e *kvevent.Event) {
	n := uint64(len(e.Hashes))
	m.stats.Stored.Add(n)
	tier, ok := m.tier(e.Medium)
	switch {
	case !ok:
		m.stats.UnknownMedium.Add(n)
	case e.Partial:
		m.stats.Partial.Add(n)
	case e.Unkeyed || len(e.Tokens) == 0 && e.BlockSize == 0:
		m.storeByHash(e, tier)
	case e.BlockSize <= 0 || e.Tail == 0 && len(e.Tokens) != len(e.Hashes)*e.BlockSize:
		m.stats.Misaligned.Add(n)
	case m.feed.Keys.BlockTokens <= 0 || e.BlockSize%m.feed.Keys.BlockTokens != 0:
		m.stats.BlockSizeUnsupported.Add(n)
	case e.Group < 0 || e.Group > kvindex.MaxGroup:
		m.stats.Refused.Add(n)
	case len(e.Hashes) == 0:
	case e.Tail > 0:
		m.count(tier, len(e.Hashes))
		m.storeWindow(e, tier)
	default:
		perBlock, before, orphans := e.BlockSize/m.feed.Keys.BlockTokens, m.writer.Len(), len(m.orphans.byID)
		m.again.perBlock, m.again.mostKeys = perBlock, max(m.again.mostKeys, perBlock)
		m.count(tier, len(e.Hashes))
		m.storeChain(e, tier)
		if tier == kvblock.GPU && !e.HasParent && (orphans > 0 || m.writer.Len()-before < len(e.Hashes)*perBlock) {
			m.stats.Struck.Add(uint64(m.again.note(m.writer, e, m.keys, m.gaps)))
		}
	}
}

// count adds blocks to those on the GPU.
func (m *mirror) count(tier kvblock.Tier, n int) {
	if tier == kvblock.GPU {
		m.again.copies += n
	}
}

// storeByHash counts copies of blocks that are known already, for events with too little data to key new ones: an engine
// that offloads a block announces it by hash alone.
func (m *mirror) storeByHash(e *kvevent.Event, tier kvblock.Tier) {
	for i, hash := range e.Hashes {
		if m.writer.Copy(tier, e.Group, e.Hashes[i:i+1]) == 0 {
			m.collectKey(e.Group, hash)
		} else if o := m.orphans.byID[blockID{hash, int32(e.Group)}]; o != nil {
			more(&o.copies[tier])
		} else {
			m.stats.Unkeyed.Add(1)
		}
	}
}

// collectKey collects the key of a known block for OnStored.
func (m *mirror) collectKey(group int, hash kvevent.Hash) {
	if key, ok := m.writer.Key(group, hash); ok {
		m.stored = append(m.stored, key)
	}
}

// more counts up, and stops at the largest number: what is counted down from there is forgotten too early, never too
// late.
func more(n *uint16) {
	if *n < math.MaxUint16 {
		*n++
	}
}

// storeChain applies a Stored event with all its tokens: blocks enter the index from the first one whose parent has a key;
// earlier ones wait.
func (m *mirror) storeChain(e *kvevent.Event, tier kvblock.Tier) {
	parent, key := m.parentOf(e)
	at := 0
	for ; key == 0 && at < len(e.Hashes); at++ {
		hash := e.Hashes[at]
		if m.writer.Copy(tier, e.Group, e.Hashes[at:at+1]) == 0 {
			m.collectKey(e.Group, hash)
			key, _ = m.writer.Key(e.Group, hash)
		} else {
			m.wait(e, at, parent, tier)
		}
		parent = kvindex.Parent{Hash: hash, OK: true}
	}
	if at == len(e.Hashes) {
		return
	}
	hashes := e.Hashes[at:]
	m.keys = m.appendKeys(m.keys[:0], key, e, at)
	perHash := e.BlockSize / m.feed.Keys.BlockTokens
	keys := m.keys
	if e.Adapter != "" {
		first := kvblock.Key(0)
		if at == 0 && !parent.OK {
			first = keys[perHash-1]
		}
		if former := m.adapters.note(m.writer, e, first); len(former) > 0 {
			dropAll(m.writer, former)
			m.stats.Superseded.Add(uint64(len(former)))
		}
	}
	for len(hashes) > 0 {
		n := m.room(e.Group, hashes, perHash)
		if n == 0 {
			m.stats.Refused.Add(uint64(len(hashes)))
			return
		}
		m.stats.Refused.Add(uint64(m.writer.Store(tier, e.Group, parent, hashes[:n], keys[:n*perHash])))
		m.stored = append(m.stored, keys[:n*perHash]...)
		m.attach(e.Group, hashes[:n])
		parent = kvindex.Parent{Hash: hashes[n-1], OK: true}
		hashes, keys = hashes[n:], keys[n*perHash:]
	}
}

// room is how many of hashes, from the first on, can be stored at once: all of them while there is room; then one by
// one those that are known already.
func (m *mirror) room(group int, hashes []kvevent.Hash, perHash int) int {
	free := (m.max - m.writer.Len()) / perHash
	if free >= len(hashes) {
		return len(hashes)
	}
	if _, known := m.writer.Key(group, hashes[0]); known || free > 0 {
		return 1
	}
	return 0
}

// parentOf finds the block before an event's first, and its key: 0 while it is not known.
func (m *mirror) parentOf(e *kvevent.Event) (kvindex.Parent, kvblock.Key) {
	if !e.HasParent || e.Parent == 0 { // one simulator writes 0 for none
		model := e.Adapter
		if model == "" {
			model = m.feed.Keys.Model
		}
		return kvindex.Parent{}, m.feed.Keys.Seed.Root(model, e.Salt)
	}
	key, _ := m.writer.Key(e.Group, e.Parent)
	if key == 0 && len(m.again.uncertain) > 0 {
		m.again.revive(m.writer, e.Group, e.Parent)
		key, _ = m.writer.Key(e.Group, e.Parent)
	}
	return kvindex.Parent{Hash: e.Parent, OK: true}, key
}

// appendKeys appends the keys of an event's blocks from number at on; each is a whole number of key blocks.
func (m *mirror) appendKeys(dst []kvblock.Key, parent kvblock.Key, e *kvevent.Event, at int) []kvblock.Key {
	for i := at; i < len(e.Hashes); i++ {
		tokens := e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]
		dst = AppendBlockKeys(dst, parent, tokens, extraOf(e, i), m.feed.Keys.BlockTokens)
		parent = dst[len(dst)-1]
	}
	return dst
}

// AppendBlockKeys appends the keys of one engine block, which is a whole number of key blocks; extra goes into each key.
func AppendBlockKeys(dst []kvblock.Key, parent kvblock.Key, tokens []uint32, extra uint64, blockTokens int) []kvblock.Key {
	for at := 0; at < len(tokens); at += blockTokens {
		parent = kvblock.Next(parent, tokens[at:at+blockTokens:at+blockTokens], extra)
		dst = append(dst, parent)
	}
	return dst
}

// extraOf folds the items of an event's block; they are in the order of the blocks.
func extraOf(e *kvevent.Event, block int) (extra uint64) {
	first := sort.Search(len(e.Items), func(i int) bool { return e.Items[i].Block >= block })
	for i := first; i < len(e.Items) && e.Items[i].Block == block; i++ {
		extra = kvblock.ItemExtra(extra, e.Items[i].Key, e.Items[i].Offset)
	}
	return extra
}

// wait makes an event's block an orphan, or counts one more copy of one.
func (m *mirror) wait(e *kvevent.Event, at int, parent kvindex.Parent, tier kvblock.Tier) {
	id := blockID{e.Hashes[at], int32(e.Group)}
	o := m.orphans.byID[id]
	if o == nil {
		tokens := e.Tokens[at*e.BlockSize : (at+1)*e.BlockSize]
		o = &orphan{id: id, parent: blockID{parent.Hash, int32(e.Group)}, tokens: append([]uint32(nil), tokens...), extra: extraOf(e, at)}
		if !m.orphans.add(o) {
			return
		}
	}
	more(&o.copies[tier])
}

// attach adds the orphans that were just stored themselves, those whose parents were just stored, and their descendants.
func (m *mirror) attach(group int, hashes []kvevent.Hash) {
	if len(m.orphans.byID) == 0 {
		return
	}
	for _, hash := range hashes {
		id := blockID{hash, int32(group)}
		if o := m.orphans.byID[id]; o != nil {
			m.orphans.remove(o)
			for tier, n := range o.copies {
				m.count(kvblock.Tier(tier), int(n))
				for range n {
					m.writer.Copy(kvblock.Tier(tier), group, []kvevent.Hash{hash})
				}
			}
		}
		m.work = m.orphans.release(id, m.work)
	}
	for len(m.work) > 0 {
		o := m.work[len(m.work)-1]
		m.work = m.work[:len(m.work)-1]
		m.place(o)
		m.work = m.orphans.release(o.id, m.work)
	}
}

// place stores a block that was an orphan, with all its copies, below its parent.
func (m *mirror) place(o *orphan) {
	group := int(o.id.group)
	key, ok := m.writer.Key(group, o.parent.hash)
	keys := AppendBlockKeys(nil, key, o.tokens, o.extra, m.feed.Keys.BlockTokens)
	if !ok || m.writer.Len()+len(keys) > m.max {
		m.stats.Refused.Add(1)
		return
	}
	hashes := []kvevent.Hash{o.id.hash}
	for tier, n := range o.copies {
		m.count(kvblock.Tier(tier), int(n))
		for range n {
			m.stats.Refused.Add(uint64(m.writer.Store(kvblock.Tier(tier), group, kvindex.Parent{Hash: o.parent.hash, OK: true}, hashes, keys)))
		}
	}
	m.stored = append(m.stored, keys...)
}

// remove applies a Removed event.
func (m *mirror) remove(e *kvevent.Event) {
	m.stats.Removed.Add(uint64(len(e.Hashes)))
	tier, ok := m.tier(e.Medium)
	if !ok {
		m.stats.UnknownMedium.Add(uint64(len(e.Hashes)))
		return
	}
	hashes := e.Hashes
	if tier == kvblock.GPU {
		hashes = m.again.removable(m.writer, e)
	}
	defer func() {
		m.again.forget(m.writer, e)
		m.adapters.forget(m.writer, e)
	}()
	if len(m.orphans.byID) == 0 {
		unknown := m.writer.Drop(tier, e.Group, hashes)
		m.count(tier, unknown-len(hashes))
		m.stats.RemovedUnknown.Add(uint64(unknown))
		return
	}
	for i, hash := range hashes {
		if m.writer.Drop(tier, e.Group, hashes[i:i+1]) == 0 {
			m.count(tier, -1)
			continue
		}
		if o := m.orphans.byID[blockID{hash, int32(e.Group)}]; o != nil && o.copies[tier] > 0 {
			if o.copies[tier]--; o.copies == [kvblock.NumTiers]uint16{} {
				m.orphans.remove(o)
			}
		} else {
			m.stats.RemovedUnknown.Add(1)
		}
	}
}

// clearEvent applies a Cleared event: everything goes, or one tier where the engine names it.
func (m *mirror) clearEvent(e *kvevent.Event) {
	m.stats.Cleared.Add(1)
	if e.Medium == "" {
		m.clear()
		m.stored = m.stored[:0]
		return
	}
	tier, ok := m.tier(e.Medium)
	if !ok {
		m.stats.UnknownMedium.Add(1)
		return
	}
	m.writer.ClearTier(tier)
	m.orphans.clear(tier)
}

// tier finds the tier that an engine's medium names.
func (m *mirror) tier(medium string) (kvblock.Tier, bool) { return TierOf(medium, m.feed.Keys.Media) }

// TierOf finds the tier that an engine's medium names. media has further lower-case words for tiers.
func TierOf(medium string, media map[string]kvblock.Tier) (kvblock.Tier, bool) {
	switch medium {
	case "", "GPU":
		return kvblock.GPU, true
	case "CPU":
		return kvblock.CPU, true
	}
	medium = strings.ToLower(medium)
	if tier, ok := media[medium]; ok {
		return tier, int(tier) < kvblock.NumTiers
	}
	switch medium {
	case "gpu":
		return kvblock.GPU, true
	case "cpu", "cpu_pinned", "cpu_tier1":
		return kvblock.CPU, true
	case "fs", "disk":
		return kvblock.Disk, true
	case "obj", "external", "remote":
		return kvblock.Remote, true
	}
	return 0, false
}
