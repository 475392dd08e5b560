package operatorfeed

import (
	"slices"
	"time"
)

// Reading is what an engine's metrics reported to a picker.
type Reading struct {
	// At is when it was read, by the clock of the receiver. It is late by the time that the report was under way.
	At time.Time
	// Busy is the number of requests that ran or waited, on all ranks.
	Busy int
}

const (
	// keptReadings of each draining pod.
	keptReadings = 3
	// apart is the least time between two readings that count as two: one reading is in several reports, and replicas read
	// one engine at nearly the same time.
	apart = 500 * time.Millisecond
)

// read notes what a state has read of the engines of draining pods. A reading that finds an engine busy is never dropped.
func (p *Pool) read(now time.Time, s *State) {
	for uid, pod := range s.Pods {
		if !pod.Draining || pod.ReadAge <= 0 {
			continue
		}
		next := Reading{now.Add(-pod.ReadAge), pod.Busy}
		kept := slices.Clone(p.readings[uid]) // views share the present one
		switch last := len(kept) - 1; {
		case last < 0 || next.At.Sub(kept[last].At) >= apart:
			kept = append(kept, next)
		case next.Busy > 0 && kept[last].Busy == 0 && !next.At.Before(kept[last].At.Add(-apart)):
			kept[last] = next
		default:
			continue
		}
		if p.readings == nil {
			p.readings = map[string][]Reading{}
		}
		p.readings[uid] = kept[max(0, len(kept)-keptReadings):]
	}
}

// Readings returns what pickers have last read of a draining pod's engine, oldest first. It must not be changed.
func (v *View) Readings(uid string) []Reading { return v.readings[uid] }
