// Package overload decides what a process refuses when memory, goroutines or file descriptors run short, before it has none left
// (as Envoy's overload manager does). The budget bounds what clients hold by plan; this is for what the plan has not foreseen.
//
//	                 0.80            0.88               0.95
//	pressure  -------|---------------|------------------|-------> 1
//	                 LowPriority     AnonymousBodies    Connections
//
// Pressure is the part of a resource that is in use. An action begins when that of some resource reaches its threshold, and ends
// when all are release below it. What is refused first is what was promised least.
package overload

import (
	"fmt"
	"strings"
	"sync"
)

// Resource is what can run short.
type Resource uint8

// The resources.
const (
	// Memory is what is in use after the last garbage collection, of what the collector keeps to.
	Memory Resource = iota
	Goroutines
	Descriptors
	numResources int = iota
)

// NumResources is the number of resources.
const NumResources = numResources

// String is the value of the metric label.
func (r Resource) String() string { return [...]string{"memory", "goroutines", "descriptors"}[r] }

// reason is the resource's shortage in the words of a condition.
func (r Resource) reason() string {
	return [...]string{"MemoryShort", "GoroutinesShort", "DescriptorsShort"}[r]
}

// Action is what is refused.
type Action uint8

// The actions, in the order in which they begin.
const (
	// LowPriority refuses requests of a priority below 0.
	LowPriority Action = iota
	// AnonymousBodies refuses bodies above AnonymousBody of clients that show no tenant's key.
	AnonymousBodies
	// Connections closes new connections of clients and gateways.
	Connections
	numActions int = iota
)

// NumActions is the number of actions.
const NumActions = numActions

// AnonymousBody is the largest body, in bytes, that AnonymousBodies lets pass.
const AnonymousBody = 64 << 10

// String is the value of the metric label.
func (a Action) String() string {
	return [...]string{"low_priority", "anonymous_bodies", "connections"}[a]
}

// refused names what the action refuses, for people.
func (a Action) refused() string {
	return [...]string{"requests of low priority", "large bodies of clients without a key", "new connections"}[a]
}

// Thresholds are the pressures at which the actions begin.
var Thresholds = [NumActions]float64{LowPriority: 0.80, AnonymousBodies: 0.88, Connections: 0.95}

// release is how far the pressure must fall below a threshold before its action ends, so that it does not begin and end with each
// measurement.
const release = 0.05

// Usage is what is in use of the resources, and their limits; a limit of 0 is none.
type Usage struct{ Used, Limit [NumResources]int64 }

// Manager knows which actions are in force. The zero value is ready for use; a nil Manager refuses nothing. It is safe for
// concurrent use.
type Manager struct {
	mu    sync.Mutex
	state State   // guarded by mu; without Ports
	ports []*Port // guarded by mu
}

// State is what a Manager knows.
type State struct {
	Pressure [NumResources]float64
	Active   [NumActions]bool
	Refused  [NumActions]uint64
	Ports    []PortState
}

// Observe takes a measurement, one each second, and reports whether an action has begun or ended, or a port is full or not any more.
func (m *Manager) Observe(u Usage) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range NumResources {
		if m.state.Pressure[r] = 0; u.Limit[r] > 0 {
			m.state.Pressure[r] = float64(max(0, u.Used[r])) / float64(u.Limit[r])
		}
	}
	_, most := m.state.most()
	for a, threshold := range Thresholds {
		if m.state.Active[a] {
			threshold -= release
		}
		now := most >= threshold
		changed = changed || now != m.state.Active[a]
		m.state.Active[a] = now
	}
	for _, p := range m.ports {
		changed = p.observe() || changed
	}
	return changed
}

// Refuses reports whether an action is in force, and then counts a refusal.
func (m *Manager) Refuses(a Action) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Active[a] {
		m.state.Refused[a]++
	}
	return m.state.Active[a]
}

// RefusesBody is Refuses of AnonymousBodies, for a body of so many bytes, -1 if that is not known, of a client with or without a
// tenant.
func (m *Manager) RefusesBody(tenant string, size int64) bool {
	return tenant == "" && (size < 0 || size > AnonymousBody) && m.Refuses(AnonymousBodies)
}

// State reads what is known.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	for _, p := range m.ports {
		s.Ports = append(s.Ports, PortState{Name: p.name, Shed: p.shed.Load(), TurnedAway: p.turnedAway.Load(), Full: p.full > 0})
	}
	return s
}

// most is the resource with the highest pressure.
func (s *State) most() (which Resource, pressure float64) {
	for r, p := range s.Pressure {
		if p > pressure {
			which, pressure = Resource(r), p
		}
	}
	return which, pressure
}

// ConnectionsFull is the reason for a port that has turned connections away.
const ConnectionsFull = "ConnectionsFull"

// Short describes the shortage in the words of a condition; an empty reason if no action is in force and no port is full.
func (s *State) Short() (reason, message string) {
	for a := NumActions - 1; a >= 0; a-- {
		if !s.Active[a] {
			continue
		}
		r, pressure := s.most()
		message = fmt.Sprintf("%.0f %% of %s in use; refused are %s", 100*pressure, r, Action(0).refused())
		for i := 1; i <= a; i++ {
			message += ", " + Action(i).refused()
		}
		return r.reason(), message
	}
	var full []string
	for _, p := range s.Ports {
		if p.Full {
			full = append(full, p.Name)
		}
	}
	if len(full) > 0 {
		return ConnectionsFull, "new connections were turned away in the last minute, at the ports of: " + strings.Join(full, ", ")
	}
	return "", ""
}
