package picker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// TestAllCountersAreZeroAfterChaos: requests of many clients report all their events, in any order and more than once, and
// end in every way, while endpoints are added and removed and strategies change. When the last has ended nothing is counted
// of any of them, on any endpoint that ever existed.
func TestAllCountersAreZeroAfterChaos(t *testing.T) {
	const clients, requests = 8, 250
	clock := newClock()
	spec := testSpec(t, 4)
	spec.Policy.LogPercent = 50
	spec.Policy.SessionKeys = []SessionKey{{Type: "Header", Name: "x-session-id"}}
	spec.Policy.Shadows = []ShadowSpec{{Name: "s", Strategy: policy.Default(policy.ApproximatePrefix), Percent: 50}}
	spec.Policy.Admission.Tenants = &TenantsSpec{Header: "x-tenant", Default: &tenant.Class{Weight: 1, MaxConcurrent: clients}}
	p := newPicker(t, clock, spec)

	var mu sync.Mutex
	ever := map[*member]bool{}
	remember := func() *view {
		v := p.current.Load().pools[0]
		mu.Lock()
		defer mu.Unlock()
		for _, m := range v.members {
			ever[m] = true
		}
		return v
	}
	remember()

	var wg sync.WaitGroup
	stop := make(chan struct{})
	for client := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 31))
			for n := range requests {
				headers := map[string]string{"x-session-id": fmt.Sprint(rng.IntN(20)), "x-tenant": fmt.Sprint("tenant-", rng.IntN(3))}
				d, err := p.Pick(context.Background(), &Request{
					Route: openai.Completions, Body: completion("m", 5000*rng.IntN(4), 1+rng.IntN(600), rng.IntN(3) > 0),
					Header: func(name string) string { return headers[name] },
				})
				if err != nil {
					t.Error(err)
					return
				}
				for range rng.IntN(10) {
					reportAtRandom(d, rng, &spec)
					if rng.IntN(4) == 0 {
						clock.advance(time.Duration(rng.IntN(200)) * time.Millisecond)
					}
				}
				if n%7 == 0 {
					d.Leave(Unreported)
				} else {
					d.End(Outcome(rng.IntN(numOutcomes)))
				}
				reportAtRandom(d, rng, &spec) // late reports
			}
		})
	}
	changes := make(chan struct{})
	go func() {
		defer close(changes)
		rng := rand.New(rand.NewPCG(99, 31))
		for {
			select {
			case <-stop:
				return
			default:
			}
			next := spec
			next.Endpoints = nil
			for i := range 4 {
				if i == 0 || rng.IntN(3) > 0 {
					e := testEndpoint(i)
					if rng.IntN(10) == 0 {
						e.Address = "127.0.0.1:9999" // another life
					}
					next.Endpoints = append(next.Endpoints, e)
				}
			}
			next.Policy.Strategy = policy.Default(policy.Types()[rng.IntN(len(policy.Types()))])
			if err := p.Apply([]Spec{next}); err != nil {
				t.Error(err)
			}
			remember()
			for _, f := range p.Feeds() {
				p.Observe(f.Endpoint.ID, clock.Now(), load.Report{Running: rng.IntN(5), KVUsage: rng.Float64(), KVTokens: 1000})
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-changes

	clock.advance(time.Hour) // for requests whose end was not reported
	v := remember()
	v.pending.expire(clock.Now())
	for m := range ever {
		l := m.load.View(clock.Now())
		if l.InFlight != 0 || l.Decoding != 0 || l.Prefilling != 0 || l.PendingTokens != 0 || l.PendingPairs != 0 || l.PendingContext != 0 || l.DecodingTokens != 0 {
			t.Errorf("load %+v remains", l)
		}
		if m.circuit.Probed() {
			t.Error("an endpoint is marked as tried without a probe")
		}
	}
	for i := range 3 {
		if n := v.meters.UnderWay(fmt.Sprint("tenant-", i)); n != 0 {
			t.Errorf("%d requests of tenant %d are under way", n, i)
		}
	}
	stats := p.Stats()[0]
	if total := stats.Outcomes; total[Unreported] == 0 || total[Completed] == 0 || total[Failed] == 0 {
		t.Errorf("outcomes %v: the chaos is too tame", total)
	}
	assertIdle(t, p)
}

// reportAtRandom reports random events to a decision.
func reportAtRandom(d *Decision, rng *rand.Rand, spec *Spec) {
	switch rng.IntN(7) {
	case 0:
		d.Begin(rng.IntN(len(d.Targets) + 1))
	case 1:
		d.FirstToken()
	case 2:
		d.Usage(100, rng.IntN(100)-1)
	case 3:
		d.Fail()
	case 4:
		for _, passed := range d.Served(spec.Endpoints[rng.IntN(len(spec.Endpoints))].Address, 3, rng.IntN(4)) {
			[]func(){passed.Dead, passed.Alive, passed.Silent}[rng.IntN(3)]()
		}
	case 5:
		d.Generated(rng.IntN(50))
	default:
		d.End(Outcome(rng.IntN(numOutcomes)))
	}
}
