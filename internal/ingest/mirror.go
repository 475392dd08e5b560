package ingest

import (
	"math"
	"slices"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// blockID is how an engine names a block, within one endpoint and life.
type blockID struct {
	hash  kvevent.Hash
	group int32
}

// block is one that the engine holds: its key, and how many copies lie in each tier.
type block struct {
	key    kvblock.Key // of the last of our blocks in it
	copies [kvblock.NumTiers]uint16
}

func (b *block) gone() bool { return b.copies == [kvblock.NumTiers]uint16{} }

// mirror is what one endpoint holds in one life, by the engine's names. It exists because engines name blocks by
// hashes of their own in removals and as parents. It is for one goroutine.
//
// An engine's block may be several of ours: it then has as many keys. Known limits: engine blocks smaller than ours
// are not joined, multimodal items are not told apart inside a block that is several of ours, and of several groups of
// full attention one suffices for a block to count.
type mirror struct {
	feed    *Feed
	stats   *Stats
	max     int
	blocks  map[blockID]block // no pointers inside: the collector does not walk it
	leading map[blockID][]kvblock.Key
	orphans orphanage
	// stored collects the keys for Feed.OnStored, work the orphans whose parent has come.
	stored []kvblock.Key
	work   []*orphan

	lastRoot struct {
		model, salt string
		key         kvblock.Key
	}
}

func newMirror(feed *Feed, c *Config, stats *Stats) *mirror {
	m := &mirror{feed: feed, stats: stats, max: c.MaxBlocks}
	m.orphans.maxCount, m.orphans.maxBytes, m.orphans.stats = c.MaxOrphans, c.MaxOrphanBytes, stats
	m.reset()
	return m
}

// Begin implements Sink.
func (m *mirror) Begin(bool) { m.clear() }

// Apply implements Sink.
func (m *mirror) Apply(b *kvevent.Batch, _ Position) { m.apply(b) }

// Mark implements Sink.
func (m *mirror) Mark(Position, State) {}

// clear begins a new life: nothing is held.
func (m *mirror) clear() {
	m.feed.Index.Clear(m.feed.Holder)
	m.reset()
}

func (m *mirror) reset() {
	m.blocks = map[blockID]block{}
	m.leading = map[blockID][]kvblock.Key{}
	m.orphans.reset()
	m.gauge()
}

func (m *mirror) gauge() {
	m.stats.Blocks.Store(int64(len(m.blocks)))
	m.stats.Orphans.Store(int64(len(m.orphans.byID)))
	m.stats.OrphanBytes.Store(int64(m.orphans.bytes))
}

// apply makes the changes of a batch, in its order.
func (m *mirror) apply(b *kvevent.Batch) {
	m.stats.Batches.Add(1)
	m.stats.Events.Add(uint64(len(b.Events)))
	m.stats.Skipped.Add(uint64(b.Skipped))
	m.stored = m.stored[:0]
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case kvevent.Stored:
			m.store(e)
		case kvevent.Removed:
			m.remove(e)
		case kvevent.Cleared:
			m.clearEvent(e)
		}
	}
	m.gauge()
	if len(m.stored) > 0 && m.feed.OnStored != nil {
		m.feed.OnStored(m.stored)
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
	case e.BlockSize <= 0 || len(e.Tokens) != len(e.Hashes)*e.BlockSize:
		m.stats.Misaligned.Add(n)
	case m.feed.Keys.BlockTokens <= 0 || e.BlockSize%m.feed.Keys.BlockTokens != 0:
		m.stats.BlockSizeUnsupported.Add(n)
	default:
		m.storeChain(e, tier)
	}
}

// storeByHash counts copies of blocks that are known already, where an event says too little to key new ones: an
// engine that offloads a block announces it by hash alone.
func (m *mirror) storeByHash(e *kvevent.Event, tier kvblock.Tier) {
	for _, hash := range e.Hashes {
		id := blockID{hash, int32(e.Group)}
		if !m.another(id, tier) {
			m.stats.Unkeyed.Add(1)
		}
	}
}

// another counts one more copy of a known block or orphan.
func (m *mirror) another(id blockID, tier kvblock.Tier) bool {
	if b, ok := m.blocks[id]; ok {
		m.add(id, b, tier)
		return true
	}
	if o := m.orphans.byID[id]; o != nil {
		more(&o.copies[tier])
		return true
	}
	return false
}

// add counts one more copy of a block, and tells the index of the first in its tier.
func (m *mirror) add(id blockID, b block, tier kvblock.Tier) {
	if b.copies[tier] == 0 {
		m.tell(id, b.key, tier)
	}
	more(&b.copies[tier])
	m.blocks[id] = b
}

// tell stores all keys of a block in the index.
func (m *mirror) tell(id blockID, key kvblock.Key, tier kvblock.Tier) {
	for _, k := range m.leading[id] {
		m.feed.Index.Store(m.feed.Holder, tier, k)
		m.stored = append(m.stored, k)
	}
	m.feed.Index.Store(m.feed.Holder, tier, key)
	m.stored = append(m.stored, key)
}

// more counts up, and stops at the largest number: what is counted down from there is forgotten too early, never too
// late.
func more(n *uint16) {
	if *n < math.MaxUint16 {
		*n++
	}
}

// storeChain applies a Stored event with all its tokens.
func (m *mirror) storeChain(e *kvevent.Event, tier kvblock.Tier) {
	group := int32(e.Group)
	var parent blockID
	var parentKey kvblock.Key // 0 while unknown
	switch {
	case !e.HasParent || e.Parent == 0: // one simulator writes 0 for none
		parentKey = m.root(e.Adapter, e.Salt)
	default:
		parent = blockID{e.Parent, group}
		parentKey = m.blocks[parent].key
	}
	item := 0
	for i, hash := range e.Hashes {
		id := blockID{hash, group}
		tokens := e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]
		var extra uint64
		for ; item < len(e.Items) && e.Items[item].Block <= i; item++ {
			if e.Items[item].Block == i {
				extra = ItemExtra(extra, e.Items[item].Key, e.Items[item].Offset)
			}
		}
		if b, ok := m.blocks[id]; ok {
			m.add(id, b, tier)
			parentKey = b.key
		} else {
			parentKey = m.enter(id, parent, parentKey, tokens, extra, tier)
		}
		parent = id
	}
}

// root is the parent of a first block. It remembers the last one, since most are alike.
func (m *mirror) root(adapter, salt string) kvblock.Key {
	model := adapter
	if model == "" {
		model = m.feed.Keys.Model
	}
	if r := &m.lastRoot; r.key == 0 || r.model != model || r.salt != salt {
		r.model, r.salt, r.key = model, salt, m.feed.Keys.Seed.Root(model, salt)
	}
	return m.lastRoot.key
}

// enter takes a block that has no key yet, and returns its key, or 0 if its parent's is unknown too.
func (m *mirror) enter(id, parent blockID, parentKey kvblock.Key, tokens []uint32, extra uint64, tier kvblock.Tier) kvblock.Key {
	var copies [kvblock.NumTiers]uint16
	o := m.orphans.byID[id]
	if o != nil {
		copies = o.copies
	}
	more(&copies[tier])
	switch {
	case parentKey != 0:
		if o != nil {
			m.orphans.remove(o)
		}
		key := m.place(id, parentKey, tokens, extra, copies)
		m.graft()
		return key
	case o != nil:
		o.copies = copies
	default:
		m.orphans.add(&orphan{id: id, parent: parent, tokens: slices.Clone(tokens), extra: extra, copies: copies})
	}
	return 0
}

// place gives a block its key and puts it into the index. Orphans that waited for it become work. The key is 0 when
// there is no room.
func (m *mirror) place(id blockID, key kvblock.Key, tokens []uint32, extra uint64, copies [kvblock.NumTiers]uint16) kvblock.Key {
	if len(m.blocks) >= m.max {
		m.stats.Refused.Add(1)
		return 0
	}
	size := m.feed.Keys.BlockTokens
	var leading []kvblock.Key
	for at := 0; at < len(tokens); at += size {
		if at > 0 {
			leading = append(leading, key)
		}
		key = kvblock.Next(key, tokens[at:at+size:at+size], extra)
	}
	if leading != nil {
		m.leading[id] = leading
	}
	m.blocks[id] = block{key: key, copies: copies}
	for tier, n := range copies {
		if n > 0 {
			m.tell(id, key, kvblock.Tier(tier))
		}
	}
	m.work = m.orphans.release(id, m.work)
	return key
}

// graft places the orphans whose parents have come, and theirs in turn.
func (m *mirror) graft() {
	for len(m.work) > 0 {
		o := m.work[len(m.work)-1]
		m.work = m.work[:len(m.work)-1]
		m.place(o.id, m.blocks[o.parent].key, o.tokens, o.extra, o.copies)
	}
}

// remove applies a Removed event.
func (m *mirror) remove(e *kvevent.Event) {
	m.stats.Removed.Add(uint64(len(e.Hashes)))
	tier, ok := m.tier(e.Medium)
	if !ok {
		m.stats.UnknownMedium.Add(uint64(len(e.Hashes)))
		return
	}
	for _, hash := range e.Hashes {
		id := blockID{hash, int32(e.Group)}
		if b, ok := m.blocks[id]; ok && b.copies[tier] > 0 {
			b.copies[tier]--
			m.set(id, b, tier)
		} else if o := m.orphans.byID[id]; o != nil && o.copies[tier] > 0 {
			if o.copies[tier]--; o.copies == [kvblock.NumTiers]uint16{} {
				m.orphans.remove(o)
			}
		} else {
			m.stats.RemovedUnknown.Add(1)
		}
	}
}

// set keeps a block of which copies have gone from a tier, and tells the index when the last has.
func (m *mirror) set(id blockID, b block, tier kvblock.Tier) {
	if b.copies[tier] == 0 {
		for _, k := range m.leading[id] {
			m.feed.Index.Drop(m.feed.Holder, tier, k)
		}
		m.feed.Index.Drop(m.feed.Holder, tier, b.key)
	}
	if b.gone() {
		delete(m.blocks, id)
		delete(m.leading, id)
	} else {
		m.blocks[id] = b
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
	for id, b := range m.blocks {
		if b.copies[tier] > 0 {
			b.copies[tier] = 0
			m.set(id, b, tier)
		}
	}
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

// ItemExtra folds one multimodal item of a block into the extra of the block's key (see kvblock.Next). Items are
// folded in their order; the offset is the item's position relative to the block's start, in tokens.
func ItemExtra(extra uint64, key string, offset int64) uint64 {
	return kvblock.Digest(extra^uint64(offset), key)
}
