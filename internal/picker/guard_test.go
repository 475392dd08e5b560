package picker

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// opened is a picker of n endpoints. pod-0 holds the prompt and has failed until its circuit opened, and so much time has
// passed that a probe is allowed.
func opened(t *testing.T, clock *clock, n int, change func(*Spec)) *Picker {
	t.Helper()
	spec := testSpec(t, n)
	change(&spec)
	p := newPicker(t, clock, spec)
	hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, 3200)...)
	for range spec.Policy.CircuitFailures {
		d := pick(t, p, completion("m", 0, 3200, true))
		if d.Targets[0].Endpoint.Pod != "pod-0" {
			t.Fatalf("%s was picked, want pod-0", d.Targets[0].Endpoint.Pod)
		}
		d.Fail()
		d.End(Failed)
	}
	clock.advance(spec.Policy.CircuitOpen + time.Second)
	return p
}

// TestHalfOpenOneRequestTries, though several have seen that it can be tried, and with no fallbacks too.
func TestHalfOpenOneRequestTries(t *testing.T) {
	for _, attempts := range []int{1, 3} {
		p := opened(t, newClock(), 4, func(s *Spec) { s.Policy.Attempts = attempts })
		v := p.current.Load().pools[0]
		var all []*scratch
		keys := keysOf(t, "m", 0, 3200)
		for range 5 {
			s := new(scratch)
			s.request.Model = "m"
			if s.candidates = v.eligible(p.now(), &place{v: v}, nil, s); len(s.candidates) != 4 {
				t.Fatalf("%d candidates", len(s.candidates))
			}
			all = append(all, s)
		}
		for i, s := range all {
			d, err := p.choose(v, s, &pickState{start: p.now(), prompt: prompt{keys: keys, tokens: 3200, source: TokensGiven}})
			if err != nil {
				t.Fatal(err)
			}
			defer d.End(ClientGone)
			if tries := d.Targets[0].Endpoint.Pod == "pod-0"; tries != (i == 0) {
				t.Errorf("%d attempts: request %d goes to %s", attempts, i, d.Targets[0].Endpoint.Pod)
			}
		}
	}
}

// TestOnlyTheTrialGivesUp: requests that were there before end, and let no other request through.
func TestOnlyTheTrialGivesUp(t *testing.T) {
	clock := newClock()
	spec := testSpec(t, 2)
	p := newPicker(t, clock, spec)
	hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, 3200)...)
	body := completion("m", 0, 3200, true)
	before := pick(t, p, body)
	for range spec.Policy.CircuitFailures {
		d := pick(t, p, body)
		d.Fail()
		d.End(Failed)
	}
	clock.advance(spec.Policy.CircuitOpen + time.Second)
	probe := pick(t, p, body)
	before.End(ClientGone)
	other := pick(t, p, body)
	if probe.Targets[0].Endpoint.Pod != "pod-0" || other.Targets[0].Endpoint.Pod != "pod-1" {
		t.Errorf("the probe went to %s, and one beside it to %s", probe.Targets[0].Endpoint.Pod, other.Targets[0].Endpoint.Pod)
	}
	probe.End(ClientGone) // no verdict: the next one tries
	next := pick(t, p, body)
	if next.Targets[0].Endpoint.Pod != "pod-0" {
		t.Errorf("after a probe without a verdict a request went to %s", next.Targets[0].Endpoint.Pod)
	}
	next.Fail() // open again, for as long as before
	next.End(Failed)
	clock.advance(spec.Policy.CircuitOpen - time.Second)
	if d := pick(t, p, body); d.Targets[0].Endpoint.Pod != "pod-1" {
		t.Error("after a probe that failed the circuit is not open")
	} else {
		d.End(Completed)
	}
	other.End(Completed)
	assertIdle(t, p)
}

// TestAFallbackTriesToo: a request that is moved to an endpoint which is half open is its probe.
func TestAFallbackTriesToo(t *testing.T) {
	clock := newClock()
	p := opened(t, clock, 3, func(*Spec) {})
	fresh := completion("m", 50_000, 3200, true) // no endpoint holds it
	var d *Decision
	at := 0
	for d == nil { // until pod-0 is among the fallbacks
		d = pick(t, p, fresh)
		for i, target := range d.Targets[1:] {
			if target.Endpoint.Pod == "pod-0" {
				at = i + 1
			}
		}
		if at == 0 {
			t.Skip("pod-0 is the first choice")
		}
	}
	d.Begin(at)
	if other := pick(t, p, completion("m", 0, 3200, true)); other.Targets[0].Endpoint.Pod == "pod-0" {
		t.Error("two requests try one endpoint")
	} else {
		other.End(Completed)
		expectEvents(p)
	}
	d.FirstToken()
	if after := pick(t, p, completion("m", 0, 3200, true)); after.Targets[0].Endpoint.Pod != "pod-0" {
		t.Error("the circuit did not close")
	} else {
		after.End(Completed)
	}
	d.End(Completed)
	assertIdle(t, p)
}

// TestTheKVBarrier: an endpoint whose engine reports more KV use than the policy lets is passed over whatever it holds,
// unless all are, or the report is older than two seconds.
func TestTheKVBarrier(t *testing.T) {
	for _, strategy := range []policy.Type{policy.StickyLeastLoaded, policy.LongestPrefix, policy.LeastLoad, policy.Rendezvous, policy.ApproximatePrefix} {
		t.Run(string(strategy), func(t *testing.T) {
			clock := newClock()
			spec := testSpec(t, 2)
			spec.Policy.Strategy = policy.Default(strategy)
			p := newPicker(t, clock, spec)
			where := func() string {
				d := pick(t, p, completion("m", 0, 3200, true))
				defer d.End(Completed)
				return d.Targets[0].Endpoint.Pod
			}
			home := where()
			hold(feed(t, p, home), keysOf(t, "m", 0, 3200)...)
			report := func(pod string, use float64) {
				p.Observe(feed(t, p, pod).Endpoint.ID, clock.Now(), load.Report{KVUsage: use})
			}
			other := map[string]string{"pod-0": "pod-1", "pod-1": "pod-0"}[home]
			report(home, 0.98)
			if got := where(); got != other {
				t.Errorf("at 98 %% of KV use a request went to %s", got)
			}
			report(other, 0.99)
			hold(feed(t, p, home), keysOf(t, "m", 0, 3200)...)
			served := where() // somebody must
			if served == "" {
				t.Error("no endpoint serves")
			}
			report(other, 0.3)
			clock.advance(1900 * time.Millisecond)
			if got := where(); got != other {
				t.Errorf("1.9 s after its report the full endpoint got a request: %s", got)
			}
			clock.advance(200 * time.Millisecond)
			if d := pick(t, p, completion("m", 0, 3200, true)); len(d.Targets) != 2 {
				t.Errorf("2.1 s after its report the endpoint is still left out: %d targets", len(d.Targets))
			} else {
				d.End(Completed)
			}
		})
	}
}

// TestABrokenEndpointIsNoWayOut: one whose circuit is open looks idle. Where all others are short of KV blocks they
// serve nevertheless.
func TestABrokenEndpointIsNoWayOut(t *testing.T) {
	clock := newClock()
	spec := testSpec(t, 3)
	spec.Policy.Strategy = policy.Default(policy.LeastLoad)
	p := newPicker(t, clock, spec)
	broken := ""
	for range spec.Policy.CircuitFailures {
		d := pick(t, p, completion("m", 0, 160, true))
		if broken == "" {
			broken = d.Targets[0].Endpoint.Pod
		}
		i := 0
		for d.Targets[i].Endpoint.Pod != broken {
			i++
		}
		d.Begin(i)
		d.Fail()
		d.End(Failed)
	}
	for i := range 3 {
		if pod := fmt.Sprint("pod-", i); pod != broken {
			p.Observe(feed(t, p, pod).Endpoint.ID, clock.Now(), load.Report{KVUsage: 0.99})
		}
	}
	for n := range 20 {
		d := pick(t, p, completion("m", 1000*n, 160, true))
		for _, target := range d.Targets {
			if target.Endpoint.Pod == broken {
				t.Fatalf("the broken endpoint is among %d targets", len(d.Targets))
			}
		}
		d.End(Completed)
	}
}
