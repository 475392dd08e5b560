package overload

import "sync/atomic"

// fullFor is for how many observations a port counts as full after it has turned connections away.
const fullFor = 60

// Port counts the connections that a listening port has closed because there was no room. The zero value counts, but no Manager reports it.
// It is safe for concurrent use.
type Port struct {
	name             string
	shed, turnedAway atomic.Uint64

	seen uint64 // guarded by the manager's mu; of turnedAway, at the last observation
	full int    // guarded by the manager's mu; for so many observations more
}

// Shed counts an idle connection that was closed for a new one.
func (p *Port) Shed() { p.shed.Add(1) }

// TurnAway counts a new connection that was closed.
func (p *Port) TurnAway() { p.turnedAway.Add(1) }

// TurnedAway is how many new connections were closed.
func (p *Port) TurnedAway() uint64 { return p.turnedAway.Load() }

// Port returns the counts of the ports with a name. Those of a nil Manager are not reported.
func (m *Manager) Port(name string) *Port {
	if m == nil {
		return new(Port)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.ports {
		if p.name == name {
			return p
		}
	}
	p := &Port{name: name}
	m.ports = append(m.ports, p)
	return p
}

// PortState is what is known of the ports with a name.
type PortState struct {
	Name             string
	Shed, TurnedAway uint64
	// Full: connections were turned away in the last minute.
	Full bool
}

// observe checks whether connections were turned away since the last observation, and reports whether the port has become full or has
// ceased to be. The manager's mu is held.
func (p *Port) observe() (changed bool) {
	before := p.full > 0
	p.full = max(0, p.full-1)
	if n := p.turnedAway.Load(); n != p.seen {
		p.seen, p.full = n, fullFor
	}
	return before != (p.full > 0)
}
