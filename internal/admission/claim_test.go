package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// door admits requests that cannot wait: at most so many at a time, and a request that finds no free place is refused.
type door struct {
	q      Queue
	now    time.Time
	busy   []time.Time // when each place is free again
	served map[string]float64
}

const (
	places = 20
	stay   = 200 * time.Millisecond
)

// ask has a request try. Where it is infeasible it never gets through.
func (d *door) ask(level int, tenant string, weight int, feasible bool) {
	ticket := &Ticket{Level: level, Tenant: tenant, Weight: weight, Tokens: 100, TTL: time.Nanosecond}
	var free []int
	for i, until := range d.busy {
		if !d.now.Before(until) {
			free = append(free, i)
		}
	}
	if len(free) > 1 || len(free) == 1 && !d.q.Ahead(d.now, level, tenant) {
		if feasible {
			d.q.Charge(d.now, ticket)
			d.served[tenant]++
			d.busy[free[0]] = d.now.Add(stay)
			return
		}
	}
	d.q.Push(d.now, ticket)
	d.q.Expire(d.now.Add(time.Nanosecond), true)
}

// run sends requests to a door for a minute, so many a second of each tenant.
func run(seed uint64, places int, perSecond []float64, weights []int, feasible func(tenant int) bool) *door {
	rng := rand.New(rand.NewPCG(seed, 5))
	d := &door{q: wide(), now: start, busy: make([]time.Time, places), served: map[string]float64{}}
	d.q.Limits.CatchUp = 10 * time.Second
	all := 0.0
	for _, r := range perSecond {
		all += r
	}
	for d.now.Sub(start) < time.Minute {
		d.now = d.now.Add(time.Duration(rng.ExpFloat64() / all * float64(time.Second)))
		x := rng.Float64() * all
		for i, r := range perSecond {
			if x -= r; x < 0 {
				d.ask(0, fmt.Sprint(i), weights[i], feasible(i))
				break
			}
		}
	}
	return d
}

func always(int) bool { return true }

// TestWhoCannotWaitGetsItsShareToo: at three times the capacity, each tenant that asks for more gets its share by weight,
// however much more often others ask, although no request ever waits; and next to nothing is left unused for that.
func TestWhoCannotWaitGetsItsShareToo(t *testing.T) {
	for seed := range uint64(5) {
		for _, c := range []struct {
			perSecond []float64
			weights   []int
		}{
			{[]float64{60, 60, 60, 120}, []int{1, 1, 1, 1}},
			{[]float64{50, 250}, []int{1, 1}},
			{[]float64{100, 200}, []int{2, 1}},
		} {
			d := run(seed, places, c.perSecond, c.weights, always)
			sum, weights := 0.0, 0
			for i, w := range c.weights {
				sum += d.served[fmt.Sprint(i)]
				weights += w
			}
			for i, w := range c.weights {
				fair := sum * float64(w) / float64(weights)
				asked := c.perSecond[i] * 60
				if got := d.served[fmt.Sprint(i)]; asked >= 1.5*fair && got < 0.9*fair {
					t.Errorf("seed %d: of %v with weights %v tenant %d got %.0f, its share is %.0f", seed, c.perSecond, c.weights, i, got, fair)
				}
			}
			if most := 60 * places / stay.Seconds(); sum < 0.9*most {
				t.Errorf("seed %d: of %v %.0f of %.0f places were used", seed, c.perSecond, sum, most)
			}
		}
	}
}

// TestWhoHasPriorityIsHeldBackForNobody: at three times the capacity, the tenant with the higher priority gets most of what
// it asks for, which is less than the capacity, and the other one nearly all of the rest. If it asks for what can never be
// served, that costs the other one a tenth at most.
func TestWhoHasPriorityIsHeldBackForNobody(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 6))
		for _, feasible := range []bool{true, false} {
			d := &door{q: wide(), now: start, busy: make([]time.Time, places), served: map[string]float64{}}
			d.q.Limits.CatchUp = 10 * time.Second
			high := 0.0
			for d.now.Sub(start) < time.Minute {
				d.now = d.now.Add(time.Duration(rng.ExpFloat64() / 300 * float64(time.Second)))
				if rng.IntN(5) == 0 {
					high++
					d.ask(10, "high", 1, feasible)
				} else {
					d.ask(-10, "low", 1, true)
				}
			}
			most := 60 * places / stay.Seconds()
			got, rest := d.served["high"], d.served["low"]
			if feasible && (got < 0.6*high || got+rest < 0.9*most) {
				t.Errorf("seed %d: of %.0f with the higher priority %.0f got through, of the others %.0f", seed, high, got, rest)
			}
			if !feasible && rest < 0.88*most {
				t.Errorf("seed %d: beside a tenant that is never served %.0f of %.0f places were used", seed, rest, most)
			}
		}
	}
}

// TestWhoCanNeverBeServedHoldsUpNobodyForLong: a tenant whose requests are all refused costs the others a tenth at most, also
// where there is but one place, so that none can be left besides.
func TestWhoCanNeverBeServedHoldsUpNobodyForLong(t *testing.T) {
	for seed := range uint64(5) {
		for _, n := range []int{1, places} {
			alone := run(seed, n, []float64{200}, []int{1}, always).served["0"]
			d := run(seed, n, []float64{200, 200}, []int{1, 1}, func(tenant int) bool { return tenant == 0 })
			if got := d.served["0"]; got < 0.88*alone || d.served["1"] != 0 {
				t.Errorf("seed %d, %d places: %.0f got through beside a tenant that is never served, %.0f alone", seed, n, got, alone)
			}
		}
	}
}

// TestWhileNobodyIsRefusedNobodyIsHeldBack, however much more one has had.
func TestWhileNobodyIsRefusedNobodyIsHeldBack(t *testing.T) {
	q := wide()
	q.Limits.CatchUp = 10 * time.Second
	now := start
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		q.Charge(now, &Ticket{Tenant: "much", Tokens: 1000})
		if q.Ahead(now, 0, "much") {
			t.Fatal("held back although no request was refused")
		}
	}
	q.Charge(now, &Ticket{Tenant: "little", Tokens: 1})
	q.Push(now, &Ticket{Tenant: "little", Tokens: 1, TTL: time.Millisecond})
	now = now.Add(time.Millisecond)
	if late := q.Expire(now, true); len(late) != 1 || !q.Ahead(now, 0, "much") || q.Ahead(now, 0, "little") || q.Ahead(now, 1, "much") {
		t.Error("the one that had more does not wait for the one that was refused, at that level")
	}
	if !q.Ahead(now, -1, "anyone") {
		t.Error("a request of a lower priority does not wait for the refused one")
	}
	waits := &Ticket{Tenant: "much", Tokens: 1}
	q.Push(now, waits)
	each := func() (is bool) {
		q.Urgent(now, func(_ *Ticket, held bool) bool { is = held; return true })
		return is
	}
	if !each() {
		t.Error("the waiting request is not held back")
	}
	q.Push(now, &Ticket{Level: -1, Tenant: "anyone", Tokens: 1})
	if !each() { // of the lower level, which is last
		t.Error("the waiting request of a lower priority is not held back")
	}
	now = now.Add(claimLasts + time.Millisecond)
	if q.Ahead(now, 0, "much") || each() {
		t.Error("it waits for longer than the claim lasts")
	}
}
