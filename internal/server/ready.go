package server

import (
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/events"
)

const (
	// readyWait is how long the picker waits for the event streams before it is ready all the same.
	readyWait = 5 * time.Second
	// readyShare of the streams suffices.
	readyShare = 0.95
)

// readiness reports whether the picker can receive requests: the first state is applied, the index knows the blocks of
// nearly all endpoints, and the other replicas' counters are known; or the time to learn all that is over. Once ready, the
// picker stays ready until it drains, except while its files define no pool that it can serve, no engine can be connected to, or
// its memory for requests is full.
type readiness struct {
	now func() time.Time
	// states of the event streams of the endpoints that can be picked; peersReceived reports whether updates of the peers have
	// arrived.
	states        func() []events.State
	peersReceived func() bool
	// full reports whether there is no room for what clients send; nil is never.
	full func() bool

	mu       sync.Mutex
	unserved string    // why no request can be served; empty if some can
	since    time.Time // of the first state applied
	ready    bool
	draining bool
}

// apply notes that a state is applied.
func (r *readiness) apply() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = r.now()
	}
}

// serve notes whether requests can be served at all: why is empty, or the reason why none can, such as that there is no pool.
// It reports whether that has changed.
func (r *readiness) serve(why string) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = r.unserved != why
	r.unserved = why
	return changed
}

// drain makes the picker not ready, so that no more requests are sent to it.
func (r *readiness) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
}

// status is empty when the picker is ready, else why it is not.
func (r *readiness) status() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.draining:
		return "draining"
	case r.unserved != "":
		return r.unserved
	case r.since.IsZero():
		return "no objects applied yet"
	case !r.ready:
		switch {
		case r.now().Sub(r.since) >= readyWait:
		case !settled(r.states()):
			return "event streams are being synchronised"
		case !r.peersReceived():
			return "waiting for updates of other replicas"
		}
		r.ready = true
	}
	if r.full != nil && r.full() {
		return "the memory for requests is full"
	}
	return ""
}

// settled reports whether nearly all streams have caught up, as far as they can.
func settled(states []events.State) bool {
	n := 0
	for _, s := range states {
		if s != events.Disconnected && s != events.Syncing {
			n++
		}
	}
	return float64(n) >= readyShare*float64(len(states))
}
