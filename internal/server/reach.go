package server

import (
	"context"
	"errors"
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

// silentAfter is the number of questions in a row without an answer after which an engine counts as not answering. With the
// scraper's time for each that is some 8 s.
const silentAfter = 3

// reach keeps which engines cannot be connected to, or do not answer. Without Kubernetes there are no readiness probes, so the
// questions for metrics take their place. It is safe for concurrent use.
//
//	reachable --2 questions in a row, 1 if none was answered before, or a request--> unreachable --an answer--> reachable
//	reachable --silentAfter questions in a row without an answer, and no piece of any other answer--> not answering
//	not answering --an answer--> reachable
type reach struct {
	log     logr.Logger
	changed bell
	pieces  func(endpoint.ID) uint64 // of answers to requests, that have arrived

	mu   sync.Mutex
	seen map[place]*seen // guarded by mu
}

// seen is what questions to an engine have shown.
type seen struct {
	failures int    // questions in a row that had no connection
	silences int    // questions in a row that had no answer, while no piece of another answer arrived
	pieces   uint64 // at the last question
	met      bool   // could be connected to once
	state    reachState
}

type reachState int

const (
	reached reachState = iota
	unreachable
	notAnswering
)

// place is an endpoint at an address: with another address, nothing is known of it.
type place struct {
	id      endpoint.ID
	address string
}

func placeOf(ep *endpoint.Endpoint) place { return place{ep.ID, ep.Address + ep.Socket} }

func newReach(pieces func(endpoint.ID) uint64, log logr.Logger) *reach {
	return &reach{log: log, changed: make(bell, 1), pieces: pieces, seen: map[place]*seen{}}
}

// recordResult takes what became of a question for metrics.
func (r *reach) recordResult(t scrape.Target, err error) {
	at, pieces := place{t.ID, t.Address + t.Socket}, r.pieces(t.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.at(at)
	works := pieces != s.pieces
	s.pieces = pieces
	switch {
	case err == nil:
		s.failures, s.silences, s.met = 0, 0, true
		if s.state != reached {
			s.state = reached
			r.log.Info("Engine reachable again", "endpoint", t.ID.String(), "address", at.address)
			r.changed.ring()
		}
	case errors.Is(err, scrape.ErrNoAnswer):
		s.failures, s.met = 0, true
		if works {
			s.silences = 0
		} else {
			s.silences++
		}
		if s.silences >= silentAfter {
			r.lose(at, notAnswering, err.Error())
		}
	default:
		s.silences = 0
		if s.failures++; s.failures > 1 || !s.met {
			r.lose(at, unreachable, err.Error())
		}
	}
}

// at returns what is known of an engine. r.mu is held.
func (r *reach) at(at place) *seen {
	if r.seen[at] == nil {
		r.seen[at] = &seen{}
	}
	return r.seen[at]
}

// lose marks an engine, and reports whether it was reached before. The first reason stays until an answer. r.mu is held.
func (r *reach) lose(at place, as reachState, reason string) bool {
	s := r.at(at)
	if s.state != reached {
		return false
	}
	s.state = as
	message := "Engine unreachable, sending it no requests"
	if as == notAnswering {
		message = "Engine takes connections and does not answer, sending it no requests"
	}
	logging.Warn(r.log, message, "endpoint", at.id.String(), "address", at.address, "reason", reason)
	r.changed.ring()
	return true
}

// mark returns specs in which the endpoints that are unreachable or do not answer are marked, and forgets endpoints that are in none.
// While a pool has a reachable endpoint, its marked ones are not ready. While it has none, they can be picked: a request gets an
// error at once rather than wait, and the first request finds out that an engine works again.
func (r *reach) mark(specs []picker.Spec) []picker.Spec {
	r.mu.Lock()
	defer r.mu.Unlock()
	specs = slices.Clone(specs)
	present := map[place]bool{}
	for i := range specs {
		list := slices.Clone(specs[i].Endpoints)
		for j := range list {
			at := placeOf(&list[j])
			present[at] = true
			if s := r.seen[at]; s != nil {
				list[j].Unreachable, list[j].NotAnswering = s.state == unreachable, s.state == notAnswering
			}
		}
		if slices.ContainsFunc(list, reachable) {
			for j := range list {
				list[j].Ready = list[j].Ready && !list[j].Unreachable && !list[j].NotAnswering
			}
		}
		specs[i].Endpoints = list
	}
	for at := range r.seen {
		if !present[at] {
			delete(r.seen, at)
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
	refused := a.applySpecs(state.Specs, state.RouteSpecs)
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
		changed = a.reach.lose(placeOf(ep), unreachable, "a request could not be sent") || changed
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

// reachable reports whether an endpoint can be picked, connected to, and answers, as far as is known.
func reachable(ep endpoint.Endpoint) bool { return status.PhaseOf(&ep) == status.PhaseServing }

// unreached is why no engine can be used although there are some; empty if one can, or none is configured.
func unreached(state *config.State) string {
	found, silent := false, false
	for i := range state.Specs {
		for j := range state.Specs[i].Endpoints {
			ep := &state.Specs[i].Endpoints[j]
			if !ep.Unreachable && !ep.NotAnswering {
				return ""
			}
			found, silent = true, silent || ep.NotAnswering
		}
	}
	switch {
	case !found:
		return ""
	case silent:
		return "no engine answers"
	}
	return "no engine can be connected to"
}
