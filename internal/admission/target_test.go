package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestAFirstTokenIsNeverPredictedSoonerForMore: more to prefill, a longer prompt, more that decodes or an engine that is
// overdue never bring a first token nearer, and never make room.
func TestAFirstTokenIsNeverPredictedSoonerForMore(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		v := load.View{
			InFlight: rng.IntN(3), PendingTokens: float64(rng.IntN(3) * rng.IntN(20_000)), Rate: float64(rng.IntN(2) * (1 + rng.IntN(50_000))),
			PairSeconds: 1e-9 * rng.Float64(), Overhead: 0.02 * rng.Float64(), ContextSeconds: 1e-7 * rng.Float64(),
			DecodingTokens: 1e6 * rng.Float64(), KVUsage: rng.Float64(), KVTokens: 400_000, Slots: rng.IntN(2) * rng.IntN(4),
		}
		w := load.WorkOf(rng.IntN(30_000), rng.IntN(30_000))
		worse, more := v, w
		if rng.IntN(2) == 0 {
			v.Due = time.Duration(1 + rng.IntN(int(time.Second)))
			worse.Due = v.Due
		}
		switch rng.IntN(6) {
		case 5:
			worse.Due = v.Due / 2
		case 0:
			worse.PendingTokens += float64(rng.IntN(5000))
		case 1:
			worse.Overdue += rng.Float64()
		case 2:
			worse.DecodingTokens *= 2
		case 3:
			worse.InFlight++
		case 4:
			more = load.WorkOf(int(w.Tokens)+rng.IntN(5000), int(w.Context-w.Tokens))
		}
		if a, b := FirstTokenAlone(&v, w), FirstTokenAlone(&worse, more); b < a {
			t.Fatalf("alone %v for %+v at %+v, but %v for %+v at %+v", a, w, v, b, more, worse)
		}
		if a, b := FirstToken(&v, w), FirstToken(&worse, more); b < a {
			t.Fatalf("%v for %+v at %+v, but %v for %+v at %+v", a, w, v, b, more, worse)
		}
		if !Joins(&v, w) && Joins(&worse, more) || !Fits(&v, int(w.Tokens), 0) && Fits(&worse, int(more.Tokens), 0) {
			t.Fatalf("room for %+v at %+v, but not for %+v at %+v", more, worse, w, v)
		}
	}
}

func TestWhoJoinsAPrefill(t *testing.T) {
	small, large := load.WorkOf(500, 0), load.WorkOf(50_000, 0)
	idle := load.View{Rate: 20_000}
	busy := load.View{Rate: 20_000, PendingTokens: 400, InFlight: 1}
	overdue := load.View{Rate: 20_000, InFlight: 1, Overdue: 0.1}
	due := func(in time.Duration) *load.View {
		return &load.View{Rate: 20_000, PendingTokens: 400, InFlight: 1, Overhead: 0.01, Due: in}
	}
	stuck := load.View{Rate: 20_000, InFlight: 3, Waiting: 2, Prefilling: 2}
	for _, c := range []struct {
		name string
		v    *load.View
		w    load.Work
		want bool
	}{
		{"anything, where nothing has to be prefilled", &idle, large, true},
		{"50 ms together", &busy, small, true},
		{"more than that", &busy, large, false},
		{"behind what takes longer than it should", &overdue, small, false},
		{"a request that leaves the present ones in time", due(46 * time.Millisecond), small, true},
		{"a request that makes the present ones late", due(44 * time.Millisecond), small, false},
		{"behind two that wait in the engine", &stuck, small, false},
	} {
		if got := Joins(c.v, c.w); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestAnEndpointIsFullBeforeItsBlocksOrPlacesAre(t *testing.T) {
	v := load.View{InFlight: 4, KVUsage: 0.1, KVTokens: 100_000, PendingTokens: 20_000}
	if !Fits(&v, 20_000, 0) || Fits(&v, 20_001, 0) {
		t.Error("what is in use, what waits and the request are half of the blocks at most")
	}
	if !Fits(&v, 5_000, 50_000) || Fits(&v, 5_001, 50_000) {
		t.Error("of what is cached a third is not in use yet")
	}
	v.Slots = 4
	if Fits(&v, 1, 0) {
		t.Error("an engine that runs four has no place for a fifth")
	}
	idle := load.View{KVUsage: 1, KVTokens: 10}
	if !Fits(&idle, 1000, 0) {
		t.Error("an endpoint that serves nothing can be tried")
	}
}

// TestAnIdleEndpointIsInTimeForEveryPrompt, however short: its first token arrives after its unloaded time.
func TestAnIdleEndpointIsInTimeForEveryPrompt(t *testing.T) {
	v := load.View{Rate: 45_000, PairSeconds: 1e-9, Overhead: 0.009, ContextSeconds: 5e-8, Trust: 1}
	var p Pace
	p.Add(&v)
	for tokens := 1; tokens < 200_000; tokens += 1 + tokens/10 {
		w := load.WorkOf(tokens, 0)
		if first, unloaded := FirstTokenAlone(&v, w), p.Prefill(w); first > unloaded+time.Microsecond || !Joins(&v, w) {
			t.Fatalf("a prompt of %d tokens: %v, unloaded %v", tokens, first, unloaded)
		}
	}
}

func TestThePaceIsTheMeanOfWhatWasTaught(t *testing.T) {
	var p Pace
	p.Add(&load.View{})
	if p.Known() || p.Prefill(load.WorkOf(1000, 0)) != 0 {
		t.Error("known without observations")
	}
	p.Add(&load.View{Rate: 10_000, Overhead: 0.1, Trust: 1})
	p.Add(&load.View{Rate: 5_000, Overhead: 0.1, Trust: 1})
	if d := p.Prefill(load.WorkOf(1000, 0)); d != 250*time.Millisecond {
		t.Errorf("1000 tokens at 0.1 and 0.2 ms each, after 0.1 s: %v", d)
	}
}

// TestATenantKeepsItsClaimForAWhile: with CatchUp a tenant gets what it did not ask for in that time, and nothing of what
// lies farther back; what it was given without waiting counts.
func TestATenantKeepsItsClaimForAWhile(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for _, c := range []struct {
		away, catchUp, want int // seconds, seconds, requests in a row
	}{{5, 10, 5}, {100, 10, 11}, {100, 0, 1}} {
		q := wide()
		q.Limits.CatchUp = time.Duration(c.catchUp) * time.Second
		q.Charge(at(0), &Ticket{Tenant: "away", Tokens: 100})
		for s := range c.away { // 100 tokens a second go to the other one
			q.Charge(at(s), &Ticket{Tenant: "steady", Tokens: 100})
		}
		for range 200 {
			q.Push(at(c.away), &Ticket{Tenant: "steady", Tokens: 100})
			q.Push(at(c.away), &Ticket{Tenant: "away", Tokens: 100})
		}
		n := 0
		for q.Pop(at(c.away)).Tenant == "away" {
			n++
		}
		if n < c.want-2 || n > c.want+2 {
			t.Errorf("away for %d s with a claim of %d s: %d requests in a row, want about %d", c.away, c.catchUp, n, c.want)
		}
	}
}

// TestTheUrgentGoInTheOrderOfTurns: by level, then by what the tenant has had, running sessions first, then by the time left.
func TestTheUrgentGoInTheOrderOfTurns(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 9))
		q := wide()
		had := map[string]float64{}
		for i := range 4 {
			who := fmt.Sprint(i)
			had[who] = float64(1 + rng.IntN(1000))
			for level := range 2 {
				q.Charge(start, &Ticket{Level: level, Tenant: who, Tokens: had[who]})
			}
		}
		for range 60 {
			q.Push(start, &Ticket{Level: rng.IntN(2), Tenant: fmt.Sprint(rng.IntN(4)), Tokens: 10, Running: rng.IntN(2) == 0, TTL: time.Duration(1+rng.IntN(1000)) * time.Second})
		}
		var all []*Ticket
		q.Urgent(start, func(ticket *Ticket, _ bool) bool {
			all = append(all, ticket)
			return true
		})
		if len(all) != 60 {
			t.Fatalf("seed %d: %d of 60", seed, len(all))
		}
		for i, b := range all[1:] {
			a := all[i]
			inOrder := a.Level > b.Level || a.Level == b.Level && (had[a.Tenant] < had[b.Tenant] ||
				had[a.Tenant] == had[b.Tenant] && (a.Tenant != b.Tenant || a.Running && !b.Running || a.Running == b.Running && a.TTL <= b.TTL))
			if !inOrder {
				t.Fatalf("seed %d: %+v goes before %+v", seed, a, b)
			}
		}
		n := 0
		q.Urgent(start, func(ticket *Ticket, _ bool) bool {
			n++
			q.Take(start, ticket)
			return false
		})
		if n != 1 || q.Len() != 59 {
			t.Fatalf("seed %d: %d were offered, %d wait", seed, n, q.Len())
		}
	}
}
