package admission

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// A pool can have several replicas of its picker, each with a queue of its own. They report to each other what has left their queues, and
// for which tenants requests wait. So the virtual times of all queues are about the same, and each queue knows when it is the turn of a
// request that waits elsewhere.

const (
	// maxReported bounds the work that counts of one report, in tokens: that of a very long prompt.
	maxReported = 1 << 20
	// maxElsewhere bounds the tenants of a level that count as waiting at other replicas.
	maxElsewhere = 1024
	// reportLasts is how long they count after the last report.
	reportLasts = time.Minute
)

// ServedElsewhere counts work that another replica's queue has released for a tenant, in tokens: the tenant's turn here is later, as if
// its request had left this queue. The tenant is set back by at most the work that it could have had here within Limits.CatchUp, and by
// this report. So it does not pay for long for work that no other tenant wanted, nor for a report that is wrong.
func (q *Queue) ServedElsewhere(now time.Time, level int, tenant string, weight int, tokens float64) {
	l := q.level(level)
	f := l.flow(&Ticket{Tenant: tenant, Weight: weight})
	f.begin(now, q.Limits.CatchUp)
	if len(l.active) == 0 || f.virtual <= l.active[0].virtual {
		l.clock = max(l.clock, f.virtual)
	}
	l.recent.note(now, l.clock, q.Limits.CatchUp)
	work := min(tokens, maxReported) / f.weight
	most := l.clock + (l.clock - l.recent.ago(now, q.Limits.CatchUp, l.clock)) + work
	f.virtual = max(f.virtual, min(f.virtual+work, most))
	f.claim.since = time.Time{}
	if f.index >= 0 {
		heap.Fix(&l.active, f.index)
	}
	q.rest(l)
}

// WaitsElsewhere records a report that requests of a tenant wait at other replicas, or that none do any more.
func (q *Queue) WaitsElsewhere(now time.Time, level int, tenant string, weight int, waits bool) {
	if !waits {
		if l := q.find(level); l != nil && l.flows[tenant] != nil {
			l.flows[tenant].reported = time.Time{}
		}
		return
	}
	l := q.level(level)
	defer q.rest(l)
	f := l.flow(&Ticket{Tenant: tenant, Weight: weight})
	if len(l.elsewhere) >= maxElsewhere && !f.elsewhere {
		if l.trim(now); len(l.elsewhere) >= maxElsewhere {
			return
		}
	}
	f.begin(now, q.Limits.CatchUp)
	if f.reported = now; !f.elsewhere {
		f.elsewhere = true
		l.elsewhere = append(l.elsewhere, f)
	}
}

// trim drops the flows that do not wait elsewhere any more.
func (l *level) trim(now time.Time) {
	l.elsewhere = slices.DeleteFunc(l.elsewhere, func(f *flow) bool {
		if f.elsewhere = now.Sub(f.reported) <= reportLasts; !f.elsewhere {
			f.reported = time.Time{}
		}
		return !f.elsewhere
	})
}

// EachElsewhere calls f for each tenant that was reported to wait at other replicas. f can record reports.
func (q *Queue) EachElsewhere(f func(level int, tenant string)) {
	for _, l := range slices.Concat(q.levels, q.idle) {
		for _, flow := range slices.Clone(l.elsewhere) {
			f(l.number, flow.tenant)
		}
	}
}

// Turn is the next turn of a request that waits at another replica, of a level.
type Turn struct {
	level   int
	virtual float64
}

// Elsewhere returns the next turns of requests that wait at other replicas, one for each level with any.
func (q *Queue) Elsewhere(now time.Time) (turns []Turn) {
	for _, levels := range [][]*level{q.levels, q.idle} {
		for _, l := range levels {
			if l.trim(now); len(l.elsewhere) > 0 {
				first := slices.MinFunc(l.elsewhere, func(a, b *flow) int { return cmp.Compare(a.virtual, b.virtual) })
				turns = append(turns, Turn{l.number, first.virtual})
			}
		}
	}
	return turns
}

// Yields reports whether one of these turns precedes that of a waiting ticket.
func (t *Ticket) Yields(turns []Turn) bool {
	return slices.ContainsFunc(turns, func(other Turn) bool {
		return other.level > t.Level || other.level == t.Level && other.virtual < t.flow.virtual
	})
}
