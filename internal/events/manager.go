package events

import (
	"maps"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Manager runs the streams of all pools. It is safe for concurrent use.
type Manager struct {
	cfg Config

	mu      sync.Mutex
	streams map[string]map[string]*run // guarded by mu; by pool, by the endpoint's epoch
}

// New returns a manager without streams.
func New(c Config) *Manager {
	return &Manager{cfg: c.withDefaults(), streams: map[string]map[string]*run{}}
}

// Set makes the streams of a pool match the feeds; each epoch of an endpoint has at most one stream. Feeds without an
// address of events, which do not dial in either, have none. A stream whose feed was removed or changed is stopped; when
// Set returns it no longer writes to the index, and the blocks that it has written stay. A stream whose feed is unchanged
// continues.
func (m *Manager) Set(pool string, feeds []Feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, next := m.streams[pool], map[string]*run{}
	var fresh []Feed
	for _, f := range feeds {
		epoch := f.Endpoint.Epoch()
		if f.address() == "" || f.Endpoint.DialsIn && m.cfg.Reception == nil || next[epoch] != nil {
			continue
		}
		if s := old[epoch]; s != nil && s.feed.same(&f) {
			next[epoch] = s
			delete(old, epoch)
			continue
		}
		fresh = append(fresh, f)
	}
	stopAll(old)
	if m.cfg.Reception != nil {
		m.cfg.Reception.set(pool, feeds)
	}
	for _, f := range fresh {
		if epoch := f.Endpoint.Epoch(); next[epoch] == nil {
			next[epoch] = startStream(f, &m.cfg)
		}
	}
	if len(next) == 0 {
		delete(m.streams, pool)
	} else {
		m.streams[pool] = next
	}
}

// Close stops all streams and waits for them.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pool, streams := range m.streams {
		stopAll(streams)
		delete(m.streams, pool)
		if m.cfg.Reception != nil {
			m.cfg.Reception.set(pool, nil)
		}
	}
}

// Status is how a stream does.
type Status struct {
	Endpoint endpoint.Endpoint
	State    State
	// Stats continue to count.
	Stats *Stats
}

// Status reports on all streams of a pool, in no order.
func (m *Manager) Status(pool string) []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Status, 0, len(m.streams[pool]))
	for _, s := range m.streams[pool] {
		out = append(out, Status{Endpoint: s.feed.Endpoint, State: s.State(), Stats: &s.stats})
	}
	return out
}

// Pools lists the pools that have streams, in no order.
func (m *Manager) Pools() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	pools := make([]string, 0, len(m.streams))
	for pool := range m.streams {
		pools = append(pools, pool)
	}
	return pools
}

func stopAll(streams map[string]*run) {
	for _, s := range streams {
		s.stop()
	}
	for _, s := range streams {
		s.wait()
	}
}

// same reports whether two feeds of the same epoch need the same stream.
func (f *Feed) same(g *Feed) bool {
	return f.Endpoint.ReplayAddress == g.Endpoint.ReplayAddress && f.address() == g.address() && f.Engine == g.Engine &&
		f.Writer == g.Writer && f.Sink == g.Sink &&
		f.Keys.Model == g.Keys.Model && f.Keys.Seed == g.Keys.Seed && f.Keys.BlockTokens == g.Keys.BlockTokens &&
		maps.Equal(f.Keys.Media, g.Keys.Media)
}
