package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/logging"
)

// Stalled reports whether the present target shows no progress with anything that it has accepted. The request can then be
// taken to another one: see Abandon.
func (d *Decision) Stalled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t, now := &d.Targets[d.target], d.now()
	return !d.ended && d.view.watchStall(now, t.Endpoint.ID, t.member)
}

// Abandon takes the request off its target, which has stalled. That is no failure of the kind that opens a circuit: the
// endpoint is used again as soon as it moves.
func (d *Decision) Abandon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.booking.Drop(d.now())
		d.leaveTarget(d.now())
	}
}

// watchStall reports whether an endpoint has stalled, and logs when that changes.
func (v *view) watchStall(now time.Time, id endpoint.ID, m *member) bool {
	is := m.load.Stalled(now)
	if m.stalled.Swap(is) == is {
		return is
	}
	keys := []any{"pool", v.spec.Name, "pod", id.Pod, "rank", id.Rank}
	if is {
		logging.Warn(v.log, "Endpoint has accepted requests and shows no progress: no requests are sent there", keys...)
	} else {
		v.log.Info("Endpoint makes progress again: requests are sent there", keys...)
	}
	return is
}

// Pieces counts the pieces of answers that have arrived from an endpoint. While it grows, the engine answers.
func (p *Picker) Pieces(id endpoint.ID) (n uint64) {
	for _, v := range p.current.Load().pools {
		if m, ok := v.find(id); ok {
			n += m.load.Pieces().Load()
		}
	}
	return n
}
