package picker

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// A gateway that reports nothing of the endpoint that served is found out by what the engines have generated.
func TestGatewaysThatReportNothingAreJudgedByTheTokensOfEngines(t *testing.T) {
	const tokens = 10
	type step struct {
		answers  int // to requests picked for the endpoint
		generate int // tokens of the endpoint's engine before the next report
	}
	all := func(engine int) []step { return []step{{claimedAnswers, engine}, {0, 0}} }
	lists := func(s *Spec, r *Request) {
		s.OrderedDestinations, s.Policy.Attempts, r.Allow = true, 3, nil
	}
	cases := map[string]struct {
		steps   []step
		every   time.Duration // a second more between two reports; 1 s where it is 0
		change  func(*Spec, *Request)
		report  func(*load.Report)
		served  bool // the gateway reports which endpoint has served
		outcome Outcome
		want    GatewayStats
	}{
		"the engine has generated none":             {steps: all(0), want: GatewayStats{Unfollowed: claimedAnswers, Ignores: true}},
		"the engine has generated all":              {steps: all(claimedAnswers * tokens)},
		"it has generated more, for others":         {steps: all(1e6)},
		"half of them, as an engine may count":      {steps: all(claimedAnswers * tokens / 2)},
		"a quarter of them":                         {steps: all(claimedAnswers * tokens / 4), want: GatewayStats{Unfollowed: claimedAnswers * 3 / 4, Ignores: true}},
		"too few answers to judge":                  {steps: []step{{claimedAnswers - 1, 0}, {0, 0}, {0, 0}}},
		"answers of several reports":                {steps: []step{{claimedAnswers / 2, 0}, {claimedAnswers / 2, 0}, {0, 0}}, want: GatewayStats{Unfollowed: claimedAnswers, Ignores: true}},
		"tokens that are counted a report late":     {steps: []step{{claimedAnswers, 0}, {0, claimedAnswers * tokens}}},
		"an engine that was restarted":              {steps: []step{{claimedAnswers, -1e6}, {0, 0}, {0, 0}}},
		"an engine that counts no tokens":           {steps: all(0), report: func(r *load.Report) { r.CountsGenerated = false }},
		"a gateway that reports who served":         {steps: all(0), served: true, want: GatewayStats{Reported: claimedAnswers}},
		"requests whose client has left":            {steps: all(0), outcome: ClientGone},
		"a gateway that only observes":              {steps: all(0), change: func(_ *Spec, r *Request) { r.Observed = true }},
		"no gateway":                                {steps: all(0), change: func(_ *Spec, r *Request) { r.Gateway = "" }},
		"ranks that the engine can ignore":          {steps: all(0), change: func(s *Spec, _ *Request) { s.Endpoints[0].RankHeader = 0 }},
		"lists whose other endpoints can answer":    {steps: all(0), change: lists},
		"lists, for a long time":                    {steps: all(0), change: lists, every: avoidedFor, want: GatewayStats{Unfollowed: claimedAnswers, Ignores: true}},
		"lists, for a long time, one by one":        {steps: []step{{claimedAnswers, 0}, {0, 0}, {0, 0}, {1, 0}, {0, 0}}, change: lists, every: avoidedFor / 3, want: GatewayStats{Unfollowed: claimedAnswers, Ignores: true}},
		"lists, and the engine has generated some":  {steps: all(1), change: lists, every: avoidedFor},
		"a list of one":                             {steps: all(0), change: func(s *Spec, _ *Request) { s.OrderedDestinations = true }, want: GatewayStats{Unfollowed: claimedAnswers, Ignores: true}},
		"an engine that was restarted, with a list": {steps: []step{{claimedAnswers, -1e6}, {0, 0}, {0, 0}}, change: lists, every: avoidedFor},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			spec, request := testSpec(t, 2), Request{Route: openai.Completions, Gateway: "10.0.0.9"}
			only := spec.Endpoints[0].ID
			request.Allow = func(ep *endpoint.Endpoint) bool { return ep.ID == only }
			if tc.change != nil {
				tc.change(&spec, &request)
			}
			c := newClock()
			p := newPicker(t, c, spec)
			generated := 1e6
			report := func() {
				c.advance(max(time.Second, tc.every))
				r := load.Report{Generated: generated, CountsGenerated: true}
				if tc.report != nil {
					tc.report(&r)
				}
				p.Observe(only, c.Now(), r)
				c.advance(time.Second)
			}
			report()
			for _, s := range tc.steps {
				for i, n := 0, 0; i < s.answers; n++ {
					in := request
					in.Body = completion("m", 100*n, 64, true)
					d, err := p.Pick(context.Background(), &in)
					if err != nil {
						t.Fatal(err)
					}
					if d.Targets[0].Endpoint.ID != only {
						d.End(ClientGone)
						continue
					}
					i++
					if tc.served {
						d.Served(d.Targets[0].Endpoint.Address, 1, 0)
					}
					d.FirstToken()
					d.Generated(tokens)
					d.End(tc.outcome)
				}
				generated += float64(s.generate)
				report()
			}
			got := p.Stats()[0].Gateways
			var want []GatewayStats
			if tc.want != (GatewayStats{}) || len(got) > 0 && request.Gateway != "" {
				tc.want.Gateway = "10.0.0.9"
				want = []GatewayStats{tc.want}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An answer counts only if all of its tokens were generated after the count that it is compared with.
func TestAnswersBegunBeforeAWindowClaimNothing(t *testing.T) {
	var c claims
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for range 2 * claimedAnswers { // before any report, and picked before the first one
		c.add("g", at(0), 1000, false)
	}
	c.report(at(1), 5, true)
	for range 2 * claimedAnswers {
		c.add("g", at(0), 1000, false)
	}
	for i := 2; i < 5; i++ {
		if found := c.report(at(i), 5, true); len(found) != 0 {
			t.Errorf("report %d: %+v", i, found)
		}
	}
	for range claimedAnswers {
		c.add("g", at(5), 1000, false)
	}
	c.report(at(6), 5, true)
	if diff := cmp.Diff([]followed{{"g", claimedAnswers, claimedAnswers}}, c.report(at(7), 5, true), cmp.AllowUnexported(followed{})); diff != "" {
		t.Error(diff)
	}
	for range claimedAnswers { // a new window: these were picked before it
		c.add("g", at(6), 1000, false)
	}
	for i := 8; i < 11; i++ {
		if found := c.report(at(i), 5, true); len(found) != 0 {
			t.Errorf("report %d: %+v", i, found)
		}
	}
}

// No gateway is blamed for another one, windows end without a verdict, and the gateways of an endpoint are bounded.
func TestWindowsOfClaimsAreBounded(t *testing.T) {
	var c claims
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c.report(start, 0, true)
	for _, gateway := range []string{"a", "b", "c", "d", "e", "f"} {
		for range claimedAnswers {
			c.add(gateway, start.Add(time.Second), 10, false)
		}
	}
	if len(c.gateways) != maxClaimants {
		t.Errorf("%d gateways are judged, want %d", len(c.gateways), maxClaimants)
	}
	c.report(start.Add(2*time.Second), claimedAnswers*10, true)
	for _, f := range c.report(start.Add(3*time.Second), claimedAnswers*10, true) {
		if f.ignored != 0 {
			t.Errorf("the engine has generated as much as %s's answers have: %+v", f.gateway, f)
		}
	}
	c.add("a", start.Add(4*time.Second), 10, false)
	c.report(start.Add(judgedFor+4*time.Second), claimedAnswers*10, true)
	if len(c.gateways) != 0 {
		t.Errorf("windows without enough answers remain: %+v", c.gateways)
	}
}
