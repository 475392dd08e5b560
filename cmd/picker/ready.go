package main

import (
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/ingest"
)

const (
	// readyWait is how long the picker waits for the event streams before it is ready all the same.
	readyWait = 5 * time.Second
	// readyShare of the streams suffices.
	readyShare = 0.95
)

// readiness tells whether requests may come: the first state is applied, the index knows what nearly all endpoints
// hold, and the other replicas' counters are known; or there was time to learn all that. Once ready, the picker stays so
// until it drains.
type readiness struct {
	now func() time.Time
	// states of the event streams of the endpoints that can be picked; heard tells whether the peers are.
	states func() []ingest.State
	heard  func() bool

	mu       sync.Mutex
	since    time.Time // of the first state applied
	ready    bool
	draining bool
}

// apply tells that a state is in force.
func (r *readiness) apply() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = r.now()
	}
}

// drain tells that no more requests should come.
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
	case r.since.IsZero():
		return "no objects applied yet"
	case !r.ready:
		switch {
		case r.now().Sub(r.since) >= readyWait:
		case !settled(r.states()):
			return "event streams are being synchronised"
		case !r.heard():
			return "other replicas have not been heard yet"
		}
		r.ready = true
	}
	return ""
}

// settled tells whether nearly all streams have caught up, as far as they can.
func settled(states []ingest.State) bool {
	n := 0
	for _, s := range states {
		if s != ingest.Disconnected && s != ingest.Syncing {
			n++
		}
	}
	return float64(n) >= readyShare*float64(len(states))
}
