package picker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

func unparsed(pool string, allow func(*endpoint.Endpoint) bool) *Request {
	return &Request{Unparsed: true, Pool: pool, Allow: allow}
}

func TestWhatCannotBeParsedGoesByLoad(t *testing.T) {
	spec := testSpec(t, 3)
	spec.Policy.Strategy = policy.Config{Type: policy.LeastLoad}
	p := newPicker(t, newClock(), spec)
	seen := map[endpoint.ID]bool{}
	for range 3 {
		d, err := p.Pick(context.Background(), unparsed("", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer d.End(Completed)
		seen[d.Targets[0].Endpoint.ID] = true
		if d.Tokens != TokensNone || d.TokensMissing != "route" {
			t.Errorf("tokens %v, missing %q", d.Tokens, d.TokensMissing)
		}
	}
	if len(seen) != 3 {
		t.Errorf("three requests went to %d endpoints, want one each", len(seen))
	}
}

func TestOnlyAllowedEndpointsAreChosen(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 4))
	only := func(id endpoint.ID) func(*endpoint.Endpoint) bool {
		return func(ep *endpoint.Endpoint) bool { return ep.ID == id }
	}
	for i := range 4 {
		for name, in := range map[string]*Request{
			"a completion": {Route: openai.Completions, Body: completion("m", 0, 64, true), Allow: only(testEndpoint(i).ID)},
			"unparsed":     unparsed("", only(testEndpoint(i).ID)),
		} {
			d, err := p.Pick(context.Background(), in)
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Targets) != 1 || d.Targets[0].Endpoint.ID != testEndpoint(i).ID {
				t.Errorf("%s: targets %v, want endpoint %d alone", name, d.Targets, i)
			}
			d.End(Completed)
		}
	}
	for name, in := range map[string]*Request{
		"a completion": {Route: openai.Completions, Body: completion("m", 0, 64, true), Allow: only(endpoint.ID{Pod: "other"})},
		"unparsed":     unparsed("", only(endpoint.ID{Pod: "other"})),
	} {
		if _, err := p.Pick(context.Background(), in); statusOf(err) != 503 {
			t.Errorf("%s with no endpoint allowed: %v, want 503", name, err)
		}
	}
	if got := p.Stats()[0].Refused; got != 2 {
		t.Errorf("%d refused, want 2", got)
	}
	assertIdle(t, p)
}

func statusOf(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

func TestARequestBoundToAPoolStaysThere(t *testing.T) {
	a, b := testSpec(t, 1), testSpec(t, 1)
	b.Name, b.Model, b.Aliases = "n", "n", nil
	b.Endpoints = []endpoint.Endpoint{testEndpoint(7)}
	p := newPicker(t, newClock(), a, b)
	d, err := p.Pick(context.Background(), unparsed("default/n", nil))
	if err != nil || d.Pool != "n" {
		t.Fatalf("%v, %v", d, err)
	}
	d.End(Completed)
	in := &Request{Route: openai.Completions, Body: completion("n", 0, 16, false), Pool: "default/m"}
	if _, err := p.Pick(context.Background(), in); statusOf(err) != 404 {
		t.Errorf("another pool's model: %v, want 404", err)
	}
	if _, err := p.Pick(context.Background(), unparsed("default/none", nil)); statusOf(err) != 503 {
		t.Errorf("no such pool: %v, want 503", err)
	}
	// Without a pool, one that has an endpoint will do.
	d, err = p.Pick(context.Background(), unparsed("", func(ep *endpoint.Endpoint) bool { return ep.ID == testEndpoint(7).ID }))
	if err != nil || d.Pool != "n" {
		t.Fatalf("%v, %v", d, err)
	}
	d.End(Completed)
	// A body that cannot be parsed can still name its model.
	for _, model := range []string{"m", "n"} {
		d, err := p.Pick(context.Background(), &Request{Unparsed: true, Body: []byte(`{"model":"` + model + `"}`)})
		if err != nil || d.Pool != model {
			t.Fatalf("%v, %v, want pool %s", d, err, model)
		}
		d.End(Completed)
	}
	assertIdle(t, p)
}

// A gateway without a response phase: the load must neither vanish with the pick nor stay for ever.
func TestUnreportedRequestsCountUntilTheyShouldBeOver(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	for range 10 {
		d := pick(t, p, completion("m", 0, 200, true))
		d.Leave(Unreported)
		d.End(ClientGone) // too late to count
	}
	if got := p.Stats()[0]; got.Endpoints[0].Load.InFlight != 10 || got.Outcomes[Unreported] != 10 || got.Outcomes[ClientGone] != 0 {
		t.Errorf("%+v, want 10 in flight, unreported", got)
	}
	c.advance(time.Minute)
	pick(t, p, completion("m", 5000, 16, true)).End(Completed) // a pick ends what is late
	assertIdle(t, p)
}

func TestAnEngineSaysHowManyUnreportedRequestsItHas(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	id := testEndpoint(0).ID
	for range 10 {
		pick(t, p, completion("m", 0, 200, true)).Leave(Unreported)
	}
	inFlight := func() int { return p.Stats()[0].Endpoints[0].Load.InFlight }
	p.Observe(id, c.Now(), load.Report{})
	if got := inFlight(); got != 10 {
		t.Errorf("%d in flight, want 10: they are still under way", got)
	}
	c.advance(3 * time.Second)
	p.Observe(id, c.Now(), load.Report{Running: 3, Waiting: 1})
	if got := inFlight(); got != 4 {
		t.Errorf("%d in flight, want the engine's 4", got)
	}
	c.advance(time.Minute)
	p.Observe(id, c.Now(), load.Report{Running: 4})
	if got := inFlight(); got != 4 {
		t.Errorf("%d in flight, want 4: the engine still has them", got)
	}
	p.Observe(id, c.Now(), load.Report{})
	if got := inFlight(); got != 0 {
		t.Errorf("%d in flight, want none", got)
	}
}

// What a gateway says of the endpoint that served is held against what it was given.
func TestPicksThatAGatewayDoesNotFollowAreCounted(t *testing.T) {
	for name, tc := range map[string]struct {
		serves, named int  // index in Targets, 9 for an endpoint that was no target, -1 for none of the pool's
		dead          bool // the pick
		want          GatewayStats
		failures      [2]int64 // of the first two targets
		inFlight      int      // of the pool
	}{
		"the pick":                       {0, 1, false, GatewayStats{Reported: 1}, [2]int64{}, 1},
		"the pick, of a list":            {0, 3, false, GatewayStats{Reported: 1}, [2]int64{}, 1},
		"a retry":                        {1, 3, false, GatewayStats{Reported: 1, Retried: 1}, [2]int64{1, 0}, 1},
		"a second retry":                 {2, 3, false, GatewayStats{Reported: 1, Retried: 1}, [2]int64{1, 1}, 1},
		"a fallback that was not named":  {1, 1, false, GatewayStats{Reported: 1, Unfollowed: 1}, [2]int64{}, 1},
		"an endpoint that was no target": {9, 3, false, GatewayStats{Reported: 1, Unfollowed: 1}, [2]int64{}, 1},
		"a fallback that was not named, for a dead pick":  {1, 1, true, GatewayStats{Reported: 1, Retried: 1}, [2]int64{1, 0}, 1},
		"an endpoint that was no target, for a dead pick": {9, 3, true, GatewayStats{Reported: 1, Retried: 1}, [2]int64{1, 0}, 1},
		"an address that is not the pool's":               {-1, 3, false, GatewayStats{Reported: 1, Unfollowed: 1}, [2]int64{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 4)
			spec.Policy.Attempts = 3
			p := newPicker(t, newClock(), spec)
			d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: completion("m", 0, 64, true), Gateway: "10.0.0.9"})
			if err != nil {
				t.Fatal(err)
			}
			targets := map[string]bool{}
			for _, target := range d.Targets {
				targets[target.Endpoint.Address] = true
			}
			address := "192.0.2.1:1"
			for _, ep := range spec.Endpoints {
				if tc.serves == 9 && !targets[ep.Address] {
					address = ep.Address
				}
			}
			if tc.serves >= 0 && tc.serves < 9 {
				address = d.Targets[tc.serves].Endpoint.Address
			}
			first, second := d.Targets[0].Endpoint.ID, d.Targets[1].Endpoint.ID
			switch passed := d.Served(address, tc.named); {
			case passed == nil:
			case passed.Address() != d.Targets[0].Endpoint.Address:
				t.Errorf("asks for %s", passed.Address())
			case tc.dead:
				passed.Dead()
			default:
				passed.Alive()
			}
			s := p.Stats()[0]
			tc.want.Gateway = "10.0.0.9"
			if diff := cmp.Diff([]GatewayStats{tc.want}, s.Gateways); diff != "" {
				t.Error(diff)
			}
			inFlight := 0
			for _, e := range s.Endpoints {
				inFlight += e.Load.InFlight
				if e.ID == first && e.Failures != tc.failures[0] || e.ID == second && e.Failures != tc.failures[1] {
					t.Errorf("%s: %d failures", e.Pod, e.Failures)
				}
			}
			if inFlight != tc.inFlight {
				t.Errorf("%d in flight, want %d", inFlight, tc.inFlight)
			}
			d.FirstToken()
			d.End(Completed)
			assertIdle(t, p)
		})
	}
}

// A gateway is judged by its last answers: some that went elsewhere are no accident, and better ones clear it.
func TestAGatewayIsJudgedByItsLastAnswers(t *testing.T) {
	c := newClock()
	var g gatewayTallies
	add := func(n int, bad bool) {
		for range n {
			g.add("a", func(t *gatewayTally) { t.served.add(c.Now(), bad); t.held.add(c.Now(), bad) })
		}
	}
	judged := func(want bool, when string) {
		t.Helper()
		if s := g.read(c.Now())[0]; s.Ignores != want || s.Buffers != want {
			t.Errorf("%s: %+v", when, s)
		}
	}
	add(100, false)
	add(tooUnfollowed-1, true)
	judged(false, "few")
	add(1, true)
	judged(true, "enough")
	add(judgedAnswers, false)
	judged(false, "after good ones")
	add(tooUnfollowed, true)
	c.advance(judgedFor + 1)
	judged(false, "long ago")
	for i := range 2 * maxGateways {
		g.add(fmt.Sprint(i), func(*gatewayTally) {})
	}
	if n := len(g.read(c.Now())); n != maxGateways+1 {
		t.Errorf("%d gateways are distinguished", n)
	}
}

func TestTheLoadMovesToWhoHasServed(t *testing.T) {
	spec := testSpec(t, 3)
	spec.Policy.Attempts = 1
	p := newPicker(t, newClock(), spec)
	d := pick(t, p, completion("m", 0, 64, true))
	other := -1
	for i := range spec.Endpoints {
		if spec.Endpoints[i].ID != d.Targets[0].Endpoint.ID {
			other = i
		}
	}
	d.Served(spec.Endpoints[other].Address, 1)
	d.Served(d.Targets[0].Endpoint.Address, 1) // only the first word counts
	for i, e := range p.Stats()[0].Endpoints {
		if want := map[bool]int{true: 1}[i == other]; e.Load.InFlight != want {
			t.Errorf("endpoint %d: %d in flight, want %d", i, e.Load.InFlight, want)
		}
	}
	d.End(Completed)
	assertIdle(t, p)
}

func TestHeadersAreFoundUnderBothNames(t *testing.T) {
	for sent, asked := range map[string]string{
		"x-llm-d-inference-fairness-id":   FairnessHeader,
		"x-gateway-inference-fairness-id": "x-llm-d-inference-fairness-id",
		"x-llm-d-inference-objective":     ObjectiveHeader,
		"x-llm-d-model-name-rewrite":      RewriteHeader,
		"x-session-id":                    "x-session-id",
	} {
		header := func(name string) string { return map[string]string{sent: "v"}[name] }
		if got := HeaderOf(header, asked); got != "v" {
			t.Errorf("%s asked for as %s: %q", sent, asked, got)
		}
	}
	header := func(name string) string { return map[string]string{"x-llm-d-other": "v"}[name] }
	if got := HeaderOf(header, "x-gateway-other"); got != "" {
		t.Errorf("an unrelated header was taken: %q", got)
	}
}

func TestAnAnswerIsWatched(t *testing.T) {
	const event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
	const last = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n"
	for name, tc := range map[string]struct {
		status               int
		kind, encoding, body string
		want                 Outcome
		first                bool
		answers              int64
	}{
		"a stream":                {200, "text/event-stream; charset=utf-8", "", event + last, Completed, true, 1},
		"a stream, compressed":    {200, "text/event-stream", "gzip", "????", Completed, true, 0},
		"JSON":                    {200, "application/json", "", `{"usage":{"prompt_tokens":64,"prompt_tokens_details":{"cached_tokens":0}}}`, Completed, false, 1},
		"JSON, compressed":        {200, "application/json", "br", `{"usage":{"prompt_tokens":64}}`, Completed, false, 0},
		"an engine that fails":    {200, "text/event-stream", "", event + "data: {\"error\":{}}\n\n", Failed, true, 0},
		"a request's own fault":   {400, "application/json", "", `{"error":{}}`, Rejected, false, 0},
		"an engine's own fault":   {503, "application/json", "", `{"error":{}}`, Failed, false, 0},
		"nothing":                 {200, "", "", "", Completed, false, 0},
		"JSON of nothing":         {200, "application/json", "", "", Failed, false, 0},
		"a stream of nothing":     {200, "text/event-stream", "", "data: [DONE]\n\n", Failed, false, 0},
		"an aborted request":      {200, "application/json", "", `{"choices":[{"finish_reason":"abort"}],"usage":{"prompt_tokens":64}}`, Failed, false, 0},
		"an error of the request": {200, "text/event-stream", "", "data: {\"error\":{\"code\":400}}\n\n", Rejected, false, 0},
		"too many requests":       {429, "application/json", "", `{"error":{}}`, Rejected, false, 0},
		"an event without an end": {200, "text/event-stream", "identity", event[:len(event)-2], Completed, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for cut := 1; cut <= max(1, len(tc.body)); cut += 7 {
				p := newPicker(t, newClock(), testSpec(t, 1))
				d := pick(t, p, completion("m", 0, 64, true))
				var a Answer
				a.Start(d, tc.status, tc.kind, tc.encoding)
				first := 0
				for body := tc.body; body != ""; {
					n := min(cut, len(body))
					if a.Write([]byte(body[:n])) {
						first++
					}
					body = body[n:]
				}
				got, late := a.Close()
				if late {
					first++
				}
				if got != tc.want || first != map[bool]int{true: 1}[tc.first] {
					t.Errorf("cut at %d: %v with %d first tokens, want %v, %v", cut, got, first, tc.want, tc.first)
				}
				d.End(got)
				if n := p.Stats()[0].Hits.Answers; n != tc.answers {
					t.Errorf("cut at %d: %d answers told their usage, want %d", cut, n, tc.answers)
				}
				assertIdle(t, p)
			}
		})
	}
}
