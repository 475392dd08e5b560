package picker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// waiting is a pool with the default strategy, whose requests wait for an endpoint with more than a quarter of a second of
// prefill to do. Nothing is learned, so that endpoints prefill 20,000 tokens/s.
func waitingPool(t testing.TB, endpoints int) Spec {
	spec := queueing(t, endpoints)
	spec.Policy.Strategy = policy.Default(policy.MarginalCost)
	spec.Policy.Admission.WaitBudget = 250 * time.Millisecond
	spec.Policy.Admission.Limits.Requests = 1024
	return spec
}

// busyWith books so many tokens of prefill at a pod.
func busyWith(t testing.TB, p *Picker, pod string, tokens int) *load.Booking {
	t.Helper()
	v := p.current.Load().pools[0]
	for i := range v.spec.Endpoints {
		if v.spec.Endpoints[i].Pod == pod {
			return v.members[i].load.Book(p.now(), load.WorkOf(tokens, 0), true)
		}
	}
	t.Fatalf("no pod %s", pod)
	return nil
}

// lookAt lets the pool's waiting requests be looked at, as time does.
func lookAt(p *Picker) { p.current.Load().pools[0].admission.look() }

// TestARequestWaitsForTheEndpointThatHoldsItsPrompt: while another endpoint has nothing to do, if waiting takes less time
// than computing the prompt there, and it goes to the other one if it does not. So does every strategy.
func TestARequestWaitsForTheEndpointThatHoldsItsPrompt(t *testing.T) {
	const prompt = 40_000 // 2 s
	for _, strategy := range []policy.Type{policy.MarginalCost, policy.LongestPrefix, policy.LMetric} {
		for _, tc := range []struct {
			pending int
			waits   bool
		}{{1000, false}, {10_000, true}, {400_000, false}} {
			t.Run(fmt.Sprint(strategy, tc.pending), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					spec := waitingPool(t, 2)
					spec.Policy.Strategy = policy.Default(strategy)
					p := started(t, spec)
					keys := keysOf(t, "m", 0, prompt)
					holder := p.Feeds()[0]
					hold(holder, keys...)
					busy := busyWith(t, p, holder.Endpoint.Pod, tc.pending)
					a := asking(t.Context(), p, 0, prompt, nil)
					if tc.waits {
						waits(t, a, "its holder has half a second to do")
						busy.FirstToken(time.Now())
						time.Sleep(lookAgain)
					}
					got := now(t, a, "in the end")
					if got.err != nil {
						t.Fatal(got.err)
					}
					at := got.d.Targets[0].Endpoint.Pod
					if there := at == holder.Endpoint.Pod; there != (tc.pending < 100_000) {
						t.Errorf("with %d tokens to prefill at the holder it went to %s", tc.pending, at)
					}
					got.d.End(Completed)
					busy.Release(time.Now())
				})
			})
		}
	}
}

// TestAnEndpointShortOfKVBlocksIsWaitedFor: a request does not make a copy of its prompt elsewhere because its holder is
// full for a moment.
func TestAnEndpointShortOfKVBlocksIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := started(t, waitingPool(t, 2))
		keys := keysOf(t, "m", 0, 40_000)
		holder := p.Feeds()[0]
		hold(holder, keys...)
		report := func(usage float64) {
			p.Observe(holder.Endpoint.ID, time.Now(), load.Report{Running: 1, KVUsage: usage, KVTokens: 50_000})
		}
		running := busyWith(t, p, holder.Endpoint.Pod, 100)
		running.FirstToken(time.Now())
		report(0.99)
		a := asking(t.Context(), p, 0, 40_000, nil)
		waits(t, a, "its holder is full")
		report(0.4)
		time.Sleep(lookAgain)
		got := now(t, a, "its holder is not full any more")
		if got.err != nil || got.d.Targets[0].Endpoint.Pod != holder.Endpoint.Pod {
			t.Fatalf("%+v", got)
		}
		got.d.End(Completed)
		running.Release(time.Now())
	})
}

// TestNoRequestWaitsForAnEndpointThatMakesNoProgress while another one has nothing to do: an engine that has stopped, one
// whose cache a long answer fills, and one at the limit of its queue.
func TestNoRequestWaitsForAnEndpointThatMakesNoProgress(t *testing.T) {
	for name, stuck := range map[string]func(t *testing.T, p *Picker, holder Feed){
		"stopped": func(t *testing.T, p *Picker, holder Feed) { busyWith(t, p, holder.Endpoint.Pod, 10_000) },
		"stopped, and its speed is known": func(t *testing.T, p *Picker, holder Feed) {
			for range 20 {
				b := busyWith(t, p, holder.Endpoint.Pod, 2000)
				time.Sleep(100 * time.Millisecond)
				b.FirstToken(time.Now())
				b.Release(time.Now())
			}
			busyWith(t, p, holder.Endpoint.Pod, 10_000)
		},
		"full": func(t *testing.T, p *Picker, holder Feed) {
			busyWith(t, p, holder.Endpoint.Pod, 100).FirstToken(time.Now())
		},
		"at its limit": func(t *testing.T, p *Picker, holder Feed) {
			b := busyWith(t, p, holder.Endpoint.Pod, 100)
			b.FirstToken(time.Now())
			v := p.current.Load().pools[0]
			for i, m := range v.members {
				if v.spec.Endpoints[i].Pod == holder.Endpoint.Pod {
					l := m.load.View(time.Now())
					m.ceiling.refused(time.Now(), openai.RequestLimit, &l, 1)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := started(t, waitingPool(t, 2))
				holder := p.Feeds()[0]
				hold(holder, keysOf(t, "m", 0, 40_000)...)
				stuck(t, p, holder)
				time.Sleep(time.Second)
				if name == "full" {
					p.Observe(holder.Endpoint.ID, time.Now(), load.Report{Running: 1, KVUsage: 0.99, KVTokens: 50_000})
				}
				a := asking(t.Context(), p, 0, 40_000, nil)
				for range 100 {
					time.Sleep(100 * time.Millisecond)
					if name == "full" {
						p.Observe(holder.Endpoint.ID, time.Now(), load.Report{Running: 1, KVUsage: 0.99, KVTokens: 50_000})
					}
				}
				got := now(t, a, "after ten seconds")
				if got.err != nil {
					t.Fatal(got.err)
				}
				if name != "at its limit" && got.d.Targets[0].Endpoint.Pod == holder.Endpoint.Pod {
					t.Error("it was sent to the endpoint that makes no progress")
				}
				got.d.End(Completed)
			})
		})
	}
}

// TestTheLastResortIsUsedWhenNoOtherEndpointTakesARequest, if that is cheaper than to wait.
func TestTheLastResortIsUsedWhenNoOtherEndpointTakesARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := waitingPool(t, 2)
		spec.Policy.Crossing = CrossAsLastResort
		spec.Endpoints[0].Island, spec.Endpoints[1].Island = "here", "away"
		p := New(Options{Log: logr.Discard(), Island: "here"})
		if err := p.Apply([]Spec{spec}); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct{ pending, at int }{{1000, 0}, {100_000, 1}} {
			busy := busyWith(t, p, spec.Endpoints[0].Pod, tc.pending)
			d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 100, true),
				Header: func(string) string { return "" }})
			if err != nil || d.Targets[0].Endpoint.Pod != spec.Endpoints[tc.at].Pod {
				t.Fatalf("with %d tokens pending at home: %+v, %v", tc.pending, d, err)
			}
			d.End(Completed)
			busy.Release(time.Now())
		}
	})
}

// TestFullEndpointsStayFallbacks: a request has its fallbacks however few endpoints take it at once.
func TestFullEndpointsStayFallbacks(t *testing.T) {
	p := newPicker(t, newClock(), waitingPool(t, 3))
	busyWith(t, p, p.Feeds()[0].Endpoint.Pod, 100_000)
	busyWith(t, p, p.Feeds()[1].Endpoint.Pod, 50_000)
	hold(p.Feeds()[0], keysOf(t, "m", 0, 1600)...)
	d := pick(t, p, completion("m", 0, 1600, true))
	if len(d.Targets) != 3 || d.Targets[0].Endpoint.Pod != p.Feeds()[2].Endpoint.Pod {
		t.Errorf("%d targets, the first %s", len(d.Targets), d.Targets[0].Endpoint.Pod)
	}
	d.End(Completed)
}

// TestALongRequestDelaysNoShorterOnes that would be sent before it: they wait for the endpoint that holds their prompt, and
// are not scared off by what is behind them.
func TestALongRequestDelaysNoShorterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := started(t, waitingPool(t, 2))
		a, b := p.Feeds()[0], p.Feeds()[1]
		hold(b, keysOf(t, "m", 0, 40_000)...)
		hold(b, keysOf(t, "m", 5_000_000, 100_000)...)
		busyA, busyB := busyWith(t, p, a.Endpoint.Pod, 12_000), busyWith(t, p, b.Endpoint.Pod, 10_000)
		long := asking(t.Context(), p, 5_000_000, 200_000, nil) // 5 s at b, 10 s at a
		waits(t, long, "both are busy")
		short := asking(t.Context(), p, 0, 40_000, nil) // nothing at b, 2 s at a
		waits(t, short, "its holder is busy")
		busyA.FirstToken(time.Now())
		busyA.Release(time.Now())
		time.Sleep(10 * lookAgain)
		waits(t, short, "the other has nothing to do, but its holder will be faster")
		busyB.FirstToken(time.Now())
		busyB.Release(time.Now())
		time.Sleep(lookAgain)
		got := now(t, short, "its holder has nothing to do")
		if got.err != nil || got.d.Targets[0].Endpoint.Pod != b.Endpoint.Pod {
			t.Fatalf("%v", got.err)
		}
		got.d.End(Completed)
		time.Sleep(2 * lookAgain)
		if got := now(t, long, "both have nothing to do"); got.d != nil {
			got.d.End(Completed)
		}
	})
}

// TestASubsetThatOthersAvoidIsWaitedFor: a gateway's subset can consist of an endpoint that other requests use as a last
// resort only. Its requests wait for that one, and are sent when it takes them.
func TestASubsetThatOthersAvoidIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := waitingPool(t, 2)
		spec.Policy.Crossing = CrossAsLastResort
		spec.Endpoints[0].Island, spec.Endpoints[1].Island = "here", "away"
		p := New(Options{Log: logr.Discard(), Island: "here"})
		if err := p.Apply([]Spec{spec}); err != nil {
			t.Fatal(err)
		}
		away := spec.Endpoints[1].Pod
		busy := busyWith(t, p, away, 40_000)
		a := make(chan answer, 1)
		go func() {
			d, err := p.Pick(t.Context(), &Request{
				Route: openai.Completions, Body: completion("m", 0, 100, true), Header: func(string) string { return "" },
				Allow: func(e *endpoint.Endpoint) bool { return e.Pod == away },
			})
			a <- answer{d, err, time.Now()}
		}()
		waits(t, a, "its endpoint has two seconds to do")
		busy.Release(time.Now())
		time.Sleep(lookAgain)
		got := now(t, a, "its endpoint has nothing to do")
		if got.err != nil || got.d.Targets[0].Endpoint.Pod != away {
			t.Fatalf("%+v", got)
		}
		got.d.End(Completed)
	})
}

// TestWorkThatWaitsCounts: requests that wait for an endpoint are work of that endpoint for those behind them. So of many
// requests on one prompt only as many wait for its holder as is worth it.
func TestWorkThatWaitsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := started(t, waitingPool(t, 2))
		const shared, own = 40_000, 4000
		holder := p.Feeds()[0]
		hold(holder, keysOf(t, "m", 0, shared)...)
		busy := busyWith(t, p, holder.Endpoint.Pod, 10_000)
		var all []<-chan answer
		for i := range 60 {
			all = append(all, askingFor(t, p, append(idsOf(0, shared), idsOf(1_000_000*(i+1), own)...)))
			synctest.Wait()
		}
		time.Sleep(2 * lookAgain)
		synctest.Wait()
		elsewhere := 0
		var sent []*Decision
		for _, c := range all {
			select {
			case a := <-c:
				if a.err != nil || a.d.Targets[0].Endpoint.Pod == holder.Endpoint.Pod {
					t.Fatalf("%+v", a)
				}
				elsewhere++
				sent = append(sent, a.d)
			default:
			}
		}
		// 60 requests of 0.2 s would take 12 s at the holder; a copy takes 2 s.
		if waiting := p.Stats()[0].Admission.Waiting; elsewhere == 0 || waiting == 0 || waiting+elsewhere != len(all) {
			t.Errorf("%d wait for the holder, %d went elsewhere, of %d", waiting, elsewhere, len(all))
		}
		for _, d := range sent {
			d.End(Completed)
		}
		busy.Release(time.Now())
		drainAll(all)
	})
}

// askingFor asks in the background for a prompt.
func askingFor(t *testing.T, p *Picker, prompt []uint32) <-chan answer {
	c := make(chan answer, 1)
	keys := kvblock.AppendKeys(nil, testSeed(t).Root("m", ""), prompt, 16)
	d, wait, err := p.PickKeyed(&Keyed{Model: "m", Header: func(string) string { return "" }, Prompt: prompt, Keys: keys, Streamed: true})
	if wait == nil {
		c <- answer{d, err, p.now()}
		return c
	}
	go func() {
		for {
			d, over, err := wait.Poll()
			if over {
				c <- answer{d, err, p.now()}
				return
			}
			time.Sleep(lookAgain)
			lookAt(p)
		}
	}()
	return c
}

// drainAll ends what is answered until all are.
func drainAll(all []<-chan answer) {
	for _, c := range all {
		if a, ok := receive(c); ok && a.d != nil {
			a.d.End(Completed)
		}
	}
}

func receive(c <-chan answer) (answer, bool) {
	select {
	case a := <-c:
		return a, true
	case <-time.After(time.Hour):
		return answer{}, false
	}
}

// TestOfATenantTheShortestPrefillGoesFirst, but no tenant's before another's turn, and none waits for ever.
func TestOfATenantTheShortestPrefillGoesFirst(t *testing.T) {
	c := newClock()
	spec := waitingPool(t, 1)
	spec.Policy.Admission.Tenants = everyTenant()
	p := newPicker(t, c, spec)
	busy := busyWith(t, p, p.Feeds()[0].Endpoint.Pod, 20_000)
	ask := func(tenant string, first, tokens int) *Wait {
		t.Helper()
		prompt := idsOf(first, tokens)
		d, wait, err := p.PickKeyed(&Keyed{Model: "m", Header: func(string) string { return tenant }, Prompt: prompt,
			Keys: kvblock.AppendKeys(nil, testSeed(t).Root("m", ""), prompt, 16), Streamed: true})
		if wait == nil {
			t.Fatalf("does not wait: %v, %v", d, err)
		}
		return wait
	}
	long := ask("a", 0, 8000)
	short := ask("a", 1e6, 800)
	other := ask("b", 2e6, 4000)
	served := func(w *Wait) bool {
		d, over, err := w.Poll()
		if over && err != nil {
			t.Fatal(err)
		}
		if over {
			d.FirstToken()
			d.End(Completed)
		}
		return over
	}
	busy.Release(c.Now())
	lookAt(p)
	if served(long) || served(other) || !served(short) {
		t.Fatal("of the tenant that is first, the shortest prefill is sent first")
	}
	if served(long) || !served(other) {
		t.Fatal("then it is the other tenant's turn, though its prefill is shorter than what waits for longer")
	}
	if !served(long) {
		t.Fatal("then the longest goes")
	}
}

// everyTenant names tenants by a header, all of the same weight.
func everyTenant() *TenantsSpec { return &TenantsSpec{Header: "tenant", Default: everybody} }

// TestNoRequestIsRefusedBecauseCheaperOnesKeepComing: however many shorter ones of its tenant arrive, an expensive request is
// sent before its time to live is over, also if tenants take turns.
func TestNoRequestIsRefusedBecauseCheaperOnesKeepComing(t *testing.T) {
	for _, tenants := range []int{1, 2, 4} {
		c := newClock()
		spec := waitingPool(t, 1)
		spec.Policy.Admission.WaitBudget = 0 // one at a time
		spec.Policy.Admission.Tenants = everyTenant()
		p := newPicker(t, c, spec)
		ask := func(tenant, first, tokens int) (*Decision, *Wait) {
			prompt := idsOf(first, tokens)
			d, wait, err := p.PickKeyed(&Keyed{Model: "m", Header: func(string) string { return fmt.Sprint("tenant-", tenant) }, Prompt: prompt,
				Keys: kvblock.AppendKeys(nil, testSeed(t).Root("m", ""), prompt, 16), Streamed: true})
			if err != nil {
				t.Fatal(err)
			}
			return d, wait
		}
		running, _ := ask(0, 0, 100)
		var big []*Wait
		small := make([][]*Wait, tenants)
		for tenant := range tenants {
			_, w := ask(tenant, 100_000_000*(tenant+1), 20_000) // 1 s
			big = append(big, w)
		}
		before := 0
		for i := range 2000 { // 20 s, the time to live
			for tenant := range tenants {
				for len(small[tenant]) < 3 {
					_, w := ask(tenant, 1000*(10*i+len(small[tenant]))+200_000*tenant, 100)
					small[tenant] = append(small[tenant], w)
				}
			}
			c.advance(10 * time.Millisecond)
			running.FirstToken()
			running.End(Completed)
			lookAt(p)
			running = nil
			lists := []*[]*Wait{&big}
			for tenant := range small {
				lists = append(lists, &small[tenant])
			}
			for _, list := range lists {
				for j, w := range *list {
					d, over, err := w.Poll()
					if !over {
						continue
					}
					if err != nil {
						t.Fatalf("%d tenants, after %d requests: %v", tenants, i, err)
					}
					if running != nil {
						t.Fatal("two at once")
					}
					if list != &big && len(big) == tenants {
						before++
					}
					running = d
					*list = append((*list)[:j], (*list)[j+1:]...)
					break
				}
			}
			if running == nil {
				t.Fatalf("%d: nothing is sent to an idle endpoint", i)
			}
		}
		if len(big) > 0 || before < 100 {
			t.Errorf("%d tenants: %d long requests still wait; %d shorter ones were sent before the first", tenants, len(big), before)
		}
	}
}
