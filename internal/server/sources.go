package server

import (
	"context"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// eventPlane is what the picker knows of the blocks of endpoints, by their events.
type eventPlane struct {
	streams  *events.Manager
	restless bell // a stream has another state
	dialIn   *dialIn
	sources  *eventSources

	feeding sync.Mutex               // guards what follows, and is held while streams are set
	feeds   map[string][]events.Feed // by namespace/name: what can be subscribed to
	held    []picker.Feed            // all of them
}

// eventSources keeps what engines report about the ports of their event publishers. It is used only if no port is
// configured, and only ports are used: a pod cannot point the picker to another host. It is safe for concurrent use.
type eventSources struct {
	log     logr.Logger
	changed chan struct{} // holds a token when reported has changed

	mu       sync.Mutex
	epochs   map[endpoint.ID]string             // guarded by mu; of the endpoints there are
	reported map[endpoint.ID]scrape.EventSource // guarded by mu
}

func newEventSources(log logr.Logger) *eventSources {
	return &eventSources{log: log, changed: make(chan struct{}, 1), epochs: map[endpoint.ID]string{},
		reported: map[endpoint.ID]scrape.EventSource{}}
}

// askedRank is the rank about which an endpoint's engine is asked; -1 where its answer would not be used.
func askedRank(ep *endpoint.Endpoint) int {
	if !ep.EventsAssumed && !ep.ReplayAssumed {
		return -1
	}
	return ep.EventRank
}

// report takes the event source that an engine reports.
func (s *eventSources) report(id endpoint.ID, source scrape.EventSource) {
	s.mu.Lock()
	s.reported[id] = source
	s.mu.Unlock()
	if source.Answered {
		s.log.Info("Event ports received from engine", "endpoint", id.String(), "events", source.Events, "replay", source.Replay)
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// keep forgets endpoints that were removed or have another address.
func (s *eventSources) keep(feeds []picker.Feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	epochs := make(map[endpoint.ID]string, len(feeds))
	for i := range feeds {
		epochs[feeds[i].Endpoint.ID] = feeds[i].Endpoint.Epoch()
	}
	for id := range s.reported {
		if now, ok := epochs[id]; !ok || now != s.epochs[id] {
			delete(s.reported, id)
		}
	}
	s.epochs = epochs
}

func (s *eventSources) known(id endpoint.ID) scrape.EventSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reported[id]
}

// of returns the feed with the ports that the engine has reported instead of the assumed ones.
func (s *eventSources) of(f events.Feed) events.Feed {
	ep, source := &f.Endpoint, s.known(f.Endpoint.ID)
	if !source.Answered {
		return f
	}
	if ep.EventsAssumed {
		ep.EventsAddress = withPort(ep.EventsAddress, source.Events)
	}
	if ep.ReplayAssumed {
		ep.ReplayAddress = withPort(ep.ReplayAddress, source.Replay)
	}
	return f
}

// silent reports whether the endpoint's engine reports that it publishes nothing that can be subscribed to.
func (s *eventSources) silent(ep *endpoint.Endpoint) bool {
	source := s.known(ep.ID)
	return ep.EventsAssumed && source.Answered && source.Events == 0
}

// unclear are the endpoints whose events are assumed on a port that another endpoint has, too, because their engines run on
// one host. Whose events they are is unknown, so those ports are not subscribed to until the engines report theirs.
func (s *eventSources) unclear(feeds map[string][]events.Feed) map[endpoint.ID]bool {
	users := map[string]int{}
	assumed := map[endpoint.ID]string{}
	for _, list := range feeds {
		for i := range list {
			f := s.of(list[i])
			address := f.Endpoint.EventsAddress
			if address == "" {
				continue
			}
			users[address]++
			if f.Endpoint.EventsAssumed && !s.known(f.Endpoint.ID).Answered {
				assumed[f.Endpoint.ID] = address
			}
		}
	}
	unclear := map[endpoint.ID]bool{}
	for id, address := range assumed {
		unclear[id] = users[address] > 1
	}
	return unclear
}

// withPort is an address with another port; empty for port 0.
func withPort(address string, port int) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil || port == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// askAgainEvery is how often engines whose streams are down are polled for changed ports of their publishers.
const askAgainEvery = time.Second

// followSources moves streams to the ports that engines report, until ctx ends.
func (a *app) followSources(ctx context.Context) {
	tick := time.NewTicker(askAgainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.sources.changed:
			a.feedStreams()
		case <-tick.C:
			a.scraper.AskEventSources(a.movedSources())
		}
	}
}

// movedSources are the endpoints whose streams are down although their engines have reported ports: a restarted engine can
// have other ones.
func (a *app) movedSources() (ids []endpoint.ID) {
	for _, pool := range a.streams.Pools() {
		for _, s := range a.streams.Status(pool) {
			if s.State == events.Disconnected && a.sources.known(s.Endpoint.ID).Answered {
				ids = append(ids, s.Endpoint.ID)
			}
		}
	}
	return ids
}
