package picker

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// reported hands nearly all prompts over, by Kvasir's sidecars.
var reported = HandoffSpec{Rule: HandoffAbove, UncachedTokens: 64, Sidecar: true, Own: true}

// TestTheSidecarsTicketNamesThePrefiller: it can be opened with the pool's seed.
func TestTheSidecarsTicketNamesThePrefiller(t *testing.T) {
	c := newClock()
	spec := rolesSpec(t, reported, endpoint.Prefill, endpoint.Decode)
	spec.Policy.FirstByte = 3 * time.Second
	p := newPicker(t, c, spec)
	d := relays(t, p, completion("m", 0, 500, true))
	name, value := d.RelayHeader()
	tag := relay.TagOf(spec.Endpoints[1].ID.Pod)
	ticket, err := relay.Open(value, tag, c.Now(), spec.Seed)
	want := relay.Ticket{Address: spec.Endpoints[0].Address, Pods: []string{tag}, Within: 3 * time.Second, ID: ticket.ID}
	if name != relay.TicketHeader || err != nil || !reflect.DeepEqual(ticket, want) {
		t.Errorf("%s: %q: %+v, %v", name, value, ticket, err)
	}
	if _, err := relay.Open(value, relay.TagOf(spec.Endpoints[0].ID.Pod), c.Now(), spec.Seed); err == nil {
		t.Error("the pod that prefills takes the ticket, too")
	}
	d.End(Completed)
	alone := relays(t, p, completion("m", 5000, 15, true))
	if name, value := alone.RelayHeader(); name != "" || value != "" {
		t.Errorf("%s: %q for a request that is served alone", name, value)
	}
	alone.End(Completed)
	theirs := newPicker(t, c, rolesSpec(t, relayed, endpoint.Prefill, endpoint.Decode))
	d = relays(t, theirs, completion("m", 0, 500, true))
	if name, value := d.RelayHeader(); name != PrefillerHeader || value != spec.Endpoints[0].Address {
		t.Errorf("%s: %q", name, value)
	}
	d.End(Completed)
}

// TestTicketsAreGoodWhileTheRootIsRotated: a sidecar learns of another root before or after the picker, or has not been reached by it yet
// when the others have moved.
func TestTicketsAreGoodWhileTheRootIsRotated(t *testing.T) {
	c := newClock()
	spec := rolesSpec(t, reported, endpoint.Prefill, endpoint.Decode)
	p := newPicker(t, c, spec)
	former, tag, prompts := spec.Seed, relay.TagOf(spec.Endpoints[1].ID.Pod), 0
	check := func(when string, good, bad []kvblock.Seed) {
		t.Helper()
		prompts++
		d := relays(t, p, completion("m", 1000*prompts, 500, true))
		defer d.End(Completed)
		_, value := d.RelayHeader()
		for i, seed := range append(good, bad...) {
			if _, err := relay.Open(value, tag, c.Now(), seed); (err == nil) != (i < len(good)) {
				t.Errorf("%s: a sidecar that knows root %d only: %v", when, i, err)
			}
		}
	}
	apply := func(b byte) kvblock.Seed {
		t.Helper()
		seed, err := kvblock.NewSeed(bytes.Repeat([]byte{b}, kvblock.MinSeedBytes))
		if err == nil {
			spec.Seed = seed
			err = p.Apply([]Spec{spec})
		}
		if err != nil {
			t.Fatal(err)
		}
		return seed
	}
	second := apply(2)
	check("after the change", []kvblock.Seed{former, second}, nil)
	p.Moved("default/m", []string{second.ID()})
	check("when the endpoints that the picker knows of have moved", []kvblock.Seed{former, second}, nil)
	spec.Policy.FirstByte = time.Second
	apply(2)
	check("after another change of the policy", []kvblock.Seed{former, second}, nil)
	third := apply(3)
	check("after the next rotation", []kvblock.Seed{second, third}, []kvblock.Seed{former})
}

// TestARelayedPrefillCanTakeManyTimesItsPrediction, at least half a minute, and no longer than the policy's time for the first byte.
func TestARelayedPrefillCanTakeManyTimesItsPrediction(t *testing.T) {
	for _, tc := range []struct{ firstByte, predicted, want time.Duration }{
		{0, 0, 30 * time.Second},
		{0, 10 * time.Second, 110 * time.Second},
		{10 * time.Minute, 10 * time.Second, 110 * time.Second},
		{5 * time.Second, 10 * time.Second, 5 * time.Second},
	} {
		if got := relayedWithin(&PolicySpec{FirstByte: tc.firstByte}, tc.predicted); got != tc.want {
			t.Errorf("%v for a prefill of %v, want %v", got, tc.predicted, tc.want)
		}
	}
}

// TestReportsOfTheSidecarCount: what the sidecar has seen of a hand-off is counted as such, once, against the right leg.
func TestReportsOfTheSidecarCount(t *testing.T) {
	shows := func(d *Decision) { d.FirstToken(); d.End(Completed) }
	for name, tc := range map[string]struct {
		report          string
		then            func(*Decision)
		want            HandoffOutcome
		gives, receives int
	}{
		"handed over":                      {"handed_over;prompt=500;cached=0;since=30", shows, HandoffCompleted, 0, 0},
		"handed over, and not streamed":    {"handed_over;prompt=500;cached=0;since=30", func(d *Decision) { d.End(Completed) }, HandoffCompleted, 0, 0},
		"handed over, and the client goes": {"handed_over;prompt=500;cached=0;since=30", func(d *Decision) { d.End(ClientGone) }, HandoffClientGone, 0, 0},
		"handed over, and a full queue":    {"handed_over;prompt=500;cached=0;since=30", func(d *Decision) { d.Full(openai.RequestLimit); d.End(Rejected) }, HandoffNoDecode, 0, 0},
		"handed over, and 503 for one":     {"handed_over;prompt=500;cached=0;since=30", func(d *Decision) { d.Full(openai.TokenLimit); d.End(Failed) }, HandoffNoDecode, 0, 0},
		"handed over, and then an error":   {"handed_over;prompt=500;cached=0;since=30", func(d *Decision) { d.failed(errored); d.End(Failed) }, HandoffDecodeFailed, 1, 1},
		"the first engine is dead":         {"prefill_failed;cause=connect", shows, HandoffPrefillFailed, 1, 0},
		"it aborts":                        {"prefill_failed;cause=broken", shows, HandoffPrefillFailed, 1, 0},
		"it is late":                       {"prefill_failed;cause=late", shows, HandoffPrefillFailed, 1, 0},
		"it answers with an error":         {"prefill_failed;cause=error", shows, HandoffPrefillFailed, 1, 0},
		"its queue is full":                {"prefill_failed;cause=full", shows, HandoffPrefillFailed, 0, 0},
		"the request is at fault":          {"prefill_failed;cause=request", shows, HandoffPrefillFailed, 0, 0},
		"the sidecar lacks descriptors":    {"prefill_failed;cause=local", shows, HandoffPrefillFailed, 0, 0},
		"it has no connector":              {"no_parameters;owed=1;prompt=500;cached=0", shows, HandoffNoParameters, 1, 0},
		"it has ended at a stop token":     {"no_parameters;prompt=500;cached=0", shows, HandoffNoParameters, 0, 0},
		"no memory":                        {"no_memory", shows, HandoffNoMemory, 0, 0},
		"the blocks cannot be loaded":      {"decode_failed;prompt=500;cached=0", shows, HandoffDecodeFailed, 1, 1},
		"nor is it served alone":           {"decode_failed;prompt=500;cached=0", func(d *Decision) { d.failed(errored); d.End(Failed) }, HandoffDecodeFailed, 0, 0},
		"the ticket is refused":            {"refused;cause=ticket", shows, HandoffTicketRefused, 0, 0},
		"an earlier sidecar refuses it":    {"refused", shows, HandoffTicketRefused, 0, 0},
		"such a request is refused":        {"refused;cause=request", shows, HandoffNotPrefilled, 0, 0},
		"there is no sidecar":              {"", shows, HandoffNotPrefilled, 1, 1},
		"it says something else":           {"all is well", shows, HandoffNotPrefilled, 1, 1},
		"it says it twice": {"prefill_failed;cause=connect", func(d *Decision) {
			d.SidecarReport("prefill_failed;cause=connect")
			d.SidecarReport("handed_over;prompt=500")
			shows(d)
		}, HandoffPrefillFailed, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, streamed := range []bool{true, false} {
				c := newClock()
				p := newPicker(t, c, rolesSpec(t, reported, endpoint.Prefill, endpoint.Decode))
				d := relays(t, p, completion("m", 0, 500, streamed))
				c.advance(100 * time.Millisecond)
				d.SidecarReport(tc.report)
				if got := inFlight(p, c)[0]; got != 0 {
					t.Errorf("%d requests at the endpoint that prefills, after its end is reported", got)
				}
				named := false
				d.Explain(0, func(name, _ string) { named = named || name == "x-kvasir-prefill-endpoint" })
				if handed := tc.report[:min(len(tc.report), 4)] == "hand"; named != handed {
					t.Errorf("the endpoint that prefills is named to clients: %t", named)
				}
				tc.then(d)
				overdue(c, p)
				members := p.named("default/m").members
				for outcome, n := range p.Stats()[0].Handoffs {
					if want := int64(0); outcome == tc.want && n != 1 || outcome != tc.want && n != want {
						t.Errorf("hand-offs: %v %d", outcome, n)
					}
				}
				if members[0].gives.failures != tc.gives || members[1].receives.failures != tc.receives {
					t.Errorf("%d and %d hand-offs have failed, want %d and %d", members[0].gives.failures, members[1].receives.failures, tc.gives, tc.receives)
				}
				if n := p.Stats()[0].Endpoints[0].Failures; n != 0 {
					t.Errorf("%d failures of the endpoint that prefills: only another pod says so", n)
				}
				atRest(t, p, c)
			}
		})
	}
}

// TestReportsTeachThePriceOfTransfers: the time from the second leg to the first token, without what was before and the way from the sidecar.
func TestReportsTeachThePriceOfTransfers(t *testing.T) {
	learn := func(handoffs HandoffSpec, report string) (base, perToken float64) {
		c := newClock()
		p := newPicker(t, c, rolesSpec(t, handoffs, endpoint.Prefill, endpoint.Decode))
		for i := range 200 {
			n := 500 + 40*(i%100)
			d := relays(t, p, completion("m", 10000*i, n, true))
			c.advance(time.Second) // of the prefill
			c.advance(time.Duration(n) * 20 * time.Microsecond)
			d.SidecarReport(report)
			c.advance(80 * time.Millisecond)
			d.FirstToken()
			d.End(Completed)
			overdue(c, p)
		}
		stats := p.Stats()[0]
		return stats.TransferSeconds, stats.TransferTokenSeconds
	}
	if base, perToken := learn(reported, "handed_over;prompt=500;cached=0;since=20"); base+2500*perToken < 0.095 || base+2500*perToken > 0.105 {
		t.Errorf("%v s and %v s for each token, want 0.1 s in all", base, perToken)
	}
	for name, report := range map[string]string{"that have failed": "prefill_failed;cause=late", "that are not reported": ""} {
		if base, perToken := learn(reported, report); base != assumedBase || perToken != assumedPerToken {
			t.Errorf("hand-offs %s teach %v s and %v s for each token", name, base, perToken)
		}
	}
}

// TestTheProxyAndTheSidecarTeachOnePrice for the same engines: the one that decodes is busy when a request is picked for, is idle when the
// prefill has ended, and loads the blocks in 400 ms.
func TestTheProxyAndTheSidecarTeachOnePrice(t *testing.T) {
	const transfer = 400 * time.Millisecond
	learn := func(rule HandoffSpec) float64 {
		c := newClock()
		p := newPicker(t, c, rolesSpec(t, rule, endpoint.Prefill, endpoint.Decode))
		decodes := p.named("default/m").members[1]
		for i := range 100 {
			body := completion("m", 10000*i, 500, true)
			busy := decodes.load.Book(c.Now(), load.WorkOf(1000, 0), true)
			if wait := decodes.load.Predict(c.Now(), load.Work{}); wait < transfer/2 || wait > 2*time.Second {
				t.Fatalf("%v of wait at the endpoint that decodes", wait)
			}
			var d *Decision
			if rule.Own {
				d = relays(t, p, body)
			} else {
				d = splits(t, p, body)
			}
			c.advance(500 * time.Millisecond)
			busy.FirstToken(c.Now())
			busy.Release(c.Now())
			c.advance(time.Second) // of the first leg
			if rule.Own {
				c.advance(transfer)
				d.SidecarReport("handed_over;prompt=500;cached=0;since=400")
			} else {
				d = next(t, p, body, d)
				c.advance(transfer)
			}
			d.FirstToken()
			d.End(Completed)
			overdue(c, p)
		}
		return p.Stats()[0].TransferSeconds + 500*p.Stats()[0].TransferTokenSeconds
	}
	proxy, sidecar := learn(above), learn(reported)
	if proxy < 0.2 || proxy > 0.405 || sidecar < 0.99*proxy || sidecar > 1.01*proxy {
		t.Errorf("transfers of 0.4 s, that of the engine's step included, cost %v s by the proxy, and %v s by the sidecar", proxy, sidecar)
	}
}

// TestHitsOfTheFirstLegAreCompared with what was predicted there, as those that the picker's proxy hands over are.
func TestHitsOfTheFirstLegAreCompared(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, reported, endpoint.Prefill, endpoint.Decode))
	f := feed(t, p, "pod-0")
	hold(f, keysOf(t, "m", 0, 320)...)
	d := relays(t, p, completion("m", 0, 500, true))
	d.SidecarReport("handed_over;prompt=500;cached=304;since=1")
	d.FirstToken()
	d.Usage(500, 500) // the second leg counts what it has loaded
	d.End(Completed)
	overdue(c, p)
	hits := p.Stats()[0].Hits
	if hits.Predicted != 320 || hits.Delivered != 304 {
		t.Errorf("hits %+v", hits)
	}
}

// TestABlocksLeaseKeepsThePrefillerUp: a planned shutdown of the endpoint that has prefilled waits for the first token.
func TestABlocksLeaseKeepsThePrefillerUp(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, reported, endpoint.Prefill, endpoint.Decode))
	d := relays(t, p, completion("m", 0, 500, true))
	d.SidecarReport("handed_over;prompt=500;cached=0;since=1")
	leases := &p.named("default/m").members[0].leases
	if n := leases.count(c.Now()); n != 1 {
		t.Errorf("%d leases", n)
	}
	d.FirstToken()
	if n := leases.count(c.Now()); n != 0 {
		t.Errorf("%d leases after the first token", n)
	}
	d.End(Completed)
}

// TestReportsThatComeLateTeachNoSpeed: the answer of a request that was served alone begins long after its prefill has ended.
func TestReportsThatComeLateTeachNoSpeed(t *testing.T) {
	for report, teaches := range map[string]bool{
		"handed_over;prompt=500;cached=0;since=1000": true,
		"no_parameters;prompt=500;cached=0":          false,
		"decode_failed;prompt=500;cached=0":          false,
	} {
		c := newClock()
		p := newPicker(t, c, rolesSpec(t, reported, endpoint.Prefill, endpoint.Decode))
		for i := range 20 {
			d := relays(t, p, completion("m", 10000*i, 500, false))
			c.advance(2 * time.Second)
			d.SidecarReport(report)
			d.End(Completed)
			overdue(c, p)
		}
		if rate := p.Stats()[0].Endpoints[0].Load.Rate; (rate > 0) != teaches {
			t.Errorf("%s: a speed of %v tokens a second is learned", report, rate)
		}
	}
}

// TestNoSecondLegIsSentBeforeThePick, whatever a sidecar reports.
func TestNoSecondLegIsSentBeforeThePick(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, rolesSpec(t, reported, endpoint.Prefill, endpoint.Decode))
	for i := range 20 {
		d := relays(t, p, completion("m", 10000*i, 500, true))
		c.advance(100 * time.Millisecond)
		d.SidecarReport("handed_over;prompt=500;cached=0;since=3600000")
		leases := &p.named("default/m").members[0].leases
		if n := leases.count(c.Now()); n != 1 {
			t.Fatalf("%d leases", n)
		}
		d.FirstToken()
		d.End(Completed)
		overdue(c, p)
	}
	if s := p.Stats()[0]; s.TransferSeconds+500*s.TransferTokenSeconds > 0.11 {
		t.Errorf("%v s and %v s for each token", s.TransferSeconds, s.TransferTokenSeconds)
	}
}
