package extproc

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// named is a pool whose name is its model's, without aliases.
func named(name string, addresses ...string) picker.Spec {
	s := spec(addresses...)
	s.Name, s.Model, s.Aliases, s.Adapters = name, name, nil, nil
	for i := range s.Endpoints {
		s.Endpoints[i].ID.Pod = fmt.Sprint(name, "-uid-", i)
	}
	return s
}

// TestRoutesHoldBehindAGateway: the engine of the backend gets the request with the name of its model, and nothing else changed, from
// gateways that keep the body and such that do not. A pool without endpoints is replaced by its fallback. A request whose body is not
// shown goes to a pool that has an endpoint, as it is.
func TestRoutesHoldBehindAGateway(t *testing.T) {
	for mode, tc := range map[string]struct {
		options envoytest.Options
		shown   bool
	}{
		"full duplex": {envoytest.Options{Seed: 3}, true},
		"buffered":    {envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience}, true},
		"not shown":   {envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_NONE), MessageTimeout: patience}, false},
	} {
		for _, pool := range []string{"a", "chat-with-a-name-that-is-much-longer-than-the-one-that-clients-use"} {
			t.Run(fmt.Sprintf("%s %.4s", mode, pool), func(t *testing.T) {
				got := make(chan string, 8)
				specs := []picker.Spec{named("cold"), named(pool, engine(t, func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					got <- string(b)
					_, _ = io.WriteString(w, `{"model":"`+pool+`"}`)
				}))}
				h := newHouse(t, Options{}, ServeOptions{}, specs...)
				if err := h.picker.Apply(specs, modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"}, Rules: []modelroute.Rule{
					{Matches: []modelroute.Match{{Headers: []modelroute.Header{{Name: "x-cold", Value: "1"}}}},
						Backends:  []modelroute.Backend{{Pool: "default/cold", Weight: 1}},
						Fallbacks: []modelroute.Backend{{Pool: "default/" + pool}},
						On:        modelroute.Of(modelroute.Cold), Within: patience},
					{Backends: []modelroute.Backend{{Pool: "default/" + pool, Weight: 1}}},
				}}); err != nil {
					t.Fatal(err)
				}
				g := h.envoy(tc.options)
				for i, body := range []string{
					`{"model":"chat","prompt":"x"}`,
					`{ "prompt":"the model \"chat\"" , "model" : "ch\u0061t" }`,
					`{"model":"other","prompt":"x","model":"chat"}`,
					`{"prompt":"` + strings.Repeat("long ", 50_000) + `","model":"chat"}`,
				} {
					for _, cold := range []string{"", "1"} {
						answer := g.post("/v1/completions", body, "X-Cold", cold, "Content-Type", "application/json")
						text := read(t, answer)
						if answer.StatusCode != http.StatusOK || !strings.Contains(text, pool) {
							t.Fatalf("body %d, cold %q: %d %s", i, cold, answer.StatusCode, text)
						}
						at := strings.LastIndex(body, `"ch`)
						end := at + 1 + strings.Index(body[at+1:], `"`) + 1
						want := body[:at] + `"` + pool + `"` + body[end:]
						if !tc.shown {
							want = body
						}
						if sent := await(t, got); sent != want {
							t.Fatalf("body %d: the engine gets %.200s", i, sent)
						}
					}
				}
				if answer := g.post("/v1/completions", `{"model":"unknown","prompt":"x"}`); tc.shown && answer.StatusCode != http.StatusNotFound {
					t.Errorf("an unknown model: %d", answer.StatusCode)
				}
				eventually(t, "no byte of a body is left", func() bool { return h.server.Buffered() == 0 })
			})
		}
	}
}

// TestMirrorsAndLimitsBehindAGateway: the gateway sends the request, so the mirror gets nothing, which is counted. The limits of the route
// hold, and a request that has ended is under way no more.
func TestMirrorsAndLimitsBehindAGateway(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"choices":[{"finish_reason":"stop"}]}`)
	}
	specs := []picker.Spec{named("live", engine(t, answer)), named("copy", engine(t, func(http.ResponseWriter, *http.Request) {
		t.Error("the mirror was asked")
	}))}
	h := newHouse(t, Options{}, ServeOptions{}, specs...)
	if err := h.picker.Apply(specs, modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"},
		Limits: modelroute.Limits{RequestsPerMinute: 3, MaxConcurrent: 1},
		Rules: []modelroute.Rule{{
			Backends: []modelroute.Backend{{Pool: "default/live", Weight: 1}},
			Mirrors:  []modelroute.Mirror{{Backend: modelroute.Backend{Pool: "default/copy"}, Percent: 100}},
		}}}); err != nil {
		t.Fatal(err)
	}
	g := h.envoy(envoytest.Options{Seed: 3})
	ask := func() *http.Response {
		return g.post("/v1/completions", `{"model":"chat","prompt":"x"}`, "Content-Type", "application/json")
	}
	for i := range 3 {
		if r := ask(); r.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %d %s", i, r.StatusCode, read(t, r))
		}
		eventually(t, "the request has ended", func() bool { return h.picker.Stats()[1].Outcomes[picker.Completed] == int64(i+1) })
	}
	if r := ask(); r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") == "" ||
		!strings.Contains(read(t, r), "route_requests_per_minute") {
		t.Errorf("beyond the limit: %d %v", r.StatusCode, r.Header)
	}
	s := h.picker.Routes()[0]
	if m := s.Mirrors["default/copy"]; m.Dropped[picker.DropGateway] != 3 || m.Sent != 0 || s.Refused != [2]int64{1, 0} {
		t.Errorf("counters %+v", s)
	}
}
