package dashboard

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/monotonic"
)

const (
	// ringSize is how many decisions are kept.
	ringSize = api.MaxDecisions
	// watchedPause is the mean time between two recorded decisions while a client follows, and restPause otherwise; burst
	// of them can be recorded at once.
	watchedPause, restPause = 5 * time.Millisecond, 500 * time.Millisecond
	burst                   = 32
	// maxFollowers bounds the followers; behind is how many decisions a follower can lag before some are left out.
	maxFollowers, behind = 16, 256
)

// Ring keeps the last decisions. It implements picker.Recorder, and is safe for concurrent use.
type Ring struct {
	passed    atomic.Int64 // decisions since the last one that was taken down
	due       atomic.Int64 // when the recorded decisions would end if they were evenly spaced, of the monotonic clock
	following atomic.Int32 // len(followers), to be read without the lock

	mu        sync.Mutex // guards what follows
	decisions [ringSize]api.Decision
	last      uint64 // ID of the latest one, 0 for none
	followers map[*Follower]struct{}
}

// Follower gets decisions as they are made, and again when their requests end. A follower that is too slow misses some.
type Follower struct {
	C    chan api.Decision
	ring *Ring
}

// NewRing returns an empty ring.
func NewRing() *Ring { return &Ring{followers: map[*Follower]struct{}{}} }

// Wants implements picker.Recorder: a limited rate with short bursts, higher while a client follows.
func (r *Ring) Wants(now time.Time) (passed int64, ok bool) {
	n := r.passed.Add(1)
	pause := int64(restPause)
	if r.following.Load() > 0 {
		pause = int64(watchedPause)
	}
	at, due := monotonic.Of(now), r.due.Load()
	free := max(due, at) // when the bucket would be empty
	if ahead := due - at; ahead > burst*int64(restPause) {
		free = at // it is of another clock
	} else if ahead > (burst-1)*pause {
		return 0, false
	}
	if !r.due.CompareAndSwap(due, free+pause) {
		return 0, false
	}
	r.passed.Add(-n)
	return n - 1, true
}

// Decided implements picker.Recorder.
func (r *Ring) Decided(d api.Decision) (id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	d.ID = r.last
	r.decisions[d.ID%ringSize] = d
	r.publish(d)
	return d.ID
}

// Ended implements picker.Recorder.
func (r *Ring) Ended(d api.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := &r.decisions[d.ID%ringSize]; at.ID == d.ID {
		*at = d
	}
	r.publish(d)
}

// publish sends a decision to all followers. r.mu is held.
func (r *Ring) publish(d api.Decision) {
	for f := range r.followers {
		select {
		case f.C <- d:
		default:
		}
	}
}

// Last are the last n decisions, oldest first; only those whose requests have ended, if that is asked.
func (r *Ring) Last(n int, ended bool) []api.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastOf(n, ended)
}

// lastOf is Last. r.mu is held.
func (r *Ring) lastOf(n int, ended bool) []api.Decision {
	out := make([]api.Decision, 0, min(n, ringSize))
	for id := r.last; id > 0 && id+ringSize > r.last && len(out) < n; id-- {
		if d := &r.decisions[id%ringSize]; !ended || d.Outcome != "" {
			out = append(out, *d)
		}
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// Follow returns the last n decisions and a follower for all later ones, without a gap; nil when there are too many
// followers. The follower must be closed.
func (r *Ring) Follow(n int, ended bool) ([]api.Decision, *Follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.followers) >= maxFollowers {
		return nil, nil
	}
	f := &Follower{C: make(chan api.Decision, behind), ring: r}
	r.followers[f] = struct{}{}
	r.following.Store(int32(len(r.followers)))
	r.due.Store(0) // a new follower sees decisions at once
	return r.lastOf(n, ended), f
}

// Close ends it. C gets no more.
func (f *Follower) Close() {
	f.ring.mu.Lock()
	defer f.ring.mu.Unlock()
	delete(f.ring.followers, f)
	f.ring.following.Store(int32(len(f.ring.followers)))
}
