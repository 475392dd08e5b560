package picker

import (
	"context"
	"errors"
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
	// What cannot be parsed may still name its model.
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
		d.Unreported()
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
		pick(t, p, completion("m", 0, 200, true)).Unreported()
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
	d.Served("192.0.2.1:1") // nobody's
	d.Served(d.Targets[0].Endpoint.Address)
	if got := p.Stats()[0].Retries; got != 0 {
		t.Errorf("%d retries, want none", got)
	}
	d.Served(spec.Endpoints[other].Address)
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
