package picker

import "github.com/kvasir-dev/kvasir/internal/endpoint"

// InFlight is how many requests this picker has sent to an endpoint that have not ended, and for how many others it holds the
// blocks; 0 for one that is unknown.
func (p *Picker) InFlight(id endpoint.ID) (n int) {
	now := p.now()
	for _, v := range p.current.Load().pools {
		if m, ok := v.find(id); ok {
			load := m.load.View(now)
			n += load.InFlight - load.Peers.InFlight + m.leases.count(now)
		}
	}
	return n
}
