package kvindex

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// plainWriter is the Writer of a Table.
type plainWriter struct {
	table    *Table
	holder   Holder
	isShadow bool
	slot     slot // 0 for a shadow that is spent
	blocks   map[name]*plainBlock
	n        int // keys in blocks
	full     int // the most keys of a block
	digests  map[digestKey]*Digest
	gone     func(key kvblock.Key) // nil for no holder
}

// OnGone implements Writer.
func (w *plainWriter) OnGone(f func(key kvblock.Key)) { w.gone = f }

// plainBlock is a block as its engine names it.
type plainBlock struct {
	keys   []kvblock.Key
	parent kvblock.Key // as an event names it, in a book whose names are keys
	after  kvblock.Key // the parent's, 0 if it was not known
	under  *name       // the parent of an event's first block, nil without one
	copies [kvblock.NumTiers]int
}

// Writer implements Book.
func (t *Table) Writer(h Holder) Writer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	w := &plainWriter{table: t, holder: h, slot: t.live[h]}
	w.forget()
	return w
}

func (w *plainWriter) forget() {
	w.blocks, w.n, w.full = map[name]*plainBlock{}, 0, 0
	w.digests = map[digestKey]*Digest{}
}

// ready reports whether there is a generation to write to. A holder might have left, been cleared from elsewhere, or have a
// shadow's generation now.
func (w *plainWriter) ready() bool {
	if w.isShadow {
		return w.slot != 0
	}
	t := w.table
	t.mu.Lock()
	defer t.mu.Unlock()
	now, ok := t.live[w.holder]
	if ok && now != w.slot {
		w.slot = now
		w.forget()
		if shadow := t.committed[w.holder]; shadow != nil && shadow.generation == now {
			w.blocks, w.n, w.full, w.digests = shadow.blocks, shadow.n, shadow.full, shadow.digests
		}
	}
	delete(t.committed, w.holder)
	return ok
}

// Store implements Writer.
func (w *plainWriter) Store(tier kvblock.Tier, group int, parent Parent, hashes []kvevent.Hash, keys []kvblock.Key) (refused int) {
	if !w.ready() {
		return 0
	}
	perHash, usable := chainOf(tier, group, hashes, keys)
	if usable > 0 {
		w.full = max(w.full, perHash)
		w.windows().stored(w.full)
	}
	for i, hash := range hashes[:usable] {
		at := name{hash, group}
		if w.blocks[at] == nil {
			b := &plainBlock{keys: append([]kvblock.Key(nil), keys[i*perHash:(i+1)*perHash]...)}
			if i > 0 {
				b.parent, b.after = keys[i*perHash-1], keys[i*perHash-1]
			} else if parent.OK {
				b.parent, b.under = kvblock.Key(parent.Hash), &name{parent.Hash, group}
				b.after, _ = w.Key(group, parent.Hash)
			}
			w.blocks[at] = b
			w.n += perHash
		}
		w.count(at, tier, 1)
	}
	return len(hashes) - usable
}

// Copy implements Writer.
func (w *plainWriter) Copy(tier kvblock.Tier, group int, hashes []kvevent.Hash) (unknown int) {
	if ws := w.windows(); ws.find(group) != nil && indexable(tier, group) {
		return ws.count(ws.find(group), tier, hashes, false, nil)
	}
	ready := w.ready() && indexable(tier, group)
	for _, hash := range hashes {
		if at := (name{hash, group}); ready && w.blocks[at] != nil {
			w.count(at, tier, 1)
		} else {
			unknown++
		}
	}
	return unknown
}

// Drop implements Writer.
func (w *plainWriter) Drop(tier kvblock.Tier, group int, hashes []kvevent.Hash) (unknown int) {
	if ws := w.windows(); ws.find(group) != nil && indexable(tier, group) {
		return ws.count(ws.find(group), tier, hashes, true, w.gone)
	}
	ready := w.ready() && indexable(tier, group)
	for _, hash := range hashes {
		at := name{hash, group}
		if b := w.blocks[at]; ready && b != nil && b.copies[tier] > 0 {
			w.count(at, tier, -1)
			if w.gone != nil && b.copies[tier] == 0 {
				for _, key := range b.keys {
					w.gone(key)
				}
			}
		} else {
			unknown++
		}
	}
	return unknown
}

// count changes the copies of a block, and notifies the table of the first and the last in a tier.
func (w *plainWriter) count(at name, tier kvblock.Tier, delta int) {
	b := w.blocks[at]
	had := b.copies[tier] > 0
	b.copies[tier] += delta
	has := b.copies[tier] > 0
	if had == has {
		return
	}
	digest := w.digests[digestKey{tier, at.group}]
	if digest == nil {
		digest = &Digest{}
		w.digests[digestKey{tier, at.group}] = digest
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	for _, key := range b.keys {
		if has {
			digest.Add(key)
			w.table.storeAt(w.slot, tier, key)
		} else {
			digest.Remove(key)
			w.table.dropAt(w.slot, tier, key)
		}
	}
	if b.copies == [kvblock.NumTiers]int{} {
		delete(w.blocks, at)
		w.n -= len(b.keys)
	}
}

// Key implements Writer.
func (w *plainWriter) Key(group int, hash kvevent.Hash) (kvblock.Key, bool) {
	if g := w.windows().find(group); g != nil {
		b, ok := g.blocks[hash]
		return b.key, ok
	}
	if b := w.blocks[name{hash, group}]; w.ready() && b != nil {
		return b.keys[len(b.keys)-1], true
	}
	return 0, false
}

// Copies implements Writer.
func (w *plainWriter) Copies(tier kvblock.Tier, group int, hash kvevent.Hash) int {
	if !indexable(tier, group) || !w.ready() {
		return 0
	}
	if g := w.windows().find(group); g != nil {
		return int(g.blocks[hash].copies[tier])
	}
	if b := w.blocks[name{hash, group}]; b != nil {
		return b.copies[tier]
	}
	return 0
}

// Followed implements Writer.
func (w *plainWriter) Followed(tier kvblock.Tier, group int, hash kvevent.Hash) bool {
	before, ok := w.Key(group, hash)
	if !ok || w.windows().find(group) != nil {
		return false
	}
	for at, b := range w.blocks {
		if at.group == group && b.copies[tier] > 0 && (b.after == before || b.under != nil && *b.under == name{hash, group}) {
			return true
		}
	}
	return false
}

// Len implements Writer.
func (w *plainWriter) Len() int {
	if !w.ready() {
		return 0
	}
	return w.n + w.windows().len()
}

// Each implements Writer.
func (w *plainWriter) Each(f func(Block) bool) {
	if !w.ready() {
		return
	}
	for at, b := range w.blocks {
		for i, key := range b.keys {
			hash := at.hash
			if back := len(b.keys) - 1 - i; back > 0 {
				hash = leading(hash, back)
			}
			if !f(Block{Hash: hash, Group: at.group, Key: key, Copies: b.copies}) {
				return
			}
		}
	}
	w.windows().each(f)
}

// Digest implements Writer.
func (w *plainWriter) Digest(tier kvblock.Tier, group int) Digest {
	if d := w.digests[digestKey{tier, group}]; w.ready() && d != nil {
		return *d
	}
	return w.windows().digest(tier, group)
}

// Evicted implements Writer: a table has no budget.
func (w *plainWriter) Evicted() int { return 0 }

// Clear implements Writer.
func (w *plainWriter) Clear() {
	switch {
	case !w.ready():
	case w.isShadow:
		old := w.slot
		w.slot = w.table.shadow()
		w.forget()
		w.table.sweep(old)
	default:
		w.table.Clear(w.holder)
		w.ready()
	}
}

// ClearTier implements Writer.
func (w *plainWriter) ClearTier(tier kvblock.Tier) {
	if !w.ready() || int(tier) >= kvblock.NumTiers {
		return
	}
	for at, b := range w.blocks {
		w.count(at, tier, -b.copies[tier])
	}
	if ws := w.windows(); ws != nil {
		ws.clearTier(tier)
	}
}

// Shadow implements Writer.
func (w *plainWriter) Shadow() Writer {
	s := &plainWriter{table: w.table, holder: w.holder, isShadow: true, slot: w.table.shadow()}
	s.forget()
	return s
}

// Commit implements Writer.
func (w *plainWriter) Commit() {
	if w.isShadow && w.slot != 0 {
		w.table.commit(w.holder, &shadowGeneration{generation: w.slot, blocks: w.blocks, n: w.n, full: w.full, digests: w.digests})
		w.slot = 0
		w.forget()
	}
}

// Discard implements Writer.
func (w *plainWriter) Discard() {
	if w.isShadow && w.slot != 0 {
		w.table.sweep(w.slot)
		w.slot = 0
		w.forget()
	}
}

// shadowGeneration is what a holder's writer takes over from a shadow that was committed.
type shadowGeneration struct {
	generation slot
	blocks     map[name]*plainBlock
	n, full    int
	digests    map[digestKey]*Digest
}

// shadow begins a generation that no holder has.
func (t *Table) shadow() slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.freshSlot()
}

// commit makes a shadow's generation the holder's, or ends it if the holder has left.
func (t *Table) commit(h Holder, shadow *shadowGeneration) {
	t.mu.Lock()
	old, ok := t.live[h]
	if ok {
		t.live[h] = shadow.generation
		t.committed[h] = shadow
	} else {
		old = shadow.generation
	}
	t.mu.Unlock()
	t.sweep(old)
}
