package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// replicated are the queues of replicas that report at once, and one queue with the tickets of all.
type replicated struct {
	queues []Queue
	one    Queue
	twins  map[*Ticket]*Ticket // in the one queue, of those that wait
	at     map[*Ticket]int     // the queue of each
	order  []*Ticket           // that wait
}

func newReplicated(n int) *replicated {
	r := &replicated{queues: make([]Queue, n), one: wide(), twins: map[*Ticket]*Ticket{}, at: map[*Ticket]int{}}
	r.one.Limits.CatchUp = 10 * time.Second
	for i := range r.queues {
		r.queues[i] = wide()
		r.queues[i].Limits.CatchUp = 10 * time.Second
	}
	return r
}

// report tells each queue whether the tenant of a ticket waits at others.
func (r *replicated) report(now time.Time, t *Ticket) {
	for i := range r.queues {
		waits := false
		for j := range r.queues {
			waits = waits || j != i && r.queues[j].Waits(t.Level, t.Tenant)
		}
		r.queues[i].WaitsElsewhere(now, t.Level, t.Tenant, t.Weight, waits)
	}
}

func (r *replicated) push(now time.Time, i int, t *Ticket) {
	twin := *t
	r.twins[t], r.at[t], r.order = &twin, i, append(r.order, t)
	r.queues[i].Push(now, t)
	r.one.Push(now, &twin)
	r.report(now, t)
}

func (r *replicated) forget(t *Ticket) {
	delete(r.twins, t)
	delete(r.at, t)
	r.order = slices.DeleteFunc(r.order, func(other *Ticket) bool { return other == t })
}

// serve takes the next ticket of a queue if it does not yield, and reports whether it did.
func (r *replicated) serve(t *testing.T, now time.Time, i int) bool {
	next := r.queues[i].Next()
	if next == nil || next.Yields(r.queues[i].Elsewhere(now)) {
		return false
	}
	twin, first := r.twins[next], r.one.Next()
	if twin.Level != first.Level || twin.flow.virtual != first.flow.virtual {
		t.Fatalf("replica %d releases a request of %s at level %d, one queue of %s at level %d: %v here, %v and %v there",
			i, twin.Tenant, twin.Level, first.Tenant, first.Level, next.flow.virtual, twin.flow.virtual, first.flow.virtual)
	}
	r.one.Take(now, twin)
	r.queues[i].Take(now, next)
	r.forget(next)
	for j := range r.queues {
		if j != i {
			r.queues[j].ServedElsewhere(now, next.Level, next.Tenant, next.Weight, next.Cost())
		}
	}
	r.report(now, next)
	return true
}

// TestReplicasReleaseInTheOrderOfOneQueue: the queues of replicas that report at once release, whichever is asked first, a request of the
// tenant and level whose turn it is in one queue with all requests; and one of them always does. Requests come to any replica, leave
// and are given up at random.
func TestReplicasReleaseInTheOrderOfOneQueue(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 23))
		n := 1 + rng.IntN(4)
		r, now := newReplicated(n), start
		weights := map[string]int{"a": 1, "b": 2, "c": 5, "d": 1}
		for step := range 500 {
			now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
			if step%20 == 0 { // reports do not last
				for _, ticket := range r.order {
					r.report(now, ticket)
				}
			}
			switch op := rng.IntN(10); {
			case op < 5:
				name := string(rune('a' + rng.IntN(4)))
				r.push(now, rng.IntN(n), &Ticket{
					Level: rng.IntN(2), Tenant: name, Weight: weights[name], Tokens: 1 + 1000*rng.Float64(), TTL: time.Hour,
				})
			case op < 6:
				if len(r.order) > 0 {
					ticket := r.order[rng.IntN(len(r.order))]
					r.queues[r.at[ticket]].Remove(ticket)
					r.one.Remove(r.twins[ticket])
					r.forget(ticket)
					r.report(now, ticket)
				}
			default:
				served := len(r.order) == 0
				for _, i := range rng.Perm(n) {
					if !served {
						served = r.serve(t, now, i)
					}
				}
				if !served {
					t.Fatalf("seed %d: %d requests wait and all replicas yield", seed, len(r.order))
				}
			}
		}
	}
}

// TestAWrongReportIsPaidOffSoon: however much a replica claims to have served a tenant, afterwards the tenant has its turn once others have
// had the work of ten seconds and of one report.
func TestAWrongReportIsPaidOffSoon(t *testing.T) {
	q, now := wide(), start
	q.Limits.CatchUp = 10 * time.Second
	serve := func() *Ticket {
		now = now.Add(time.Second)
		served := q.Pop(now)
		q.Push(now, &Ticket{Tenant: served.Tenant, Tokens: 100_000})
		return served
	}
	q.Push(now, &Ticket{Tenant: "other", Tokens: 100_000})
	for range 100 {
		for _, tokens := range []float64{1, math.MaxUint64, math.Inf(1)} {
			q.ServedElsewhere(now, 0, "wronged", 1, tokens)
		}
		serve()
	}
	q.Push(now, &Ticket{Tenant: "wronged", Tokens: 100_000})
	most := 10 + 1 + maxReported/100_000
	turns := 0
	for serve().Tenant != "wronged" {
		if turns++; turns > most+1 {
			t.Fatalf("the tenant has no turn after %d requests of the other", turns)
		}
	}
	if turns < 5 {
		t.Errorf("the tenant has its turn after %d requests of the other: what was served elsewhere does not count", turns)
	}
}

// TestReportsOfWaitingRequestsEnd: they are bounded, at most for so long, and withdrawn reports leave nothing.
func TestReportsOfWaitingRequestsEnd(t *testing.T) {
	q := wide()
	for i := range 3 * maxElsewhere {
		q.WaitsElsewhere(start, 0, fmt.Sprint(i), 1, true)
	}
	if n := len(q.find(0).elsewhere); n != maxElsewhere {
		t.Errorf("%d tenants count as waiting elsewhere", n)
	}
	own := &Ticket{Level: -1, Tenant: "own"}
	q.Push(start, own)
	if now := start.Add(reportLasts); !own.Yields(q.Elsewhere(now)) {
		t.Error("a request of a lower level does not yield")
	}
	if turns := q.Elsewhere(start.Add(reportLasts + 1)); len(turns) > 0 {
		t.Errorf("reports last for more than a minute: %v", turns)
	}
	for i := range 10 {
		q.WaitsElsewhere(start, 0, fmt.Sprint(i), 1, true)
	}
	q.EachElsewhere(func(level int, tenant string) { q.WaitsElsewhere(start, level, tenant, 1, false) })
	q.WaitsElsewhere(start, 7, "a stranger", 1, false)
	if turns := q.Elsewhere(start); len(turns) > 0 || q.find(7) != nil {
		t.Errorf("after all reports were withdrawn: %v", turns)
	}
	for i := range 10_000 { // they do not keep empty flows
		q.Push(start, &Ticket{Tenant: fmt.Sprint("t", i), Tokens: 1})
		q.Pop(start)
	}
	if n := len(q.find(0).flows); n > 3000 {
		t.Errorf("%d flows are kept", n)
	}
}
