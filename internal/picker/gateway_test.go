package picker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

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

// Ranks behind one port have one address. The header on the request names the picked one, wherever the request is sent.
func TestAnswersOfRanksCountForTheRankOfTheRequest(t *testing.T) {
	const own, same = "10.0.0.1:8000", "10.0.0.2:8000" // the picked pod, and another one with the same ranks
	const later, plain = "10.0.0.3:8000", "10.0.0.4:8000"
	spec := testSpec(t, 0)
	add := func(address string, ranks ...int) {
		for i, rank := range ranks {
			ep := testEndpoint(len(spec.Endpoints))
			ep.ID, ep.Address, ep.RankHeader = endpoint.ID{Pod: address, Rank: i}, address, rank
			spec.Endpoints = append(spec.Endpoints, ep)
		}
	}
	add(own, 0, 1, 2)
	add(same, 0, 1, 2)
	add(later, 3, 4) // of a pod whose first rank is 3
	add(plain, -1)
	for name, tc := range map[string]struct {
		picked     endpoint.ID
		answers    string
		want       endpoint.ID
		unfollowed bool
	}{
		"the pick, of the first rank":          {endpoint.ID{Pod: own}, own, endpoint.ID{Pod: own}, false},
		"the pick, of a later rank":            {endpoint.ID{Pod: own, Rank: 2}, own, endpoint.ID{Pod: own, Rank: 2}, false},
		"another pod":                          {endpoint.ID{Pod: own, Rank: 2}, same, endpoint.ID{Pod: same, Rank: 2}, true},
		"a pod that lacks the rank":            {endpoint.ID{Pod: own, Rank: 2}, later, endpoint.ID{Pod: later, Rank: 1}, true},
		"a pod without ranks":                  {endpoint.ID{Pod: own, Rank: 2}, plain, endpoint.ID{Pod: plain}, true},
		"a pod with ranks, without the header": {endpoint.ID{Pod: plain}, same, endpoint.ID{Pod: same, Rank: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPicker(t, newClock(), spec)
			to := func(id endpoint.ID) *Decision {
				d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 64, true), Gateway: "10.0.0.9",
					Allow: func(ep *endpoint.Endpoint) bool { return ep.ID == id }})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			// The ranks without the number of the request are not alike: one of each pod has fewer requests.
			for _, busy := range []endpoint.ID{{Pod: same}, {Pod: same, Rank: 2}, {Pod: later}} {
				defer to(busy).End(Completed)
			}
			before := map[endpoint.ID]int{}
			for i, e := range p.Stats()[0].Endpoints {
				before[spec.Endpoints[i].ID] = e.Load.InFlight
			}
			d := to(tc.picked)
			defer d.End(Completed)
			for _, passed := range d.Served(tc.answers, 1, 0) {
				passed.Alive()
			}
			s := p.Stats()[0]
			for i, e := range s.Endpoints {
				id := spec.Endpoints[i].ID
				if n := e.Load.InFlight - before[id]; n != map[bool]int{true: 1}[id == tc.want] {
					t.Errorf("%v: %d more in flight; the request is at %v", id, n, tc.want)
				}
			}
			if n := s.Gateways[0].Unfollowed; n != map[bool]int64{true: 1}[tc.unfollowed] {
				t.Errorf("%d picks count as not followed", n)
			}
			if d.Target().Endpoint.ID != tc.want {
				t.Errorf("counts for %v, want %v", d.Target().Endpoint.ID, tc.want)
			}
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
	d.Served(spec.Endpoints[other].Address, 1, 0)
	d.Served(d.Targets[0].Endpoint.Address, 1, 0) // only the first word counts
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
