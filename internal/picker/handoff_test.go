package picker

import (
	"context"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
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
			if n := members[0].handoffs.Failures(); n != tc.p {
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
		second.circuit.Fail(c.Now(), policy.CircuitFailures, policy.CircuitOpen)
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
