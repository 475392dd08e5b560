package main

import (
	"context"
	"time"

	"github.com/kvasir-dev/kvasir/internal/ingest"
)

// doubtEvery is how soon the picker hears that an endpoint's events are missing, or are complete again.
const doubtEvery = 250 * time.Millisecond

// keepDoubt tells the picker of which endpoints the index may have something else than they hold.
func (a *app) keepDoubt(ctx context.Context) {
	tick := time.NewTicker(doubtEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.doubt()
		}
	}
}

// doubt tells of every endpoint whether an event may be missing. Who is not spoken of brings no events.
func (a *app) doubt() {
	whole := map[string]bool{} // by epoch
	for _, pool := range a.pools() {
		for _, s := range a.knowledge(pool) {
			// Unverified says that the beginning is missing: there may be more, but what there is holds.
			whole[s.Endpoint.Epoch()] = s.State == ingest.Synced || s.State == ingest.Unverified
		}
	}
	a.feeding.Lock()
	held := a.held
	a.feeding.Unlock()
	for i := range held {
		known, spoken := whole[held[i].Endpoint.Epoch()]
		held[i].Doubt(spoken && !known)
	}
}
