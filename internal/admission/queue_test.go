package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func wide() Queue {
	return Queue{Limits: Limits{Requests: 1 << 20, Bytes: 1 << 40, TTL: time.Hour, Hold: time.Hour}}
}

// check compares everything that the queue keeps about what waits with the tickets that should.
func check(t *testing.T, q *Queue, waiting []*Ticket) {
	t.Helper()
	bytes, tokens, inLists := int64(0), 0.0, 0
	for _, ticket := range waiting {
		bytes += ticket.Bytes
		tokens += ticket.Cost()
		if ticket.flow == nil {
			t.Fatal("a ticket that waits is in no flow")
		}
	}
	for i, l := range q.levels {
		if i > 0 && q.levels[i-1].number <= l.number {
			t.Fatal("the levels are out of order")
		}
		if len(l.active) == 0 {
			t.Fatal("an empty level is kept")
		}
		for _, f := range l.active {
			inLists += f.all.Len()
			sum, news := 0.0, 0
			for e := f.all.Front(); e != nil; e = e.Next() {
				sum += e.Value.(*Ticket).Cost()
				if !e.Value.(*Ticket).Running {
					news++
				}
			}
			if math.Abs(sum-f.tokens) > 1e-6 || news != f.news.Len() {
				t.Fatalf("a flow counts %v tokens and %d new ones, it has %v and %d", f.tokens, f.news.Len(), sum, news)
			}
		}
	}
	if q.Len() != len(waiting) || inLists != len(waiting) || q.Bytes() != bytes || math.Abs(q.Tokens()-tokens) > 1e-6 {
		t.Fatalf("%d tickets (%d in lists), %d bytes, %v tokens; want %d, %d, %v", q.Len(), inLists, q.Bytes(), q.Tokens(), len(waiting), bytes, tokens)
	}
}

// TestTheQueueKeepsItsLaws plays random pushes, pops, removals and expiries. A popped request is of the highest level and
// the first of its tenant; bounds hold; a request that leaves leaves nothing behind.
func TestTheQueueKeepsItsLaws(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		q := Queue{Limits: Limits{Requests: 1 + rng.IntN(30), Bytes: int64(1 + rng.IntN(3000)), TTL: 20 * time.Second, Hold: 40 * time.Second, NewestFirst: rng.IntN(2) == 0}}
		now := start
		var waiting []*Ticket
		drop := func(gone ...*Ticket) {
			for _, g := range gone {
				i := slices.Index(waiting, g)
				if i < 0 {
					t.Fatalf("seed %d: a ticket left that did not wait", seed)
				}
				waiting = slices.Delete(waiting, i, i+1)
			}
		}
		for range 400 {
			now = now.Add(time.Duration(rng.IntN(1500)) * time.Millisecond)
			switch op := rng.IntN(10); {
			case op < 6:
				ticket := &Ticket{
					Level: rng.IntN(3) - 1, Tenant: fmt.Sprint(rng.IntN(4)), Weight: 1 + rng.IntN(3), Tokens: float64(rng.IntN(5000)),
					Bytes: int64(rng.IntN(500)), Running: rng.IntN(2) == 0, TTL: time.Duration(rng.IntN(2)*rng.IntN(30)) * time.Second,
				}
				waiting = append(waiting, ticket)
				shed := q.Push(now, ticket)
				for _, s := range shed {
					for _, w := range waiting {
						if w.Level < s.Level && s.Bytes <= q.Limits.Bytes && !slices.Contains(shed, w) {
							t.Fatalf("seed %d: level %d was shed while level %d waits", seed, s.Level, w.Level)
						}
					}
				}
				drop(shed...)
			case op < 8:
				var turn *Ticket
				q.EachTenant(func(list []*Ticket) bool { turn = list[0]; return false })
				popped := q.Pop(start)
				if popped != turn {
					t.Fatalf("seed %d: %+v is popped, whose turn it is %+v", seed, popped, turn)
				}
				if (popped == nil) != (len(waiting) == 0) {
					t.Fatalf("seed %d: popped %v of %d", seed, popped, len(waiting))
				}
				if popped == nil {
					continue
				}
				for _, w := range waiting {
					if w.Level > popped.Level {
						t.Fatalf("seed %d: level %d went before level %d", seed, popped.Level, w.Level)
					}
				}
				first := waiting[slices.IndexFunc(waiting, func(w *Ticket) bool { return w.Level == popped.Level && w.Tenant == popped.Tenant })]
				if first != popped {
					t.Fatalf("seed %d: a later request of the same tenant was popped before an earlier one", seed)
				}
				drop(popped)
			case op == 8:
				if len(waiting) > 0 {
					gone := waiting[rng.IntN(len(waiting))]
					if !q.Remove(gone) || q.Remove(gone) {
						t.Fatalf("seed %d: removal", seed)
					}
					drop(gone)
				}
			default:
				open := rng.IntN(3) > 0
				drop(q.Expire(now, open)...)
				for _, w := range waiting {
					if !open && now.Sub(w.pushed) >= q.Limits.Hold {
						t.Fatalf("seed %d: held for %v", seed, now.Sub(w.pushed))
					}
					if open && now.Sub(w.pushed) >= w.TTL && now.Sub(q.opened) >= w.TTL {
						t.Fatalf("seed %d: waits for %v, its time is %v", seed, now.Sub(w.pushed), w.TTL)
					}
				}
			}
			if q.Len() > q.Limits.Requests || q.Bytes() > q.Limits.Bytes {
				t.Fatalf("seed %d: %d requests, %d bytes wait", seed, q.Len(), q.Bytes())
			}
			check(t, &q, waiting)
		}
	}
}

// TestTenantsShareByWeight: of tenants that always have something waiting, none gets more than a request's worth ahead
// of its share, whatever their requests cost; and what a tenant does in between does not help it.
func TestTenantsShareByWeight(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		q := wide()
		n := 2 + rng.IntN(5)
		weights, largest, served := make([]int, n), make([]float64, n), make([]float64, n)
		push := func(i int) {
			q.Push(start, &Ticket{Tenant: fmt.Sprint(i), Weight: weights[i], Tokens: 1 + rng.Float64()*largest[i]})
		}
		for i := range n {
			weights[i], largest[i] = 1+rng.IntN(8), 10+rng.Float64()*5000
			for range 1 + rng.IntN(20) {
				push(i)
			}
		}
		for range 2000 {
			ticket := q.Pop(start)
			var i int
			_, _ = fmt.Sscan(ticket.Tenant, &i)
			served[i] += ticket.Cost()
			push(i) // after the pop: a tenant can have had just one waiting
			for a := range n {
				for b := range n {
					ahead := served[a]/float64(weights[a]) - served[b]/float64(weights[b])
					if most := (largest[a]+1)/float64(weights[a]) + (largest[b]+1)/float64(weights[b]); ahead > most {
						t.Fatalf("seed %d: tenant %d is %v ahead of tenant %d, %v would be fair", seed, a, ahead, b, most)
					}
				}
			}
		}
	}
}

func TestATenantThatComesBackIsNotAheadOfTheOthers(t *testing.T) {
	q := wide()
	for range 200 {
		q.Push(start, &Ticket{Tenant: "steady", Tokens: 100})
	}
	for range 100 {
		q.Pop(start)
	}
	for range 100 { // it has had nothing so far, and does not get that now
		q.Push(start, &Ticket{Tenant: "late", Tokens: 100})
	}
	got := map[string]int{}
	for range 50 {
		got[q.Pop(start).Tenant]++
	}
	if got["late"] > 26 || got["late"] < 24 {
		t.Errorf("of 50 the tenant that came late got %d", got["late"])
	}
}

// TestAHogDoesNotTakeTheQueue: a tenant that floods a full queue sheds its own requests.
func TestAHogDoesNotTakeTheQueue(t *testing.T) {
	q := wide()
	q.Limits.Requests = 100
	for range 100 {
		q.Push(start, &Ticket{Tenant: "hog", Tokens: 1000, Running: true})
	}
	for i := range 40 {
		ticket := &Ticket{Tenant: "small", Tokens: 1000}
		if shed := q.Push(start, ticket); len(shed) != 1 || shed[0].Tenant != "hog" {
			t.Fatalf("request %d of the small tenant shed %v", i, shed[0])
		}
	}
	ticket := &Ticket{Tenant: "hog", Tokens: 1000, Running: true}
	if shed := q.Push(start, ticket); len(shed) != 1 || shed[0].Tenant != "hog" {
		t.Fatalf("the hog shed %v", shed[0])
	}
}

func TestWhoIsShedFirst(t *testing.T) {
	fill := func(newest bool, tickets ...*Ticket) *Queue {
		q := wide()
		q.Limits.Requests, q.Limits.NewestFirst = len(tickets), newest
		for _, ticket := range tickets {
			if shed := q.Push(start, ticket); len(shed) > 0 {
				t.Fatal("shed before it is full")
			}
		}
		return &q
	}
	one := func(q *Queue, ticket *Ticket) *Ticket {
		shed := q.Push(start, ticket)
		if len(shed) != 1 {
			t.Fatalf("%d were shed", len(shed))
		}
		return shed[0]
	}
	batch, fresh, running := &Ticket{Level: -10}, &Ticket{}, &Ticket{Running: true}
	if got := one(fill(false, fresh, batch, running), &Ticket{Running: true}); got != batch {
		t.Error("want a request of the lowest level shed")
	}
	fresh, running = &Ticket{}, &Ticket{Running: true}
	if got := one(fill(false, fresh, running), &Ticket{Running: true}); got != fresh {
		t.Error("a new session goes before a running one")
	}
	fresh, running = &Ticket{}, &Ticket{Running: true}
	if newest := (&Ticket{Running: true}); one(fill(true, fresh, running), newest) != newest {
		t.Error("with NewestFirst the newest goes")
	}
	low := &Ticket{Level: -1}
	if one(fill(false, &Ticket{}, &Ticket{}), low) != low {
		t.Error("a request of a lower level displaced another one")
	}
	q := fill(false, &Ticket{Bytes: 10})
	q.Limits.Bytes = 100
	if huge := (&Ticket{Level: 5, Bytes: 101}); one(q, huge) != huge || q.Len() != 1 {
		t.Error("a request that can never wait displaced another one")
	}
	q = fill(false)
	if own := (&Ticket{}); one(q, own) != own {
		t.Error("a queue of length 0 kept a request")
	}
}

func TestAHeldRequestGetsItsOwnTimeWhenThePoolIsServedAgain(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	q := Queue{Limits: Limits{Requests: 10, Bytes: 1, TTL: 10 * time.Second, Hold: 300 * time.Second}}
	q.Expire(at(0), false)
	held := &Ticket{}
	q.Push(at(0), held)
	for _, s := range []int{11, 100, 299} {
		if late := q.Expire(at(s), false); len(late) > 0 {
			t.Fatalf("given up after %d s of 300", s)
		}
	}
	if late := q.Expire(at(299), true); len(late) > 0 {
		t.Fatal("given up when the pool came back")
	}
	if late := q.Expire(at(308), true); len(late) > 0 {
		t.Fatal("given up before its time after the pool came back")
	}
	if late := q.Expire(at(309), true); len(late) != 1 || late[0] != held {
		t.Fatal("waits longer than its time")
	}
	q.Push(at(400), held)
	if late := q.Expire(at(700), false); len(late) != 1 {
		t.Fatal("held for longer than 300 s")
	}
}

func TestEmptyFlowsAreForgotten(t *testing.T) {
	q := wide()
	q.Push(start, &Ticket{Tenant: "steady", Tokens: 1e9}) // keeps the level alive
	for i := range 10_000 {
		q.Push(start, &Ticket{Tenant: fmt.Sprint(i), Tokens: 1})
		q.Pop(start)
		if i%2 == 0 {
			q.Push(start, &Ticket{Tenant: "steady", Tokens: 1})
		}
	}
	if n := len(q.levels[0].flows); n > 2000 {
		t.Errorf("%d flows are kept", n)
	}
}

func TestBacklog(t *testing.T) {
	busy := load.View{PendingTokens: 100_000, Rate: 10_000, Trust: 1}
	if w := Backlog(&busy); w != 10*time.Second {
		t.Errorf("100,000 tokens at 10,000/s: %v", w)
	}
	long := load.View{PendingTokens: 100_000, PendingPairs: 5e9, Rate: 40_000, PairSeconds: 1.2e-9, Trust: 1}
	if w := Backlog(&long); w != 8500*time.Millisecond {
		t.Errorf("a long prompt's attention counts: %v", w)
	}
	idle := load.View{Rate: 10, Overhead: 1000, Trust: 1}
	if w := Backlog(&idle); w != 0 {
		t.Errorf("an endpoint with nothing to prefill lets nothing wait, whatever was learned of it: %v", w)
	}
	if d := Prefill(&busy, load.Work{Tokens: 5000}); d != 500*time.Millisecond {
		t.Errorf("5000 tokens at 10,000/s by themselves: %v", d)
	}
}

func TestRetryAfterFollowsWhatGoesThrough(t *testing.T) {
	var f Flow
	now := start
	if f.RetryAfter(now, 1000) != time.Minute {
		t.Error("when nothing goes through, a minute")
	}
	for range 600 { // 1000 tokens/s
		now = now.Add(100 * time.Millisecond)
		f.Passed(now, &Ticket{Tokens: 100})
	}
	if d := f.RetryAfter(now, 20_000); d < 18*time.Second || d > 22*time.Second {
		t.Errorf("20,000 tokens at 1000/s: %v", d)
	}
	if d := f.RetryAfter(now, 10); d != time.Second {
		t.Errorf("10 tokens: %v", d)
	}
}

func BenchmarkQueue(b *testing.B) {
	for _, tenants := range []int{1, 1000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			q := wide()
			tickets := make([]*Ticket, 10_000)
			for i := range tickets {
				tickets[i] = &Ticket{Tenant: fmt.Sprint(i % tenants), Tokens: float64(i % 100)}
				q.Push(start, tickets[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				q.Push(start, q.Pop(start))
			}
		})
	}
}
