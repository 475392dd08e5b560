package picker

import (
	"context"
	"slices"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// relayed hands nearly all prompts over, by sidecars of the endpoints that decode.
var relayed = HandoffSpec{Rule: HandoffAbove, UncachedTokens: 64, Sidecar: true}

// relays picks for a gateway.
func relays(t testing.TB, p *Picker, body []byte) *Decision {
	t.Helper()
	d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Relays: true, Gateway: "10.0.0.9", Remote: true})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestGatewaysSendToOneEndpoint(t *testing.T) {
	long := completion("m", 0, 900, true)
	for name, tc := range map[string]struct {
		rule HandoffSpec
		body []byte
		edit func(s *Spec)
		in   func(in *Request)
		want PlanChoice
	}{
		"to be handed over by a sidecar":          {rule: relayed, want: PlanHandoff},
		"without a sidecar":                       {rule: above, want: PlanGateway},
		"that the gateway chooses by itself":      {rule: relayed, in: func(in *Request) { in.Observed, in.Relays = true, false }, want: PlanGateway},
		"on an unknown path":                      {rule: relayed, in: func(in *Request) { in.Relays = false }, want: PlanRequest},
		"for several answers":                     {rule: relayed, body: []byte(`{"model":"m","n":2,"prompt":` + ids(900) + `}`), want: PlanRequest},
		"for a short prompt":                      {rule: relayed, body: completion("m", 0, 15, true), want: PlanShort},
		"whose rank a header names":               {rule: relayed, edit: func(s *Spec) { s.Endpoints[1].RankHeader = 0 }, want: PlanNoDecode},
		"with the rank of the other":              {rule: relayed, edit: func(s *Spec) { s.Endpoints[0].RankHeader = 0 }, want: PlanNoPrefill},
		"that prefills what the gateway names":    {rule: relayed, in: func(in *Request) { in.Allow = func(e *endpoint.Endpoint) bool { return e.Pod == "pod-1" } }, want: PlanNoPrefill},
		"that nothing can be prefilled elsewhere": {rule: relayed, edit: func(s *Spec) { s.Endpoints[0].Ready = false }, want: PlanNoPrefill},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			spec := rolesSpec(t, tc.rule, endpoint.Prefill, endpoint.Decode)
			if tc.edit != nil {
				tc.edit(&spec)
			}
			p := newPicker(t, c, spec)
			if tc.body == nil {
				tc.body = long
			}
			in := &Request{Route: openai.Completions, Body: tc.body, Relays: true, Gateway: "10.0.0.9", Remote: true}
			if tc.in != nil {
				tc.in(in)
			}
			d, err := p.Pick(context.Background(), in)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Stats()[0].Plans[tc.want]; got != 1 {
				t.Errorf("plans %v", p.Stats()[0].Plans)
			}
			prefiller := ""
			if tc.want == PlanHandoff {
				prefiller = spec.Endpoints[0].Address
			}
			if d.Prefiller() != prefiller || d.Targets[0].Endpoint.Pod != "pod-1" {
				t.Errorf("at %s, after a prefill at %q", d.Targets[0].Endpoint.Pod, d.Prefiller())
			}
			d.FirstToken()
			d.End(Completed)
			atRest(t, p, c)
		})
	}
}

// A fallback of the gateway's is an endpoint that decodes, and never the one that the header names.
func TestNoRequestIsRelayedToItsOwnEndpoint(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, relayed, endpoint.Both, endpoint.Both, endpoint.Both))
	for i := range 30 {
		d := relays(t, p, completion("m", 1000*i, 500, true))
		if len(d.Targets) < 2 {
			t.Fatalf("%d targets", len(d.Targets))
		}
		for _, target := range d.Targets {
			if target.Endpoint.Address == d.Prefiller() {
				t.Errorf("%s prefills, and is a target", d.Prefiller())
			}
		}
		d.End(Completed)
	}
	atRest(t, p, c)
}

// Both endpoints are booked from the pick on. The one that prefills is free when its events show the end, at the first token, or when it
// should be over if neither shows.
func TestARelayedPrefillIsBooked(t *testing.T) {
	keys := keysOf(t, "m", 0, 500)
	for name, tc := range map[string]struct {
		streamed, noEvents bool
		act                func(c *clock, p *Picker, d *Decision)
		booked             int
	}{
		"from the pick on":                            {streamed: true, act: func(*clock, *Picker, *Decision) {}, booked: 1},
		"until the first token":                       {streamed: true, act: func(_ *clock, _ *Picker, d *Decision) { d.FirstToken() }},
		"without events, too":                         {streamed: true, noEvents: true, act: func(_ *clock, _ *Picker, d *Decision) { d.FirstToken() }},
		"until the answer fails":                      {streamed: true, act: func(_ *clock, _ *Picker, d *Decision) { d.failed(errored); d.End(Failed) }},
		"until the client leaves":                     {streamed: true, act: func(_ *clock, _ *Picker, d *Decision) { d.End(ClientGone) }},
		"until its events":                            {streamed: true, act: func(_ *clock, p *Picker, _ *Decision) { announce(t, p, keys) }},
		"until its events, though it is not streamed": {act: func(_ *clock, p *Picker, _ *Decision) { announce(t, p, keys) }},
		"until it should be over":                     {act: func(c *clock, p *Picker, _ *Decision) { overdue(c, p) }},
		"until it should be over, without events":     {noEvents: true, act: func(c *clock, p *Picker, _ *Decision) { overdue(c, p) }},
		"not after an end that is not reported":       {streamed: true, act: func(c *clock, p *Picker, d *Decision) { d.Leave(Unreported); overdue(c, p) }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			spec := rolesSpec(t, relayed, endpoint.Prefill, endpoint.Decode)
			spec.NoEvents = tc.noEvents
			p := newPicker(t, c, spec)
			d := relays(t, p, completion("m", 0, 500, tc.streamed))
			members := p.named("default/m").members
			if l := members[0].load.View(c.Now()); l.PendingTokens < 400 {
				t.Errorf("%v tokens to prefill at the first endpoint", l.PendingTokens)
			}
			if l := members[1].load.View(c.Now()); l.InFlight != 1 || l.PendingTokens != 0 || members[1].coming.Load() != 0 {
				t.Errorf("%d requests, %v tokens to prefill at the second endpoint", l.InFlight, l.PendingTokens)
			}
			tc.act(c, p, d)
			if got := inFlight(p, c)[0]; got != tc.booked {
				t.Errorf("%d requests at the endpoint that prefills, want %d", got, tc.booked)
			}
			d.End(Completed)
			overdue(c, p)
			atRest(t, p, c)
		})
	}
}

// overdue lets more time pass than any answer needs.
func overdue(c *clock, p *Picker) {
	c.advance(10 * eventGrace)
	p.named("default/m").pending.expire(c.Now())
	c.advance(leftForLong)
}

const leftForLong = 600 * eventGrace

func TestRelayedHandoffsAreCounted(t *testing.T) {
	other := keysOf(t, "m", 9000, 64)
	for name, tc := range map[string]struct {
		streamed, noEvents bool
		act                func(p *Picker, d *Decision)
		want               HandoffOutcome
		failed             int // hand-offs of the endpoint that prefills
	}{
		"it announces blocks before the first token": {streamed: true, act: func(p *Picker, d *Decision) {
			announce(t, p, other)
			d.FirstToken()
			d.End(Completed)
		}, want: HandoffCompleted},
		"it announces the prompt a little later": {streamed: true, act: func(p *Picker, d *Decision) {
			d.FirstToken()
			announce(t, p, keysOf(t, "m", 0, 500))
			d.End(Completed)
		}, want: HandoffCompleted},
		"it announces others a little later": {streamed: true, act: func(p *Picker, d *Decision) {
			d.FirstToken()
			announce(t, p, other)
			d.End(Completed)
		}, want: HandoffCompleted},
		"it announces nothing":                   {streamed: true, act: func(_ *Picker, d *Decision) { showsToken(d) }, want: HandoffNotPrefilled, failed: 1},
		"it announces nothing in a pool without": {streamed: true, noEvents: true, act: func(_ *Picker, d *Decision) { showsToken(d) }, want: HandoffCompleted},
		"its events are late":                    {streamed: true, act: func(p *Picker, d *Decision) { f := feed(t, p, "pod-0"); f.Doubt(true); showsToken(d) }, want: HandoffCompleted},
		"it announces nothing for long": {streamed: true, act: func(p *Picker, d *Decision) {
			p.named("default/m").pending.expire(d.now().Add(100 * leftForLong))
			showsToken(d)
		}, want: HandoffNotPrefilled, failed: 1},
		"the answer is not streamed":               {act: func(p *Picker, d *Decision) { announce(t, p, other); d.End(Completed) }, want: HandoffCompleted},
		"it is not streamed, and announced later":  {act: func(p *Picker, d *Decision) { d.End(Completed); announce(t, p, keysOf(t, "m", 0, 500)) }, want: HandoffCompleted},
		"nor is anything announced":                {act: func(_ *Picker, d *Decision) { d.End(Completed) }, want: HandoffNotPrefilled, failed: 1},
		"nor are there events":                     {noEvents: true, act: func(_ *Picker, d *Decision) { d.End(Completed) }, want: HandoffCompleted},
		"only the header shows":                    {streamed: true, act: func(_ *Picker, d *Decision) { d.Leave(Completed) }, want: HandoffNotPrefilled, failed: 1},
		"an error":                                 {streamed: true, act: func(_ *Picker, d *Decision) { d.failed(errored); d.End(Failed) }, want: HandoffDecodeFailed, failed: 1},
		"no answer":                                {streamed: true, act: func(_ *Picker, d *Decision) { d.Fail(); d.End(Failed) }, want: HandoffDecodeFailed},
		"the client leaves before the first token": {streamed: true, act: func(_ *Picker, d *Decision) { d.End(ClientGone) }, want: HandoffClientGone},
		"the request is at fault":                  {streamed: true, act: func(_ *Picker, d *Decision) { d.End(Rejected) }, want: numOutcome},
		"a queue is full":                          {streamed: true, act: func(_ *Picker, d *Decision) { d.Full(openai.RequestLimit); d.End(Rejected) }, want: numOutcome},
		"the end is not reported":                  {streamed: true, act: func(_ *Picker, d *Decision) { d.Leave(Unreported) }, want: numOutcome},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			spec := rolesSpec(t, relayed, endpoint.Prefill, endpoint.Decode)
			spec.NoEvents = tc.noEvents
			p := newPicker(t, c, spec)
			tc.act(p, relays(t, p, completion("m", 0, 500, tc.streamed)))
			overdue(c, p)
			stats, members := p.Stats()[0], p.named("default/m").members
			for outcome, n := range stats.Handoffs {
				if want := int64(0); outcome == tc.want && n != 1 || outcome != tc.want && n != want {
					t.Errorf("hand-offs: %v %d", outcome, n)
				}
			}
			if members[0].gives.failures != tc.failed || members[1].receives.failures != tc.failed {
				t.Errorf("%d and %d hand-offs have failed, want %d", members[0].gives.failures, members[1].receives.failures, tc.failed)
			}
			if price := p.Stats()[0]; price.TransferSeconds != assumedBase {
				t.Errorf("%v s for each transfer: only the sidecar sees them", price.TransferSeconds)
			}
			atRest(t, p, c)
		})
	}
}

// announce lets the endpoint that prefills announce blocks.
func announce(t *testing.T, p *Picker, keys []kvblock.Key) {
	t.Helper()
	f := feed(t, p, "pod-0")
	hold(f, keys...)
	p.Confirm(&f, keys)
}

const numOutcome = HandoffOutcome(255)

func showsToken(d *Decision) {
	d.FirstToken()
	d.End(Completed)
}

// An endpoint whose sidecar hands nothing over, or cannot, serves requests alone after some.
func TestSidecarsThatFailAreLeftOut(t *testing.T) {
	for name, end := range map[string]func(*Decision){
		"there is none":    func(d *Decision) { showsToken(d) },
		"it passes errors": func(d *Decision) { d.failed(errored); d.End(Failed) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			spec := rolesSpec(t, relayed, endpoint.Prefill, endpoint.Decode)
			p := newPicker(t, c, spec)
			for i := range handoffFailures {
				d := relays(t, p, completion("m", 1000*i, 500, true))
				if d.Prefiller() == "" {
					t.Fatalf("request %d is served alone", i)
				}
				end(d)
				overdue(c, p)
				c.advance(-leftForLong) // failures count for the time of the circuit
			}
			d := relays(t, p, completion("m", 9000, 500, true))
			if d.Prefiller() != "" {
				t.Error("it is still handed over")
			}
			if n := p.Stats()[0].Endpoints[1].Failures; n != 0 {
				t.Errorf("%d failures of the endpoint that decodes: it can be the fault of the other one", n)
			}
			d.End(Completed)
		})
	}
}

// A relayed leg does not show whether its endpoint has answered, so that it is no probe of a circuit.
func TestARelayedPrefillIsNoProbe(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, relayed, endpoint.Prefill, endpoint.Decode))
	policy, first := p.named("default/m").spec.Policy, p.named("default/m").members[0]
	for range policy.CircuitFailures {
		first.circuit.Fail(c.Now(), policy.CircuitFailures, policy.CircuitOpen, false)
	}
	c.advance(policy.CircuitOpen + 1)
	d := relays(t, p, completion("m", 0, 500, true))
	if d.Prefiller() != "" || first.circuit.Probed() {
		t.Errorf("prefill at %q, probed %t", d.Prefiller(), first.circuit.Probed())
	}
	if n := p.Stats()[0].Plans[PlanTried]; n != 1 {
		t.Errorf("plans %v", p.Stats()[0].Plans)
	}
	d.End(Completed)
}

// With a sidecar, its headers are ours: no class of tenants can send them.
func TestHeadersOfTheSidecarAreForeign(t *testing.T) {
	for _, sidecar := range []bool{false, true} {
		spec := rolesSpec(t, HandoffSpec{Rule: HandoffNever, Sidecar: sidecar}, endpoint.Prefill, endpoint.Decode)
		spec.Policy.Admission.SetsTransfer = true
		p := newPicker(t, newClock(), spec)
		d := pick(t, p, completion("m", 0, 100, true))
		var names []string
		d.EachForeignHeader(func(name string) { names = append(names, name) })
		for _, name := range transferHeaders {
			if slices.Contains(names, name) != sidecar {
				t.Errorf("%s is removed: %t, with a sidecar: %t", name, !sidecar, sidecar)
			}
		}
		d.End(Completed)
	}
}
