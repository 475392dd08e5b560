package server

import (
	"context"
	"slices"
	"sync"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// reach keeps which engines cannot be connected to. Without Kubernetes there are no readiness probes, so the questions for
// metrics take their place. It is safe for concurrent use.
//
//	reachable --2 questions in a row, 1 if none was answered before, or a request--> unreachable --a question--> reachable
type reach struct {
	log     logr.Logger
	changed bell

	mu       sync.Mutex
	failures map[place]int  // guarded by mu; questions in a row that had no connection
	met      map[place]bool // guarded by mu; could be connected to once
	down     map[place]bool // guarded by mu
}

// place is an endpoint at an address: with another address, nothing is known of it.
type place struct {
	id      endpoint.ID
	address string
}

func placeOf(ep *endpoint.Endpoint) place { return place{ep.ID, ep.Address + ep.Socket} }

func newReach(log logr.Logger) *reach {
	return &reach{log: log, changed: make(bell, 1), failures: map[place]int{}, met: map[place]bool{}, down: map[place]bool{}}
}

// recordResult takes what became of a question for metrics.
func (r *reach) recordResult(t scrape.Target, err error) {
	at := place{t.ID, t.Address + t.Socket}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.failures[at], r.met[at] = 0, true
		if r.down[at] {
			delete(r.down, at)
			r.log.Info("Engine reachable again", "endpoint", t.ID.String(), "address", at.address)
			r.changed.ring()
		}
		return
	}
	r.failures[at]++
	if r.failures[at] > 1 || !r.met[at] {
		r.lose(at, err.Error())
	}
}

// lose marks an engine as unreachable, and reports whether it was not. r.mu is held.
func (r *reach) lose(at place, reason string) bool {
	if r.down[at] {
		return false
	}
	r.down[at] = true
	logging.Warn(r.log, "Engine unreachable, sending it no requests", "endpoint", at.id.String(), "address", at.address, "reason", reason)
	r.changed.ring()
	return true
}

// mark returns specs whose endpoints are marked where they are unreachable, and forgets all other endpoints. While a pool has
// a reachable endpoint, the unreachable ones are not ready. Otherwise they stay in the choice: a request gets an error at
// once, rather than wait, and an engine that is back is found by the first request.
func (r *reach) mark(specs []picker.Spec) []picker.Spec {
	r.mu.Lock()
	defer r.mu.Unlock()
	specs = slices.Clone(specs)
	present := map[place]bool{}
	for i := range specs {
		list := slices.Clone(specs[i].Endpoints)
		for j := range list {
			at := placeOf(&list[j])
			present[at], list[j].Unreachable = true, r.down[at]
		}
		if slices.ContainsFunc(list, reachable) {
			for j := range list {
				list[j].Ready = list[j].Ready && !list[j].Unreachable
			}
		}
		specs[i].Endpoints = list
	}
	for _, known := range []map[place]bool{r.down, r.met} {
		for at := range known {
			if !present[at] {
				delete(known, at)
			}
		}
	}
	for at := range r.failures {
		if !present[at] {
			delete(r.failures, at)
		}
	}
	return specs
}

// followReach applies what changes in the reach of engines, until ctx ends.
func (a *app) followReach(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.reach.changed:
			a.applying.Lock()
			a.applyReach()
			a.applying.Unlock()
		}
	}
}

// applyReach applies the last state again, with the present reach. a.applying is held.
func (a *app) applyReach() {
	a.mu.Lock()
	written := a.written
	a.mu.Unlock()
	state := written
	state.Specs = a.reach.mark(written.Specs)
	a.mu.Lock()
	a.state = state
	a.mu.Unlock()
	refused := a.applySpecs(state.Specs)
	a.feed()
	a.logUnready(&state, refused)
}

// unreachable takes the endpoints of a pool that a request could not be sent to, and reports whether the pool has others.
func (a *app) unreachable(pool string, failed []*endpoint.Endpoint) (others bool) {
	if a.reach == nil {
		return false
	}
	a.applying.Lock()
	defer a.applying.Unlock()
	a.reach.mu.Lock()
	changed := false
	for _, ep := range failed {
		changed = a.reach.lose(placeOf(ep), "a request could not be sent") || changed
	}
	a.reach.mu.Unlock()
	if changed {
		a.applyReach()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.state.Specs, func(s picker.Spec) bool {
		return s.Namespace+"/"+s.Name == pool && slices.ContainsFunc(s.Endpoints, reachable)
	})
}

// reachable reports whether an endpoint can be picked and connected to, as far as is known.
func reachable(ep endpoint.Endpoint) bool { return status.PhaseOf(&ep) == status.PhaseServing }

// unreached is why no engine can be used although there are some; empty if one can, or none is configured.
func unreached(state *config.State) string {
	found := false
	for i := range state.Specs {
		for j := range state.Specs[i].Endpoints {
			ep := &state.Specs[i].Endpoints[j]
			if !ep.Unreachable {
				return ""
			}
			found = true
		}
	}
	if !found {
		return ""
	}
	return "no engine can be connected to"
}
