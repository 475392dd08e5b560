package kvindex

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// writer is the Writer of an Index.
type writer struct {
	ix       *Index
	holder   Holder
	isShadow bool
	shadow   *generation           // of a shadow, nil once it is spent
	gone     func(key kvblock.Key) // nil for no holder
}

// OnGone implements Writer.
func (w *writer) OnGone(f func(key kvblock.Key)) { w.gone = f }

func (w *writer) generation() *generation {
	if w.isShadow {
		return w.shadow
	}
	return w.ix.generationOf(w.holder)
}

// lock finds the generation to write to and locks it; nil if there is none.
func (w *writer) lock() *generation {
	l := w.generation()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	return l
}

// Store implements Writer.
func (w *writer) Store(tier kvblock.Tier, group int, parent Parent, hashes []kvevent.Hash, keys []kvblock.Key) (refused int) {
	perHash, usable := chainOf(tier, group, hashes, keys)
	l := w.lock()
	if l == nil {
		return 0
	}
	if usable > 0 {
		if perHash > l.full {
			l.full = perHash
			l.windows.Load().stored(perHash)
		}
		names, keys := hashes[:usable], keys[:usable*perHash]
		if perHash > 1 {
			names = l.split(names, perHash)
		}
		b := l.begin(w.ix, tier, group)
		refused = (b.store(parent, names, keys) + perHash - 1) / perHash
		b.end()
	}
	l.mu.Unlock()
	w.ix.balance()
	return refused + len(hashes) - usable
}

// Copy implements Writer.
func (w *writer) Copy(tier kvblock.Tier, group int, hashes []kvevent.Hash) (unknown int) {
	return w.each(tier, group, hashes, false)
}

// Drop implements Writer.
func (w *writer) Drop(tier kvblock.Tier, group int, hashes []kvevent.Hash) (unknown int) {
	return w.each(tier, group, hashes, true)
}

// each counts one copy less of some blocks, or one more, earlier keys of the block included.
func (w *writer) each(tier kvblock.Tier, group int, hashes []kvevent.Hash, less bool) (unknown int) {
	l := w.lock()
	if l == nil || !indexable(tier, group) {
		if l != nil {
			l.mu.Unlock()
		}
		return len(hashes)
	}
	if ws := l.windows.Load(); ws != nil {
		if g := ws.find(group); g != nil {
			unknown = ws.count(g, tier, hashes, less, w.gone)
			l.mu.Unlock()
			return unknown
		}
	}
	b := l.begin(w.ix, tier, group)
	b.gone = w.gone
	l.rev.touch(hashes, group)
	for _, hash := range hashes {
		if !b.count(hash, less) {
			unknown++
		}
		for i := 1; i < l.perHash; i++ {
			b.count(leading(hash, i), less)
		}
	}
	b.end()
	l.mu.Unlock()
	w.ix.balance()
	return unknown
}

// Key implements Writer.
func (w *writer) Key(group int, hash kvevent.Hash) (kvblock.Key, bool) {
	if group < 0 || group > MaxGroup {
		return 0, false
	}
	l := w.lock()
	if l == nil {
		return 0, false
	}
	defer l.mu.Unlock()
	if g := l.windows.Load().find(group); g != nil {
		b, ok := g.blocks[hash]
		return b.key, ok
	}
	i, ok := l.rev.find(hash, group)
	if !ok {
		return 0, false
	}
	return l.keyOf(w.ix, &l.rev.entries[i]), true
}

// Copies implements Writer.
func (w *writer) Copies(tier kvblock.Tier, group int, hash kvevent.Hash) int {
	if !indexable(tier, group) {
		return 0
	}
	l := w.lock()
	if l == nil {
		return 0
	}
	defer l.mu.Unlock()
	if g := l.windows.Load().find(group); g != nil {
		return int(g.blocks[hash].copies[tier])
	}
	i, ok := l.rev.find(hash, group)
	if !ok {
		return 0
	}
	return int(l.rev.entries[i].count(tier)) + int(l.more[copyName{name{hash, group}, tier}])
}

// Followed implements Writer. A block follows another one in its run, or heads a run of its own, which knows its parent.
func (w *writer) Followed(tier kvblock.Tier, group int, hash kvevent.Hash) bool {
	if !indexable(tier, group) {
		return false
	}
	l := w.lock()
	if l == nil {
		return false
	}
	defer l.mu.Unlock()
	i, ok := l.rev.find(hash, group)
	if !ok || l.windows.Load().find(group) != nil {
		return false
	}
	for id, s := range l.orphans {
		if s.parent == (name{hash, group}) {
			if j, ok := l.rev.find(id.hash, id.group); ok && l.rev.entries[j].count(tier) > 0 {
				return true
			}
		}
	}
	at := l.rev.entries[i].at
	if at <= pendingSpot {
		return false
	}
	key := w.ix.keyAt(at)
	for i := range l.rev.entries {
		e := &l.rev.entries[i]
		switch {
		case e.vacant() || e.group() != group || e.count(tier) == 0 || e.at <= pendingSpot:
		case e.at.offset() > 0:
			if e.at == at+1 {
				return true
			}
		default:
			if r := w.ix.runs.get(e.at.run()); r != nil && r.parent == key {
				return true
			}
		}
	}
	return false
}

// Len implements Writer.
func (w *writer) Len() int {
	l := w.lock()
	if l == nil {
		return 0
	}
	defer l.mu.Unlock()
	return l.rev.n + l.windows.Load().len()
}

// Each implements Writer.
func (w *writer) Each(f func(Block) bool) {
	l := w.lock()
	if l == nil {
		return
	}
	defer l.mu.Unlock()
	for i := range l.rev.entries {
		e := &l.rev.entries[i]
		if e.vacant() {
			continue
		}
		b := Block{Hash: e.hash, Group: e.group(), Key: l.keyOf(w.ix, e)}
		for tier := range b.Copies {
			at := copyName{name{e.hash, e.group()}, kvblock.Tier(tier)}
			b.Copies[tier] = int(e.count(at.tier)) + int(l.more[at])
		}
		if !f(b) {
			return
		}
	}
	l.windows.Load().each(f)
}

// Digest implements Writer.
func (w *writer) Digest(tier kvblock.Tier, group int) Digest {
	l := w.lock()
	if l == nil {
		return Digest{}
	}
	defer l.mu.Unlock()
	if d := l.digests[digestKey{tier, group}]; d != nil {
		return *d
	}
	return l.windows.Load().digest(tier, group)
}

// Evicted implements Writer.
func (w *writer) Evicted() int {
	l := w.lock()
	if l == nil {
		return 0
	}
	defer l.mu.Unlock()
	return l.evicted
}

// Clear implements Writer.
func (w *writer) Clear() {
	ix := w.ix
	ix.mu.Lock()
	defer ix.mu.Unlock()
	old := w.generation()
	if old == nil {
		return
	}
	l := ix.newGeneration(w.holder)
	if w.isShadow {
		w.shadow = l
	} else {
		ix.setGeneration(w.holder, l)
	}
	ix.retire(old)
}

// ClearTier implements Writer.
func (w *writer) ClearTier(tier kvblock.Tier) {
	l := w.lock()
	if l == nil {
		return
	}
	defer l.mu.Unlock()
	if int(tier) >= kvblock.NumTiers {
		return
	}
	b := l.begin(w.ix, tier, 0)
	for i := 0; i < len(l.rev.entries); {
		e := &l.rev.entries[i]
		if e.vacant() || e.count(tier) == 0 {
			i++
			continue
		}
		if b.group != e.group() {
			b.group, b.digest = e.group(), nil
		}
		delete(l.more, copyName{name{e.hash, b.group}, tier})
		e.info -= (e.count(tier) - 1) << countShift[tier]
		b.dropAt(i) // another entry might take its place, so i is looked at again
	}
	b.end()
	if ws := l.windows.Load(); ws != nil {
		ws.clearTier(tier)
	}
}

// Shadow implements Writer.
func (w *writer) Shadow() Writer {
	ix := w.ix
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return &writer{ix: ix, holder: w.holder, isShadow: true, shadow: ix.newGeneration(w.holder)}
}

// Commit implements Writer.
func (w *writer) Commit() {
	l := w.shadow
	if l == nil {
		return
	}
	w.shadow = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	ix := w.ix
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if old := ix.generationOf(w.holder); old != nil {
		ix.setGeneration(w.holder, l)
		ix.retire(old)
	} else {
		ix.retire(l)
	}
}

// Discard implements Writer.
func (w *writer) Discard() {
	if w.shadow == nil {
		return
	}
	w.ix.mu.Lock()
	defer w.ix.mu.Unlock()
	w.ix.retire(w.shadow)
	w.shadow = nil
}
