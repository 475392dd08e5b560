package picker

import (
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// removals remembers when an endpoint's blocks were last taken out of the index, so that a prediction which eviction
// has made false is not held against anybody. Keys share slots: what it says of a key may be another's, so it may tell
// of a removal that was none, never the reverse. It is safe for concurrent use.
type removals struct {
	since time.Time     // tick 1
	all   atomic.Uint32 // when everything was
	// perHash is how many keys the engine's blocks have, at most.
	perHash atomic.Uint32
	slots   atomic.Pointer[[removalSlots]atomic.Uint32] // nil until the first removal
}

const (
	// removalSlots takes 32 KiB for each endpoint that removes blocks.
	removalSlots = 8192
	// removalTick is how exact the times are; 32 bits of them last for 30 years.
	removalTick = 250 * time.Millisecond
)

func (r *removals) tick(at time.Time) uint32 { return uint32(max(0, at.Sub(r.since)/removalTick)) + 1 } //nolint:gosec // see removalTick

func (r *removals) note(key kvblock.Key, at uint32) {
	slots := r.slots.Load()
	if slots == nil {
		r.slots.CompareAndSwap(nil, new([removalSlots]atomic.Uint32))
		slots = r.slots.Load()
	}
	slots[uint64(key)%removalSlots].Store(at)
}

// happened tells whether a block may have been removed at a time or later.
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
	if n := uint32(len(keys) / max(1, len(hashes))); n > w.of.removals.perHash.Load() { //nolint:gosec // a block's keys are few
		w.of.removals.perHash.Store(n)
	}
	w.of.stored.Add(uint64(len(keys)))
	return w.Writer.Store(tier, group, parent, hashes, keys)
}

// Drop is kvindex.Writer's.
func (w *watchedWriter) Drop(tier kvblock.Tier, group int, hashes []kvevent.Hash) int {
	w.at = w.of.removals.tick(w.now())
	return w.Writer.Drop(tier, group, hashes)
}

// Clear is kvindex.Writer's. What was routed there is gone too.
func (w *watchedWriter) Clear() {
	w.noteAll()
	w.of.routed.clear()
	w.Writer.Clear()
}

// ClearTier is kvindex.Writer's.
func (w *watchedWriter) ClearTier(tier kvblock.Tier) {
	w.noteAll()
	w.Writer.ClearTier(tier)
}

// Shadow is kvindex.Writer's. What is removed from a shadow nobody has seen.
func (w *watchedWriter) Shadow() kvindex.Writer { return &watchedShadow{w.Writer.Shadow(), w} }

// watchedShadow notes that it replaces everything.
type watchedShadow struct {
	kvindex.Writer
	of *watchedWriter
}

// Commit is kvindex.Writer's.
func (s *watchedShadow) Commit() {
	s.of.noteAll()
	s.Writer.Commit()
}
