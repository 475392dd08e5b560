package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// present is the pool as last applied, for a choice: until done, Apply does not return. So once it has returned no choice
// is made any more by what was in force before, which is what acknowledging a drain mark means. It is nil when the pool
// is gone.
//
// Whoever has counted himself on a view looks again: had it been replaced before, Apply may not have seen the count.
func (g *gate) present() *view {
	for {
		v := g.view.Load()
		if v == nil {
			return nil
		}
		v.picking.Add(1)
		if g.view.Load() == v {
			return v
		}
		v.picking.Add(-1)
	}
}

// done ends what present has begun.
func (v *view) done() { v.picking.Add(-1) }

// drainPause is the time between two looks whether choices have ended. They take microseconds.
const drainPause = 50 * time.Microsecond

// await the end of the choices by views that are in force no more.
func await(replaced []*view) {
	for _, v := range replaced {
		for v.picking.Load() > 0 {
			time.Sleep(drainPause)
		}
	}
}

// pickable tells whether requests may go to an endpoint.
func (v *view) pickable(id endpoint.ID) bool {
	for i := range v.spec.Endpoints {
		if e := &v.spec.Endpoints[i]; e.ID == id {
			return e.Pickable()
		}
	}
	return false
}
