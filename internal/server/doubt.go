package server

import (
	"context"
	"time"

	"github.com/kvasir-dev/kvasir/internal/events"
)

// doubtEvery is how soon the picker learns that an endpoint's events are missing, or are complete again, where no stream of
// its own shows it.
const doubtEvery = 250 * time.Millisecond

// bell wakes the one goroutine that waits for it. To ring again before it has woken changes nothing.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// keepDoubt keeps the picker informed about endpoints whose blocks in the index can differ from what they hold.
func (a *app) keepDoubt(ctx context.Context) {
	tick := time.NewTicker(doubtEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.restless:
			a.doubt()
		case <-tick.C:
			a.doubt()
		}
	}
}

// doubt reports for every endpoint whether an event can be missing. Endpoints that are not listed bring no events.
func (a *app) doubt() {
	whole, lacking := map[string]bool{}, map[string]bool{} // by epoch
	for _, pool := range a.pools() {
		for _, s := range a.knowledge(pool) {
			// Unverified means that the beginning of the history is missing: blocks can be missing, but those in the index
			// are valid.
			whole[s.Endpoint.Epoch()] = s.State == events.Synced || s.State == events.Unverified
			lacking[s.Endpoint.Epoch()] = s.State == events.Unverified || s.State == events.Degraded
		}
	}
	a.feeding.Lock()
	held := a.held
	a.feeding.Unlock()
	for i := range held {
		known, spoken := whole[held[i].Endpoint.Epoch()]
		held[i].Doubt(spoken && !known)
		held[i].Incomplete(lacking[held[i].Endpoint.Epoch()])
	}
}
