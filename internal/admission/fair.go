package admission

import (
	"cmp"
	"slices"
	"time"
)

// recent is where a virtual clock was over the last while.
type recent struct {
	marks []mark // oldest first
}

type mark struct {
	at    time.Time
	clock float64
}

// steps is how many marks there are in the time that is remembered.
const steps = 8

// note remembers where the clock is, for so long.
func (r *recent) note(now time.Time, clock float64, memory time.Duration) {
	if memory <= 0 {
		r.marks = nil
		return
	}
	if n := len(r.marks); n > 0 && now.Sub(r.marks[n-1].at) < memory/steps {
		return
	}
	old := 0 // marks that a later one is old enough to replace
	for old+1 < len(r.marks) && now.Sub(r.marks[old+1].at) >= memory {
		old++
	}
	r.marks = append(slices.Delete(r.marks, 0, old), mark{now, clock})
}

// ago is where the clock was so long before now, and now where nothing is remembered of that.
func (r *recent) ago(now time.Time, memory time.Duration, clock float64) float64 {
	if memory <= 0 || len(r.marks) == 0 {
		return clock
	}
	then := r.marks[0].clock
	for _, m := range r.marks[1:] {
		if now.Sub(m.at) < memory {
			break
		}
		then = m.clock
	}
	return then
}

// EachTenant calls f for what waits of each tenant, in order of arrival, until f returns false: higher levels first, and of a
// level the tenant that has had the least for its weight. f must not change the queue. The list is valid until the next
// call.
func (q *Queue) EachTenant(f func(list []*Ticket) bool) {
	var list []*Ticket
	for _, l := range q.levels {
		for _, flow := range l.inOrder() {
			list = list[:0]
			for e := flow.all.Front(); e != nil; e = e.Next() {
				list = append(list, e.Value.(*Ticket))
			}
			if !f(list) {
				return
			}
		}
	}
}

// Urgent calls f for each ticket in the order of Turns, but of a tenant running sessions precede new ones, and among these
// the one with the least time left is first. held reports that it is held back for others' claims (Ahead).
func (q *Queue) Urgent(now time.Time, f func(t *Ticket, held bool) bool) {
	var list []*Ticket
	for _, l := range q.levels {
		most, outranked := l.most(now, q.Limits.CatchUp), q.outranked(now, l.number)
		for _, flow := range l.inOrder() {
			list = list[:0]
			for e := flow.all.Front(); e != nil; e = e.Next() {
				list = append(list, e.Value.(*Ticket))
			}
			slices.SortStableFunc(list, func(a, b *Ticket) int {
				if a.Running != b.Running {
					if a.Running {
						return -1
					}
					return 1
				}
				return a.deadline.Compare(b.deadline)
			})
			for _, t := range list {
				if !f(t, outranked || flow.virtual > most) {
					return
				}
			}
		}
	}
}

// inOrder are the flows in which something waits, the one that has had the least first.
func (l *level) inOrder() []*flow {
	order := slices.Clone(l.active)
	slices.SortFunc(order, func(a, b *flow) int {
		return cmp.Or(cmp.Compare(a.virtual, b.virtual), a.since.Compare(b.since))
	})
	return order
}
