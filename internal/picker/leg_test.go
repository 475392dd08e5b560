package picker

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// rolesSpec is a pool under MarginalCost whose endpoints have the given roles.
func rolesSpec(t testing.TB, rule HandoffSpec, roles ...endpoint.Role) Spec {
	t.Helper()
	spec := testSpec(t, len(roles))
	spec.Policy.Strategy = policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}}
	spec.Policy.Handoffs = rule
	for i, role := range roles {
		spec.Endpoints[i].Role = role
	}
	return spec
}

// above hands over nearly all prompts.
var above = HandoffSpec{Rule: HandoffAbove, UncachedTokens: 64}

// splits picks for a caller that can send two requests.
func splits(t testing.TB, p *Picker, body []byte) *Decision {
	t.Helper()
	d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Splits: true})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// next picks for the second leg.
func next(t testing.TB, p *Picker, body []byte, d *Decision) *Decision {
	t.Helper()
	d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Splits: true, Again: d, HandedOver: true})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// atRest fails unless nothing is booked, assumed or expected of any endpoint.
func atRest(t *testing.T, p *Picker, c *clock) {
	t.Helper()
	c.advance(time.Second) // what was announced late is not waited for any more
	v := p.named("default/m")
	v.pending.expire(c.Now())
	for i, m := range v.members {
		if l := m.load.View(c.Now()); l.InFlight != 0 || m.coming.Load() != 0 {
			t.Errorf("endpoint %d: %d in flight, %d to come", i, l.InFlight, m.coming.Load())
		}
	}
	if _, _, speculative := v.index.Size(); speculative != 0 || v.pending.size() != 0 {
		t.Errorf("%d blocks are assumed, %d requests speculate", speculative, v.pending.size())
	}
}

func inFlight(p *Picker, c *clock) (n []int) {
	for _, m := range p.named("default/m").members {
		l := m.load.View(c.Now())
		n = append(n, l.InFlight)
	}
	return n
}

func TestEndpointsThatOnlyPrefillServeNoRequestAlone(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Prefill, endpoint.Decode, endpoint.Neither))
	for i := range 20 {
		d := pick(t, p, completion("m", 1000*i, 500, true))
		if got := d.Targets[0].Endpoint.Pod; d.Leg() != Whole || len(d.Targets) != 1 || got != "pod-2" {
			t.Fatalf("leg %v at %s, %d targets", d.Leg(), got, len(d.Targets))
		}
		d.End(Completed)
	}
	if err := p.Apply([]Spec{rolesSpec(t, above, endpoint.Prefill, endpoint.Neither)}); err != nil {
		t.Fatal(err)
	}
	var refusal *Error
	if _, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: completion("m", 0, 500, true), Splits: true}); !errors.As(err, &refusal) {
		t.Errorf("a pool in which nothing decodes: %v", err)
	}
}

func TestRequestsAreHandedOverAboveABound(t *testing.T) {
	for name, tc := range map[string]struct {
		roles []endpoint.Role
		rule  HandoffSpec
		body  []byte
		want  Leg
	}{
		"a long prompt":                 {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, completion("m", 0, 64, true), PrefillLeg},
		"a short prompt":                {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, completion("m", 0, 63, true), Whole},
		"never":                         {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, HandoffSpec{Rule: HandoffNever}, completion("m", 0, 900, true), Whole},
		"no roles":                      {[]endpoint.Role{endpoint.Both, endpoint.Both}, above, completion("m", 0, 900, true), Whole},
		"no endpoint that prefills":     {[]endpoint.Role{endpoint.Decode, endpoint.Decode}, above, completion("m", 0, 900, true), Whole},
		"several answers":               {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","n":2,"prompt":` + ids(900) + `}`), Whole},
		"one token":                     {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","max_tokens":1,"prompt":` + ids(900) + `}`), Whole},
		"probabilities of the prompt":   {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","prompt_logprobs":1,"prompt":` + ids(900) + `}`), Whole},
		"a tool that has to be called":  {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","tool_choice":"required","prompt":` + ids(900) + `}`), Whole},
		"a named tool":                  {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","tool_choice":{"type":"function"},"prompt":` + ids(900) + `}`), Whole},
		"a tool that can be called":     {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","tool_choice":"auto","prompt":` + ids(900) + `}`), PrefillLeg},
		"beam search":                   {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","use_beam_search":true,"prompt":` + ids(900) + `}`), Whole},
		"more than the model's length":  {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","max_tokens":101,"prompt":` + ids(900) + `}`), Whole},
		"as much as the model's length": {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","max_tokens":100,"prompt":` + ids(900) + `}`), PrefillLeg},
		"several prompts":               {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","prompt":[` + ids(900) + `,` + ids(900) + `]}`), Whole},
		"parameters that are not there": {[]endpoint.Role{endpoint.Prefill, endpoint.Decode}, above, []byte(`{"model":"m","kv_transfer_params":null,"prompt":` + ids(900) + `}`), PrefillLeg},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			spec := rolesSpec(t, tc.rule, tc.roles...)
			p := newPicker(t, c, spec)
			for i := range spec.Endpoints {
				p.ObserveModels(spec.Endpoints[i].ID, []ListedModel{{Name: "m", MaxLen: 1000}})
			}
			d := splits(t, p, tc.body)
			if d.Leg() != tc.want {
				t.Errorf("leg %v, want %v", d.Leg(), tc.want)
			}
			d.End(Completed)
			atRest(t, p, c)
		})
	}
}

// ids are a prompt of n tokens.
func ids(n int) string {
	body := completion("m", 0, n, false)
	return string(body[len(`{"model":"m","prompt":`) : len(body)-len(`,"stream":false}`)])
}

func TestARequestIsBookedOnOneEndpointAtATime(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	body := completion("m", 0, 500, true)
	first := splits(t, p, body)
	if n := inFlight(p, c); n[0] != 1 || n[1] != 0 || p.named("default/m").members[1].coming.Load() != 1 {
		t.Errorf("in flight during the prefill: %v", n)
	}
	first.FirstToken()
	first.Usage(500, 0)
	second := next(t, p, body, first)
	if n := inFlight(p, c); second.Leg() != DecodeLeg || second.Targets[0].Endpoint.Pod != "pod-1" || n[0] != 0 || n[1] != 1 {
		t.Errorf("leg %v at %s; in flight: %v", second.Leg(), second.Targets[0].Endpoint.Pod, n)
	}
	first.End(Failed) // the proxy ends what it has at hand: nothing happens
	second.FirstToken()
	second.Usage(500, 500)
	second.End(Completed)
	atRest(t, p, c)

	stats := p.Stats()[0]
	if stats.Outcomes[Completed] != 1 || stats.Outcomes[Failed] != 0 || stats.Handoffs[HandoffCompleted] != 1 {
		t.Errorf("outcomes %v, hand-offs %v", stats.Outcomes, stats.Handoffs)
	}
	// The prefill's cached tokens are compared with its prediction; what the decode leg has loaded is not.
	if h := stats.Hits; h.Answers != 1 || h.Delivered != 0 || h.Deviation != 0 || h.Picks != 1 {
		t.Errorf("hits %+v", h)
	}
}

func TestALegThatEndsEarlyLeavesNothing(t *testing.T) {
	body := completion("m", 0, 500, true)
	for name, end := range map[string]func(p *Picker, d *Decision){
		"the client leaves during the prefill": func(_ *Picker, d *Decision) { d.End(ClientGone) },
		"the prefill fails, and the request goes on alone": func(p *Picker, d *Decision) {
			d.Fail()
			d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Again: d})
			if err != nil || d.Leg() != Whole {
				t.Fatalf("leg %v, %v", d.Leg(), err)
			}
			d.End(Completed)
		},
		"the client leaves between the legs": func(p *Picker, d *Decision) { next(t, p, body, d).End(ClientGone) },
		"the decode leg fails": func(p *Picker, d *Decision) {
			d = next(t, p, body, d)
			d.failed(errored)
			d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Again: d})
			if err != nil {
				t.Fatal(err)
			}
			d.End(Completed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Prefill, endpoint.Decode, endpoint.Decode))
			end(p, splits(t, p, body))
			atRest(t, p, c)
		})
	}
}

func TestEndpointsWhoseHandoffsFailAreLeftOutForATime(t *testing.T) {
	for name, fail := range map[string]func(*Decision){
		"with an error": func(d *Decision) { d.failed(errored) },
		"by hanging":    (*Decision).FailLate,
	} {
		t.Run(name, func(t *testing.T) { testLeftOutForATime(t, fail) })
	}
}

func testLeftOutForATime(t *testing.T, fail func(*Decision)) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	for i := range handoffFailures {
		body := completion("m", 1000*i, 500, true)
		d := next(t, p, body, splits(t, p, body))
		fail(d)
		d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, Again: d})
		if err != nil {
			t.Fatal(err)
		}
		d.End(Completed)
	}
	d := splits(t, p, completion("m", 9000, 500, true))
	if d.Leg() != Whole || d.Targets[0].Endpoint.Pod != "pod-1" {
		t.Errorf("leg %v at %s after hand-offs have failed", d.Leg(), d.Targets[0].Endpoint.Pod)
	}
	d.End(Completed)
	if stats := p.Stats()[0]; stats.Handoffs[HandoffDecodeFailed] != handoffFailures || stats.Endpoints[1].Failures != 0 {
		t.Errorf("hand-offs %v; failures of the endpoint that decodes: %d", stats.Handoffs, stats.Endpoints[1].Failures)
	}
	c.advance(11 * time.Second)
	d = splits(t, p, completion("m", 9000, 500, true))
	if d.Leg() != PrefillLeg {
		t.Error("the endpoint is not tried again")
	}
	d = next(t, p, completion("m", 9000, 500, true), d)
	c.advance(time.Second)
	d.FirstToken()
	d.End(Completed)
	if n := p.named("default/m").members[0].gives.failures; n != 0 {
		t.Errorf("%d failures after a success", n)
	}
}

func TestPlansAreComparedInSeconds(t *testing.T) {
	roles := []endpoint.Role{endpoint.Prefill, endpoint.Decode}
	leg := func(p *Picker, tokens int) Leg {
		d := splits(t, p, completion("m", 500_000, tokens, true))
		defer d.End(ClientGone)
		return d.Leg()
	}
	busy := func(p *Picker, pod string, n int) {
		for i := range n {
			d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: completion("m", 1000*i, 100, true),
				Allow: func(ep *endpoint.Endpoint) bool { return ep.Pod == pod }})
			if err != nil {
				t.Fatal(err)
			}
			d.FirstToken()
		}
	}
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, HandoffSpec{}, roles...))
	busy(p, "pod-1", 20)
	if got := leg(p, 8000); got != Whole {
		t.Errorf("20 running streams without a rule: leg %v for 8000 tokens", got)
	}
	p = newPicker(t, c, rolesSpec(t, HandoffSpec{Rule: HandoffByCost}, roles...))
	if got := leg(p, 8000); got != Whole {
		t.Errorf("an idle endpoint that decodes: leg %v for 8000 tokens", got)
	}
	busy(p, "pod-1", 20)
	if got := leg(p, 60); got != Whole {
		t.Errorf("20 running streams: leg %v for 60 tokens", got)
	}
	if got := leg(p, 8000); got != PrefillLeg {
		t.Errorf("20 running streams: leg %v for 8000 tokens", got)
	}
	p.named("default/m").handoffs.price = transferPrice{base: 60, learned: true}
	if got := leg(p, 8000); got != Whole {
		t.Errorf("hand-offs of a minute: leg %v for 8000 tokens", got)
	}
}

func TestHandoffPricesAreLearned(t *testing.T) {
	var p transferPrice
	if got := p.seconds(10_000); math.Abs(got-0.134) > 1e-9 {
		t.Errorf("assumed for 10,000 tokens: %v s", got)
	}
	for i := range 500 {
		tokens := 1000 + 37*i%9000
		p.learn(tokens, 0.1+2e-6*float64(tokens))
	}
	for tokens, want := range map[int]float64{0: 0.1, 1000: 0.102, 20_000: 0.14} {
		if got := p.seconds(tokens); math.Abs(got-want) > 0.01 {
			t.Errorf("learned for %d tokens: %v s, want %v", tokens, got, want)
		}
	}
	p.learn(1000, 3600) // a wait in the engine
	if got := p.seconds(1000); got > 0.2 {
		t.Errorf("after an outlier: %v s", got)
	}
	for range 1000 {
		p.learn(5000, -1)
	}
	if got := p.seconds(0); got < 0 || got > 0.05 {
		t.Errorf("after hand-offs without time: %v s", got)
	}
}
