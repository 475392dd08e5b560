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

// readiness tells whether requests may come: the first state is applied, and the index knows what nearly all endpoints
// hold, or has had the time to learn it. Once ready, the picker stays so until it drains.
type readiness struct {
	streams *ingest.Manager

	mu       sync.Mutex
	since    time.Time // of the first state
	ready    bool
	draining bool
}

// apply tells that a state is in force.
func (r *readiness) apply() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = time.Now()
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
		r.ready = time.Since(r.since) >= readyWait || r.settled()
		if !r.ready {
			return "event streams are being synchronised"
		}
	}
	return ""
}

// settled tells whether nearly all streams have caught up, as far as they can.
func (r *readiness) settled() bool {
	all, settled := 0, 0
	for _, pool := range r.streams.Pools() {
		for _, s := range r.streams.Status(pool) {
			all++
			if s.State != ingest.Disconnected && s.State != ingest.Syncing {
				settled++
			}
		}
	}
	return float64(settled) >= readyShare*float64(all)
}
