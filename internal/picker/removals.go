package picker

import (
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// removals remembers when an endpoint's blocks were last removed from the index, so that a prediction that failed because
// of an eviction does not count against the endpoint. Keys share slots, so a removal can be reported for a key that was not
// removed, but no removal is missed. It is safe for concurrent use.
type removals struct {
	since time.Time                                   // tick 1
	all   atomic.Uint32                               // when everything was
	slots atomic.Pointer[[removalSlots]atomic.Uint32] // nil until the first removal
}

const (
	// removalSlots takes 32 KiB for each endpoint that removes blocks.
	removalSlots = 8192
	// removalTick is how exact the times are; 32 bits of them last for 30 years.
	removalTick = 250 * time.Millisecond
)

func (r *removals) tick(at time.Time) uint32 { return uint32(max(0, at.Sub(r.since)/removalTick)) + 1 } // see removalTick

func (r *removals) note(key kvblock.Key, at uint32) {
	slots := r.slots.Load()
	if slots == nil {
		r.slots.CompareAndSwap(nil, new([removalSlots]atomic.Uint32))
		slots = r.slots.Load()
	}
	slots[uint64(key)%removalSlots].Store(at)
}

// clearedSince reports whether everything might have been removed at a time or later.
func (r *removals) clearedSince(from time.Time) bool { return r.all.Load() >= r.tick(from) }

// happened reports whether a block might have been removed at a time or later.
func (r *removals) happened(key kvblock.Key, from time.Time) bool {
	at := r.tick(from)
	if r.all.Load() >= at {
		return true
	}
	slots := r.slots.Load()
	return slots != nil && slots[uint64(key)%removalSlots].Load() >= at
}

// watchedWriter notes what is removed through it, and counts what is stored.
type watchedWriter struct {
	kvindex.Writer
	of  *member
	now timeNow
	at  uint32 // the time of the Drop under way
}

func newWatchedWriter(w kvindex.Writer, of *member, now timeNow) *watchedWriter {
	watched := &watchedWriter{Writer: w, of: of, now: now}
	w.OnGone(func(key kvblock.Key) {
		of.tally.evictions.Add(1)
		of.removals.note(key, watched.at)
	})
	return watched
}

func (w *watchedWriter) noteAll() { w.of.removals.all.Store(w.of.removals.tick(w.now())) }

// Store is kvindex.Writer's.
func (w *watchedWriter) Store(tier kvblock.Tier, group int, parent kvindex.Parent, hashes []kvevent.Hash, keys []kvblock.Key) int {
	if w.of.sleep.storing() {
		w.ClearTier(kvblock.GPU)
	}
	w.of.grain.announce(len(keys) / max(1, len(hashes)))
	w.of.noteReloads(keys, w.of.stored.Add(uint64(len(keys))))
	return w.Writer.Store(tier, group, parent, hashes, keys)
}

// StoreWindow is kvindex.Writer's.
func (w *watchedWriter) StoreWindow(tier kvblock.Tier, group int, rule kvindex.Window, hashes []kvevent.Hash, keys []kvblock.Key) int {
	w.of.grain.announce(rule.Keys)
	w.of.noteReloads(keys, w.of.stored.Load()+1)
	return w.Writer.StoreWindow(tier, group, rule, hashes, keys)
}

// Drop is kvindex.Writer's.
func (w *watchedWriter) Drop(tier kvblock.Tier, group int, hashes []kvevent.Hash) int {
	w.at = w.of.removals.tick(w.now())
	return w.Writer.Drop(tier, group, hashes)
}

// Clear is kvindex.Writer's. Earlier routes are forgotten too, but not as the picker begins to follow the endpoint: other pickers have
// seen more of the engine's life, and what they remember can be there already.
func (w *watchedWriter) Clear() {
	if w.of.followed.Swap(true) || w.of.stored.Load() > 0 {
		w.of.routed.clear()
	}
	w.noteAll()
	w.of.grain.forget()
	w.of.tail.forget()
	w.of.reloads.clear()
	w.Writer.Clear()
	w.of.sleep.cleared()
}

// ClearTier is kvindex.Writer's.
func (w *watchedWriter) ClearTier(tier kvblock.Tier) {
	w.noteAll()
	w.Writer.ClearTier(tier)
	if tier == kvblock.GPU {
		w.of.sleep.cleared()
	}
}

// Shadow is kvindex.Writer's. Removals from a shadow are not visible to requests.
func (w *watchedWriter) Shadow() kvindex.Writer { return &watchedShadow{w.Writer.Shadow(), w} }

// watchedShadow notes that it replaces everything.
type watchedShadow struct {
	kvindex.Writer
	of *watchedWriter
}

// Store is kvindex.Writer's.
func (s *watchedShadow) Store(tier kvblock.Tier, group int, parent kvindex.Parent, hashes []kvevent.Hash, keys []kvblock.Key) int {
	s.of.of.grain.announce(len(keys) / max(1, len(hashes)))
	return s.Writer.Store(tier, group, parent, hashes, keys)
}

// StoreWindow is kvindex.Writer's.
func (s *watchedShadow) StoreWindow(tier kvblock.Tier, group int, rule kvindex.Window, hashes []kvevent.Hash, keys []kvblock.Key) int {
	s.of.of.grain.announce(rule.Keys)
	return s.Writer.StoreWindow(tier, group, rule, hashes, keys)
}

// Commit is kvindex.Writer's.
func (s *watchedShadow) Commit() {
	s.of.noteAll()
	s.Writer.Commit()
}
