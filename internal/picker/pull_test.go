package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// pulling is the policy of pools whose engines load blocks of each other.
var pulling = HandoffSpec{Rule: HandoffByCost, Connector: Offloading, Port: 5710}

// untilMoved picks for one prompt, which the first of two endpoints holds, until a request goes to the second one. It returns how many
// went to the first, and the last decision; nil if all of many did.
func untilMoved(t *testing.T, rule HandoffSpec, seconds float64) (stayed int, moved *Decision, p *Picker, c *clock) {
	t.Helper()
	c = newClock()
	p = newPicker(t, c, rolesSpec(t, rule, endpoint.Both, endpoint.Both))
	const tokens = 8000
	hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, tokens)...)
	if seconds > 0 {
		probe := splits(t, p, completion("m", 100_000, 64, true))
		for range 50 {
			probe.view.handoffs.price.learn(tokens, seconds)
		}
		probe.End(Completed)
	}
	body := completion("m", 0, tokens, true)
	for range 400 {
		d := splits(t, p, body)
		if d.Leg() != Whole {
			t.Fatalf("leg %v in a pool without roles", d.Leg())
		}
		if d.Targets[0].Endpoint.Pod == "pod-1" {
			return stayed, d, p, c
		}
		if d.PullFrom() != nil {
			t.Fatalf("an endpoint that holds the prompt loads it from %s", d.PullFrom().Pod)
		}
		stayed++
	}
	return stayed, nil, p, c
}

// An endpoint that holds a prompt and is busy lends it to another one, as soon as that is cheaper than to wait and than to compute it
// again.
func TestABusyEndpointIsPulledFrom(t *testing.T) {
	alone, d, _, _ := untilMoved(t, HandoffSpec{Rule: HandoffByCost}, 0)
	if d != nil && d.PullFrom() != nil {
		t.Error("blocks are pulled by engines that cannot")
	}
	stayed, d, p, c := untilMoved(t, pulling, 0)
	if d == nil || d.PullFrom() == nil || d.PullFrom().Pod != "pod-0" || stayed >= alone {
		t.Fatalf("%d requests stayed, and %d where nothing is pulled; then %+v", stayed, alone, d)
	}
	if n := p.Stats()[0].Plans[PlanPull]; n != 1 {
		t.Errorf("%d pulls are counted", n)
	}
	if l := d.Targets[0].member.load.View(c.Now()); l.PendingTokens > 64 {
		t.Errorf("%v tokens are to be prefilled where they are loaded", l.PendingTokens)
	}
	if n := d.Targets[0].Predicted; n != 0 {
		t.Errorf("%d tokens are predicted in the cache of the endpoint that loads them", n)
	}
	d.FirstToken()
	d.Usage(8000, 8000)
	d.End(Completed)
	if s := p.Stats()[0]; s.Endpoints[1].Hits.Answers != 0 || s.Endpoints[1].Load.Rate != 0 {
		t.Errorf("a pull teaches hits and the speed of prefills: %+v", s.Endpoints[1])
	}
}

// Blocks that take long to transfer are computed again.
func TestADearTransferIsNoPull(t *testing.T) {
	cheap, _, _, _ := untilMoved(t, pulling, 0)
	stayed, d, _, _ := untilMoved(t, pulling, 100)
	if stayed <= cheap || d != nil && d.PullFrom() != nil && stayed < 2*cheap {
		t.Errorf("%d requests stayed with a transfer of 100 s, %d with a usual one", stayed, cheap)
	}
}

// TestPullsAreOfOneRevision, as hand-offs are.
func TestPullsAreOfOneRevision(t *testing.T) {
	for _, names := range [][]string{{"a", "a"}, {"a", "b"}} {
		c := newClock()
		p := newPicker(t, c, revisions(rolesSpec(t, pulling, endpoint.Both, endpoint.Both), names...))
		const tokens = 8000
		hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, tokens)...)
		body, pulled := completion("m", 0, tokens, true), false
		for range 400 {
			pulled = pulled || splits(t, p, body).PullFrom() != nil
		}
		if pulled != (names[0] == names[1]) {
			t.Errorf("revisions %v: pulled %t", names, pulled)
		}
	}
}

// TestEachRequestHasOnePlan in a pool with roles, also those that pull.
func TestEachRequestHasOnePlan(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, pulling, endpoint.Both, endpoint.Both, endpoint.Decode))
	const tokens, requests = 8000, 400
	hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, tokens)...)
	body, pulls := completion("m", 0, tokens, true), int64(0)
	for range requests {
		if splits(t, p, body).PullFrom() != nil {
			pulls++
		}
	}
	plans, sum := p.Stats()[0].Plans, int64(0)
	for _, n := range plans {
		sum += n
	}
	if pulls == 0 || plans[PlanPull] != pulls || sum != requests {
		t.Errorf("%d plans of %d requests, and %d of them pull: %v", sum, requests, pulls, plans)
	}
}

// TestPullsAreExplained: an explanation and the decision log have the plan with its costs, whether it is chosen or not, in pools with roles
// and without.
func TestPullsAreExplained(t *testing.T) {
	for name, roles := range map[string][]endpoint.Role{
		"without roles": {endpoint.Both, endpoint.Both}, "with roles": {endpoint.Both, endpoint.Both, endpoint.Decode},
	} {
		t.Run(name, func(t *testing.T) {
			spec := rolesSpec(t, pulling, roles...)
			spec.Policy.LogPercent = 100
			log := new(memoryLog)
			p := New(Options{Now: newClock().Now, Decisions: log})
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			const tokens = 8000
			hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, tokens)...)
			body, because := completion("m", 0, tokens, true), map[string]int{}
			for range 400 {
				plans := explained(t, p, body)
				d := splits(t, p, body)
				if plans == nil || plans.Pull == nil {
					t.Fatalf("a request that one endpoint holds has the plans %+v", plans)
				}
				because[plans.Because]++
				pulls := plans.Because == "pull"
				if pulls != (d.PullFrom() != nil) || pulls && plans.Pull.Seconds >= plans.Alone.Seconds {
					t.Fatalf("%+v, and the request pulls from %+v", plans, d.PullFrom())
				}
				serve := plans.Pull.Steps[1]
				if pulls && (plans.Pull.Steps[0].Pod != "pod-0" || serve.Pod != d.Targets[0].Endpoint.Pod) {
					t.Fatalf("%+v, and the request pulls at %s", plans.Pull.Steps, d.Targets[0].Endpoint.Pod)
				}
				if sum := sumOf(serve.Parts); serve.Parts[0].Name != "transfer" || sum < 0.95*serve.Seconds || sum > 1.05*serve.Seconds {
					t.Fatalf("parts %+v of %v s", serve.Parts, serve.Seconds)
				}
				if pulls {
					d.End(Completed)
					record := log.records[len(log.records)-1].Plan
					if record == nil || record.Because != "pull" || record.Pull != nameOf(d.Targets[0].Endpoint) || record.Peer != nameOf(d.PullFrom()) ||
						record.PullCost >= record.AloneCost || record.PullTransferCost <= 0 || record.PullTransferCost > record.PullCost {
						t.Fatalf("record %+v", record)
					}
					break
				}
			}
			if because["pull"] != 1 || len(because) < 2 {
				t.Errorf("the reasons are %v", because)
			}
		})
	}
}

func sumOf(parts []api.Term) (seconds float64) {
	for _, part := range parts {
		seconds += part.Value
	}
	return seconds
}

// TestPullsTeachThePriceOfTransfers, once the answer shows that the endpoint has found what the peer was to lend.
func TestPullsTeachThePriceOfTransfers(t *testing.T) {
	for name, tc := range map[string]struct {
		cached   int
		expected time.Duration
		teaches  bool
	}{
		"of one that was found":            {8000, 0, true},
		"of one that was not found":        {0, 0, false},
		"of one that was found in part":    {4000, 0, false},
		"of one behind a long prefill":     {8000, 10 * time.Second, false},
		"of one that was found but a rest": {7990, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, d, p, c := untilMoved(t, pulling, 0)
			if d == nil || d.PullFrom() == nil {
				t.Fatal("nothing is pulled")
			}
			const took = 400 * time.Millisecond
			if tc.expected > 0 {
				d.handoff.pulls.expected = tc.expected
			}
			before := p.Stats()[0]
			c.advance(d.handoff.pulls.expected + took)
			d.FirstToken()
			d.Usage(8000, tc.cached)
			d.End(Completed)
			after := p.Stats()[0]
			price := func(s *PoolStats) float64 {
				return s.TransferSeconds + float64(d.handoff.pulls.tokens)*s.TransferTokenSeconds
			}
			if teaches := price(&after) > price(&before); teaches != tc.teaches || price(&after) > took.Seconds() {
				t.Errorf("a transfer costs %v s after a pull that took %v, %v s before", price(&after), took, price(&before))
			}
		})
	}
}
