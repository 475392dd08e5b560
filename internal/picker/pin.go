package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// pin returns the pool as last applied, for a pick: until the pick calls unpin, Apply does not return. So once Apply has
// returned no pick uses the previous view any more, which is what acknowledging a drain mark means. It is nil when the pool
// was removed.
//
// A caller that pinned a view re-reads the pointer. If Apply swapped it before the pin, Apply did not wait for this pick,
// so the pick must use the new view.
func (q *admissionQueue) pin() *view {
	for {
		v := q.view.Load()
		if v == nil {
			return nil
		}
		v.picking.Add(1)
		if q.view.Load() == v {
			return v
		}
		v.picking.Add(-1)
	}
}

// unpin ends what pin has begun.
func (v *view) unpin() { v.picking.Add(-1) }

// drainPause is the time between two looks whether choices have ended. They take microseconds.
const drainPause = 50 * time.Microsecond

// await waits for the end of all picks on replaced views.
func await(replaced []*view) {
	for _, v := range replaced {
		for v.picking.Load() > 0 {
			time.Sleep(drainPause)
		}
	}
}

// pickable reports whether requests can go to an endpoint.
func (v *view) pickable(now time.Time, id endpoint.ID) bool {
	for i := range v.spec.Endpoints {
		if e := &v.spec.Endpoints[i]; e.ID == id {
			return e.Pickable() && !v.members[i].sleep.asleep(now)
		}
	}
	return false
}

// Others reports whether the pool has an endpoint that takes such requests now, besides those that tried names. Only
// one that works counts if works is set: its circuit is closed, and it has not stalled.
func (d *Decision) Others(works bool, tried func(endpoint.ID) bool) bool {
	v := d.view.admission.pin()
	if v == nil {
		return false
	}
	defer v.unpin()
	now, at := d.now(), v.place(d.Model)
	for i := range v.spec.Endpoints {
		e, m := &v.spec.Endpoints[i], v.members[i]
		if !e.Pickable() || m.sleep.asleep(now) || !at.allows(e) || tried(e.ID) {
			continue
		}
		if !works || m.circuit.Closed(now, v.spec.Policy.CircuitFailures) && !m.load.Stalled(now) {
			return true
		}
	}
	return false
}
