package picker

import (
	"context"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// alone picks for a request whose hand-off has failed.
func alone(t testing.TB, p *Picker, body []byte, d *Decision) *Decision {
	t.Helper()
	d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Again: d})
	if err != nil {
		t.Fatal(err)
	}
	if d.Leg() != Whole {
		t.Fatalf("leg %v after a hand-off that failed", d.Leg())
	}
	return d
}

func TestWhatFailsIsBlamed(t *testing.T) {
	for name, tc := range map[string]struct {
		end      func(d *Decision)
		want     HandoffOutcome
		p, d     int // failures of the hand-offs of the first, and of the circuit of the second endpoint
		outcomes int64
	}{
		"the blocks cannot be loaded": {func(d *Decision) { d.failed(errored) }, HandoffDecodeFailed, 1, 0, 1},
		"the blocks do not come":      {func(d *Decision) { d.FailLate() }, HandoffDecodeFailed, 1, 0, 1},
		"the second engine gives up":  {func(d *Decision) { d.failed(gaveUp) }, HandoffDecodeFailed, 0, 1, 1},
		"the second engine breaks":    {func(d *Decision) { d.Fail() }, HandoffDecodeFailed, 0, 1, 1},
		"an error after the first token": {func(d *Decision) {
			d.FirstToken()
			d.failed(errored)
			d.End(Failed)
		}, HandoffCompleted, 0, 1, 1},
		"a break after the first token": {func(d *Decision) {
			d.FirstToken()
			d.Fail()
			d.End(Failed)
		}, HandoffCompleted, 0, 1, 1},
		"its queue is full":                          {func(d *Decision) { d.Full(openai.RequestLimit); d.End(Rejected) }, HandoffNoDecode, 0, 0, 1},
		"its queue is full, and it is said with 503": {func(d *Decision) { d.Full(openai.TokenLimit); d.End(Failed) }, HandoffNoDecode, 0, 0, 1},
		"the client leaves after the first token": {func(d *Decision) {
			d.FirstToken()
			d.End(ClientGone)
		}, HandoffCompleted, 0, 0, 1},
		"the client leaves before the first token": {func(d *Decision) { d.End(ClientGone) }, HandoffClientGone, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
			body := completion("m", 0, 500, true)
			d := next(t, p, body, splits(t, p, body))
			tc.end(d)
			if tc.want == HandoffDecodeFailed {
				alone(t, p, body, d).End(Completed)
			}
			stats := p.Stats()[0]
			if stats.Handoffs[tc.want] != 1 {
				t.Errorf("hand-offs %v", stats.Handoffs)
			}
			for outcome, n := range stats.Handoffs {
				if outcome != tc.want && n != 0 {
					t.Errorf("hand-offs: %v %d", outcome, n)
				}
			}
			members := p.named("default/m").members
			if n := members[0].gives.failures; n != tc.p {
				t.Errorf("the endpoint that has prefilled has %d failures, want %d", n, tc.p)
			}
			if n := stats.Endpoints[1].Failures; n != int64(tc.d) {
				t.Errorf("the endpoint that decodes has %d failures, want %d", n, tc.d)
			}
			atRest(t, p, c)
		})
	}
}

func TestAProbeThatCannotLoadIsGivenUp(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	body := completion("m", 0, 500, true)
	first := splits(t, p, body)
	policy, second := p.named("default/m").spec.Policy, p.named("default/m").members[1]
	for range policy.CircuitFailures {
		second.circuit.Fail(c.Now(), policy.CircuitFailures, policy.CircuitOpen, false)
	}
	c.advance(policy.CircuitOpen + time.Second)
	d := next(t, p, body, first)
	if !second.circuit.Probed() {
		t.Fatal("the second leg is no probe")
	}
	d.failed(errored)
	if second.circuit.Probed() {
		t.Error("the probe is not given up")
	}
	d.End(Failed)
}

// A stream that another endpoint continues after the first token is prefilled there: its blocks are not transferred again.
func TestAContinuedAnswerIsBookedWithItsPrefill(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode, endpoint.Decode))
	body := completion("m", 0, 500, true)
	d := next(t, p, body, splits(t, p, body))
	if l := d.Targets[0].member.load.View(c.Now()); l.PendingTokens != 0 {
		t.Errorf("%v tokens to prefill at the endpoint that loads the blocks", l.PendingTokens)
	}
	d.FirstToken()
	if !d.Begin(1) {
		t.Fatal("there is no other endpoint")
	}
	if l := d.Targets[1].member.load.View(c.Now()); l.PendingTokens < 400 {
		t.Errorf("%v tokens to prefill at the endpoint that continues", l.PendingTokens)
	}
	d.End(Completed)
	if stats := p.Stats()[0]; stats.Handoffs[HandoffCompleted] != 1 || stats.Handoffs[HandoffDecodeFailed] != 0 {
		t.Errorf("hand-offs %v", stats.Handoffs)
	}
	atRest(t, p, c)
}

// cannotLoad hands a request over, whose blocks cannot be loaded, and serves it alone. It returns where the first leg and the second
// were; empty if the request was not handed over.
func cannotLoad(t testing.TB, p *Picker, body []byte, served Outcome) (from, to string) {
	t.Helper()
	d := splits(t, p, body)
	if d.Leg() == PrefillLeg {
		from = d.Targets[0].Endpoint.Pod
		d = next(t, p, body, d)
		to = d.Targets[0].Endpoint.Pod
		d.failed(errored)
		d = alone(t, p, body, d)
	}
	d.End(served)
	return from, to
}

// An endpoint that can load the blocks of no other one is left out, though the hand-offs to it look free, and those that
// prefill for it stay in use.
func TestAnEndpointThatLoadsNothingIsLeftOut(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Prefill, endpoint.Decode, endpoint.Decode))
	failures, completed := 0, 0
	for i := range 40 {
		c.advance(10 * time.Millisecond)
		body := completion("m", 1000*i, 500, true)
		d := splits(t, p, body)
		if d.Leg() == PrefillLeg {
			d = next(t, p, body, d)
			if d.Targets[0].Endpoint.Pod == "pod-2" {
				failures++
				d.failed(errored)
				d = alone(t, p, body, d)
			} else {
				completed++
			}
		}
		d.FirstToken()
		d.End(Completed)
	}
	if failures == 0 || failures > 2*handoffFailures {
		t.Errorf("%d hand-offs to an endpoint that loads nothing", failures)
	}
	if completed < 30 {
		t.Errorf("%d of 40 requests were handed over to the other endpoint", completed)
	}
	for i, m := range p.named("default/m").members[:2] {
		if m.gives.leavesOut(0, c.Now()) {
			t.Errorf("endpoint %d, which prefills, is left out", i)
		}
	}
	atRest(t, p, c)
}

// Requests that no engine serves, such as those that a client makes so, leave nothing out.
func TestRequestsThatFailAloneAsWellLeaveNothingOut(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	for i := range 10 * handoffFailures {
		if from, _ := cannotLoad(t, p, completion("m", 1000*i, 500, true), Rejected); from == "" {
			t.Fatalf("request %d is not handed over", i)
		}
	}
}

// After failures, one hand-off at a time is let through, and however it ends, another one later.
func TestHandoffsAreTriedAgainOneByOne(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	fails := func(i int) bool {
		from, _ := cannotLoad(t, p, completion("m", 1000*i, 500, true), Completed)
		return from != ""
	}
	for i := range handoffFailures {
		fails(i)
	}
	open := p.named("default/m").spec.Policy.CircuitOpen
	for i, end := range map[int]Outcome{10: ClientGone, 20: Failed} {
		if fails(i + 1) {
			t.Fatal("the endpoints are not left out")
		}
		c.advance(open + time.Second)
		d := splits(t, p, completion("m", 1000*i, 500, true))
		if d.Leg() != PrefillLeg {
			t.Fatal("no hand-off is tried")
		}
		if fails(i + 2) {
			t.Error("a second one is tried beside it")
		}
		d.End(end)
	}
	c.advance(open + time.Second)
	body := completion("m", 50_000, 500, true)
	d := next(t, p, body, splits(t, p, body))
	d.FirstToken()
	d.End(Completed)
	for i := range 3 {
		if d := splits(t, p, completion("m", 100_000+1000*i, 500, true)); d.Leg() != PrefillLeg {
			t.Error("the endpoints are left out after a hand-off that went well")
		} else {
			d.End(ClientGone)
		}
	}
}

// Of hand-offs that were compared at the same moment, one is tried, and the others are served alone because of it.
func TestOneHandoffOfSeveralIsTried(t *testing.T) {
	for name, fail := range map[string]func(from, to *member, now time.Time, policy *PolicySpec){
		"the one that prefills with all": func(from, _ *member, now time.Time, policy *PolicySpec) {
			from.gives.fail(0, now, policy.CircuitOpen)
		},
		"the pair": func(from, to *member, now time.Time, policy *PolicySpec) {
			to.receives.fail(from.hash, now, policy.CircuitOpen)
		},
		"the one that prefills, in everything": func(from, _ *member, now time.Time, policy *PolicySpec) {
			from.circuit.Fail(now, policy.CircuitFailures, policy.CircuitOpen, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
			v := p.named("default/m")
			for range max(handoffFailures, v.spec.Policy.CircuitFailures) {
				fail(v.members[0], v.members[1], c.Now(), &v.spec.Policy)
			}
			c.advance(v.spec.Policy.CircuitOpen + time.Second)
			first, second := &plans{to: 1}, &plans{to: 1}
			v.take(first, new(pickState), c.Now())
			probed := v.members[0].circuit.Probed()
			v.take(second, new(pickState), c.Now())
			if first.why != PlanHandoff || second.why != PlanTried {
				t.Errorf("one is %v, the other one %v", first.why, second.why)
			}
			if v.members[0].circuit.Probed() != probed {
				t.Error("the second one has changed whose probe there is")
			}
		})
	}
}

// A record of the plans is made only for a log.
func TestHandoffsWithoutALogMakeNoRecord(t *testing.T) {
	for _, percent := range []int{0, 1} {
		spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode)
		spec.Policy.LogPercent = percent
		p := New(Options{Now: newClock().Now, Decisions: new(memoryLog)})
		if err := p.Apply([]Spec{spec}); err != nil {
			t.Fatal(err)
		}
		d := splits(t, p, completion("m", 0, 500, true))
		if made := d.handoff.compared != nil; made != (percent > 0) {
			t.Errorf("%d %% of decisions are logged, and there is a record: %t", percent, made)
		}
		d.End(ClientGone)
	}
}

func TestAnEndpointWithoutAConnectorIsAskedRarely(t *testing.T) {
	for name, owed := range map[string]bool{"answers that ended by their length": true, "answers that ended otherwise": false} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
			asked := 0
			for i := range 120 {
				c.advance(time.Second)
				body := completion("m", 1000*i, 500, true)
				d := splits(t, p, body)
				if d.Leg() == PrefillLeg {
					asked++
					d.Unconnected(owed)
					d = alone(t, p, body, d)
				}
				d.End(Completed)
			}
			if want := map[bool]int{true: handoffFailures, false: 120}[owed]; asked != want {
				t.Errorf("asked %d times, want %d", asked, want)
			}
		})
	}
}

// What is to be transferred is no hit: otherwise new pods would be given prompts in place of the prefixes that many requests share.
func TestBlocksToBeTransferredAreNoHit(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	body := completion("m", 0, 500, true)
	next(t, p, body, splits(t, p, body)).End(ClientGone)
	if seen := &p.named("default/m").hot.seen; *seen != ([hotSeen]kvblock.Key{}) {
		t.Error("a hand-off without a hit is remembered as one")
	}
}

// A request is not handed over from an endpoint to itself.
func TestNoEndpointHandsOverToItself(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Both, endpoint.Prefill))
	handedOver := 0
	for i := range 20 {
		c.advance(time.Second)
		body := completion("m", 1000*i, 500, true)
		d := splits(t, p, body)
		if d.Leg() == PrefillLeg {
			handedOver++
			if d.Targets[0].Endpoint.Pod == "pod-0" {
				t.Fatal("the only endpoint that decodes prefills for itself")
			}
		}
		d.End(ClientGone)
	}
	if handedOver == 0 {
		t.Error("nothing is handed over")
	}

	// It is the only one left when the prefill ends: it serves the request as a whole.
	spec := rolesSpec(t, above, endpoint.Both, endpoint.Decode)
	p = newPicker(t, c, spec)
	body := completion("m", 0, 500, true)
	d := splits(t, p, body)
	if d.Leg() != PrefillLeg || d.Targets[0].Endpoint.Pod != "pod-0" {
		t.Fatalf("leg %v at %s", d.Leg(), d.Targets[0].Endpoint.Pod)
	}
	spec.Endpoints = append([]endpoint.Endpoint(nil), spec.Endpoints...)
	spec.Endpoints[1].Ready, spec.Endpoints[1].Serving = false, false
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	if d = next(t, p, body, d); d.Leg() != Whole || d.Targets[0].Endpoint.Pod != "pod-0" {
		t.Errorf("leg %v at %s", d.Leg(), d.Targets[0].Endpoint.Pod)
	}
	d.End(Completed)
	atRest(t, p, c)
	if n := p.Stats()[0].Handoffs[HandoffNoDecode]; n != 1 {
		t.Errorf("%d hand-offs without an endpoint to decode", n)
	}

	p = newPicker(t, c, rolesSpec(t, above, endpoint.Both, endpoint.Both, endpoint.Neither))
	if d := splits(t, p, body); d.Leg() != Whole {
		t.Error("a pool of whole endpoints hands over")
	}
}

// A DecodeLeg that a full queue has refused goes on as a whole: the engine has let go of the blocks.
func TestARefusedDecodeLegIsPickedForAlone(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	body := completion("m", 0, 500, true)
	d := next(t, p, body, splits(t, p, body))
	d.Full(openai.RequestLimit)
	d = alone(t, p, body, d)
	if n := p.InFlight(endpoint.ID{Pod: "pod-0"}); n != 0 || d.Leg() != Whole {
		t.Errorf("%d in flight where it was prefilled, leg %v", n, d.Leg())
	}
	d.FirstToken()
	d.End(Completed)
	if got := p.Stats()[0].Handoffs; got[HandoffNoDecode] != 1 || got[HandoffDecodeFailed] != 0 || got[HandoffCompleted] != 0 {
		t.Errorf("hand-offs %v", got)
	}
	atRest(t, p, c)
}

// An endpoint whose blocks are to be loaded counts as in flight for those that wait to shut it down, and has no work by it.
func TestAnEndpointIsInFlightWhileItsBlocksAreLoaded(t *testing.T) {
	body := completion("m", 0, 500, true)
	for name, end := range map[string]func(p *Picker, c *clock, d *Decision){
		"the first token":   func(_ *Picker, _ *clock, d *Decision) { d.FirstToken() },
		"the client leaves": func(_ *Picker, _ *clock, d *Decision) { d.End(ClientGone) },
		"the blocks expire": func(_ *Picker, c *clock, _ *Decision) { c.advance(BlocksLast) },
		"it fails": func(p *Picker, _ *clock, d *Decision) {
			d.failed(errored)
			alone(t, p, body, d).End(Completed)
		},
		"there is no room": func(p *Picker, _ *clock, d *Decision) {
			d.Full(openai.RequestLimit)
			alone(t, p, body, d).End(Completed)
		},
		"no endpoint is left": func(p *Picker, _ *clock, d *Decision) {
			if err := p.Apply([]Spec{rolesSpec(t, above, endpoint.Prefill)}); err != nil {
				t.Fatal(err)
			}
			if d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Again: d}); err == nil {
				t.Errorf("it goes to %s", d.Targets[0].Endpoint.Pod)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode)
			p := newPicker(t, c, spec)
			d := next(t, p, body, splits(t, p, body))
			id := spec.Endpoints[0].ID
			if n := p.InFlight(id); n != 1 || inFlight(p, c)[0] != 0 {
				t.Errorf("%d in flight, %v by load, while the blocks are loaded", n, inFlight(p, c))
			}
			end(p, c, d)
			if n := p.InFlight(id); n != 0 {
				t.Errorf("%d in flight at the end", n)
			}
			d.End(Completed)
		})
	}
}

// A client that leaves during the prefill pays for no answer: the engine generates one token at most, which is not counted.
func TestAClientThatLeavesAPrefillIsChargedForThePromptOnly(t *testing.T) {
	c := newClock()
	spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode)
	spec.Policy.Admission.Tenants = tenants(t, true)
	p := newPicker(t, c, spec)
	d, err := p.Pick(context.Background(), &Request{
		Route: openai.Completions, Body: completion("m", 0, 500, true), Splits: true,
		Header: func(string) string { return "Bearer key-of-acme" },
	})
	if err != nil || d.Leg() != PrefillLeg {
		t.Fatalf("%v, leg %v", err, d.Leg())
	}
	c.advance(10 * time.Second)
	d.End(ClientGone)
	if n := p.Stats()[0].Tenants["acme"].Tokens; n != 500 {
		t.Errorf("charged for %d tokens", n)
	}
}

func TestEndpointsWithoutARoleRenderNothing(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Neither, endpoint.Decode))
	v := p.named("default/m")
	for range 5 {
		if i := v.nextRenderer(c.Now()); i != 1 {
			t.Errorf("endpoint %d is asked", i)
		}
	}
}
