package load

import "time"

const (
	// arrival is how long a request can take from its pick to the engine, through a gateway, before its absence from the
	// engine's report says that the engine is done with it.
	arrival = 200 * time.Millisecond
	// leadStep is the factor of each such report, and mostLead bounds their product: no engine is that much faster than
	// what is assumed of it.
	leadStep, mostLead = 4, 1 << 20
)

// follow learns from a report how far an engine is ahead of its assumed state. Where its speed cannot be learned, as behind
// gateways that show no answers, prefills are assumed to take far longer than a fast engine needs. An engine with nothing
// waiting and with less than half of the requests that should still be there has done more than was assumed; one in which
// requests wait has not.
func (t *Tracker) follow(at time.Time, r *Report) {
	old := 0
	for _, b := range t.prefilling {
		if at.Sub(b.start) > arrival {
			old++
		}
	}
	switch {
	case r.Waiting > 0:
		t.lead = 0
	case old > 0 && 2*r.Running < old:
		t.lead = min(max(t.lead, 1)*leadStep, mostLead)
	}
}

// idleNow reports whether the engine has nothing to do: it has said so, and whatever was sent there is older than that.
func (t *Tracker) idleNow(now time.Time) bool {
	if now.Sub(t.reported) > metricsFresh || t.report.Running+t.report.Waiting > 0 {
		return false
	}
	n := len(t.prefilling)
	return n == 0 || t.reported.Sub(t.prefilling[n-1].start) > arrival
}
