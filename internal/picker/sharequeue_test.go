package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// demand is requests of a tenant and a priority.
type demand struct {
	tenant, priority string
	// meets is the picker of its next request.
	meets func(rng *rand.Rand, pickers int) int
	// waiting is how many requests wait at a time; 0: a request is sent every so often.
	waiting int
	every   time.Duration

	rng    *rand.Rand // of lengths and times: equal in all contests
	due    time.Time
	served float64 // tokens
	waited float64 // seconds
}

// idleAtMost is how long the two engines can be idle in the ten seconds of a contest.
const idleAtMost = 200 * time.Millisecond

func anyPicker(rng *rand.Rand, pickers int) int { return rng.IntN(pickers) }

func firstPicker(*rand.Rand, int) int { return 0 }

// otherPicker is any but the first, if there are others.
func otherPicker(rng *rand.Rand, pickers int) int {
	if pickers == 1 {
		return 0
	}
	return 1 + rng.IntN(pickers-1)
}

// contest is demands for two engines that cannot serve all of them.
type contest struct {
	*fleet
	rng     *rand.Rand
	demands []*demand
	waiting []contender
	counts  time.Time // what is served from then on
	idle    time.Duration
}

type contender struct {
	of     *demand
	wait   *Wait
	tokens int
	since  time.Time
}

// newContest starts pickers with a queue. They exchange reports over links that take linkDelay; 0 for none.
func newContest(t *testing.T, pickers int, linkDelay time.Duration, tenants *TenantsSpec, demands ...*demand) *contest {
	t.Helper()
	c := &contest{fleet: newFleet(t, pickers, 2, policy.LeastPendingWork, linkDelay), rng: rand.New(rand.NewPCG(1, 17)), demands: demands}
	for _, p := range c.pickers {
		spec := *p.current.Load().pools[0].spec
		spec.Policy.Admission = queueing(t, 1).Policy.Admission
		a := &spec.Policy.Admission
		a.WaitBudget, a.Tenants, a.Limits.Requests, a.Limits.TTL = 250*time.Millisecond, tenants, 1000, time.Hour
		if err := p.Apply([]Spec{spec}); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range demands {
		d.rng = rand.New(rand.NewPCG(uint64(i), 18))
	}
	c.run(20 * time.Millisecond)
	return c
}

// play lets some time pass, and then counts what is served in the next ten seconds. Each millisecond, also is called.
func (c *contest) play(also func(now time.Time)) {
	c.counts = c.clock.Now().Add(2 * time.Second)
	for end := c.counts.Add(10 * time.Second); c.clock.Now().Before(end); {
		for _, d := range c.demands {
			for n := c.waits(d); n < d.waiting; n++ {
				c.ask(d)
			}
			for now := c.clock.Now(); d.every > 0 && !d.due.After(now); d.due = now.Add(time.Duration(d.rng.ExpFloat64() * float64(d.every))) {
				c.ask(d)
			}
		}
		c.run(time.Millisecond)
		also(c.clock.Now())
		for _, i := range c.rng.Perm(len(c.pickers)) {
			if c.rng.IntN(5) == 0 {
				c.pickers[i].Look()
			}
		}
		for c.release() {
		}
	}
}

func (c *contest) waits(d *demand) (n int) {
	for _, w := range c.waiting {
		if w.of == d {
			n++
		}
	}
	return n
}

func (c *contest) ask(d *demand) {
	w := contender{of: d, tokens: 100 + d.rng.IntN(1000), since: c.clock.Now()}
	headers := map[string]string{FairnessHeader: d.tenant, "x-gateway-inference-objective": d.priority}
	chosen, wait, err := c.pickers[d.meets(c.rng, len(c.pickers))].PickKeyed(&Keyed{
		Model: "m", Prompt: make([]uint32, w.tokens), Streamed: true, Header: func(name string) string { return headers[name] },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if w.wait = wait; wait != nil {
		c.waiting = append(c.waiting, w)
		return
	}
	c.serve(w, chosen)
}

// release sends what the pickers have released to engines, and reports whether there was something.
func (c *contest) release() (some bool) {
	c.waiting = slices.DeleteFunc(c.waiting, func(w contender) bool {
		d, over, err := w.wait.Poll()
		if err != nil {
			c.t.Fatal(err)
		}
		if over {
			some = true
			c.serve(w, d)
		}
		return over
	})
	return some
}

func (c *contest) serve(w contender, d *Decision) {
	at := slices.IndexFunc(c.pickers[0].current.Load().pools[0].spec.Endpoints, func(e endpoint.Endpoint) bool {
		return e.ID == d.Targets[0].Endpoint.ID
	})
	now := c.clock.Now()
	if c.free[at].Before(now) {
		if !now.Before(c.counts) {
			c.idle += now.Sub(c.free[at])
		}
		c.free[at] = now
	}
	c.free[at] = c.free[at].Add(time.Duration(float64(w.tokens) / prefillRate * float64(time.Second)))
	if !now.Before(c.counts) {
		w.of.served += float64(w.tokens)
		w.of.waited += now.Sub(w.since).Seconds() * float64(w.tokens)
	}
	c.after(c.free[at].Sub(now), func() {
		d.FirstToken()
		d.End(Completed)
	})
}

// byWeight are the tenants one, two and four, by a header, with these weights.
func byWeight() *TenantsSpec {
	spec, entries := &TenantsSpec{Header: FairnessHeader, Default: everybody, Classes: map[string]*tenant.Class{}}, []tenant.Entry(nil)
	for name, weight := range map[string]int{"one": 1, "two": 2, "four": 4} {
		spec.Classes[name] = &tenant.Class{Weight: weight}
		entries = append(entries, tenant.Entry{Name: name, Class: name})
	}
	spec.Known, _ = tenant.NewDirectory(entries)
	return spec
}

// TestATenantsShareIsThatOfOneReplica, within 3 % of the pool, with two and four replicas: where each request meets any of them, and where
// a balancer gives a tenant a replica of its own. The engines are not idle. Without the exchange such a tenant gets what its replica
// wins.
func TestATenantsShareIsThatOfOneReplica(t *testing.T) {
	play := func(pickers int, delay time.Duration, a, b demand) float64 {
		c := newContest(t, pickers, delay, byWeight(), &a, &b)
		c.play(func(time.Time) {})
		if c.idle > idleAtMost {
			t.Errorf("%d replicas: the engines are idle for %v", pickers, c.idle)
		}
		return a.served / (a.served + b.served)
	}
	for name, c := range map[string]struct{ a, b demand }{
		"both at any":            {demand{tenant: "one", meets: anyPicker, waiting: 6}, demand{tenant: "two", meets: anyPicker, waiting: 6}},
		"one of three at one":    {demand{tenant: "one", meets: firstPicker, waiting: 3}, demand{tenant: "two", meets: anyPicker, waiting: 9}},
		"four of five by itself": {demand{tenant: "four", meets: firstPicker, waiting: 3}, demand{tenant: "one", meets: otherPicker, waiting: 9}},
	} {
		one := play(1, 0, c.a, c.b)
		for _, pickers := range []int{2, 4} {
			share := play(pickers, time.Millisecond, c.a, c.b)
			if math.Abs(share-one) > 0.03 {
				t.Errorf("%s: %d replicas: a share of %.3f, with one %.3f", name, pickers, share, one)
			}
			t.Logf("%s: a share of %.3f with one replica, %.3f with %d", name, one, share, pickers)
			if c.a.tenant != "four" {
				continue
			}
			if apart := play(pickers, 0, c.a, c.b); apart > one-0.2 {
				t.Errorf("%d replicas that report nothing: a share of %.3f: the test shows nothing", pickers, apart)
			}
		}
	}
}

// TestAPriorityHoldsAtOtherReplicas: requests of a high priority at one replica have their turn before those of a low one that wait at
// others. They wait little longer than with one replica, and much longer without the exchange. The engines are not idle for that, and
// tenants need not be distinguished.
func TestAPriorityHoldsAtOtherReplicas(t *testing.T) {
	play := func(pickers int, delay time.Duration) (wait float64) {
		high := demand{priority: "high", meets: firstPicker, every: 100 * time.Millisecond}
		low := demand{priority: "low", meets: otherPicker, waiting: 9}
		c := newContest(t, pickers, delay, nil, &high, &low)
		c.play(func(time.Time) {})
		if c.idle > idleAtMost {
			t.Errorf("%d replicas: the engines are idle for %v", pickers, c.idle)
		}
		return high.waited / high.served
	}
	one := play(1, 0)
	for _, pickers := range []int{2, 4} {
		wait, apart := play(pickers, time.Millisecond), play(pickers, 0)
		t.Logf("%d replicas: requests wait %.3f s, with one %.3f s, with %d that report nothing %.3f s", pickers, wait, one, pickers, apart)
		if wait > one+0.3 {
			t.Errorf("%d replicas: requests wait %.3f s, with one %.3f s", pickers, wait, one)
		}
		if apart < 2*wait || apart < one+0.5 {
			t.Errorf("%d replicas that report nothing: requests wait %.3f s: the test shows nothing", pickers, apart)
		}
	}
}

// TestAPeerThatReportsNonsenseHoldsUpNone: whatever a peer says of tenants that wait and were served, the engines are not idle. Once the
// peer is gone nothing waits elsewhere.
func TestAPeerThatReportsNonsenseHoldsUpNone(t *testing.T) {
	play := func(lies uint64) {
		own := demand{tenant: "one", meets: firstPicker, waiting: 6}
		c := newContest(t, 1, 0, byWeight(), &own)
		p := c.pickers[0]
		pool := p.current.Load().pools[0]
		n := uint64(0)
		c.play(func(now time.Time) {
			for range lies {
				n++
				p.Spent(now, pool.name, 99, fmt.Sprint(n%5000), tenant.Usage{Queued: []tenant.Queued{
					{Level: 10, Served: n << 50, Waiting: true}, {Served: n << 50, Waiting: true}, {Level: int(n), Served: n, Waiting: true}}})
			}
			for _, name := range []string{"one", "two"} {
				p.Spent(now, pool.name, 99, name, tenant.Usage{Queued: []tenant.Queued{{Served: n << 40, Waiting: n%2 == 0}}})
			}
		})
		p.Lost(99)
		if turns := pool.admission.tickets.Elsewhere(c.clock.Now()); len(turns) > 0 {
			t.Errorf("after the peer is gone: %v", turns)
		}
		if c.idle > idleAtMost {
			t.Errorf("with %d false reports in a millisecond the engines are idle for %v", lies, c.idle)
		}
	}
	play(0)
	play(2)
}
