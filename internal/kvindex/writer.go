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
	shadow   *life                 // of a shadow, nil once it is spent
	gone     func(key kvblock.Key) // nil for nobody
}

// OnGone implements Writer.
func (w *writer) OnGone(f func(key kvblock.Key)) { w.gone = f }

func (w *writer) life() *life {
	if w.isShadow {
		return w.shadow
	}
	return w.ix.lifeOf(w.holder)
}

// lock finds the life to write to and locks it; nil if there is none.
func (w *writer) lock() *life {
	l := w.life()
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
	i, ok := l.rev.find(hash, group)
	if !ok {
		return 0, false
	}
	return l.keyOf(w.ix, &l.rev.entries[i]), true
}

// Len implements Writer.
func (w *writer) Len() int {
	l := w.lock()
	if l == nil {
		return 0
	}
	defer l.mu.Unlock()
	return l.rev.n
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
	return Digest{}
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
	old := w.life()
	if old == nil {
		return
	}
	l := ix.newLife(w.holder)
	if w.isShadow {
		w.shadow = l
	} else {
		ix.setLife(w.holder, l, false)
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
		b.dropAt(i) // another entry may take its place, so i is looked at again
	}
	b.end()
}

// Shadow implements Writer.
func (w *writer) Shadow() Writer {
	ix := w.ix
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return &writer{ix: ix, holder: w.holder, isShadow: true, shadow: ix.newLife(w.holder)}
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
	if old := ix.lifeOf(w.holder); old != nil {
		ix.setLife(w.holder, l, len(l.strays) > 0)
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
