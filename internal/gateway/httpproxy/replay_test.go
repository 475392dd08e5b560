package httpproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// counting is an engine that numbers its answers.
func counting(t *testing.T) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n := asked.Add(1)
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":\"answer %d\"}]}\n\n", n)
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[{"text":"answer %d","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`, n)
	}), asked
}

// caching is a pool with a response cache.
func caching(addresses ...string) picker.Spec {
	s := spec(addresses...)
	s.Policy.Responses = picker.ResponseCacheSpec{MaxBytes: 1 << 20, Life: time.Hour}
	return s
}

// ask posts a completion with more fields, and returns the body and what the answer says of the cache.
func (h *house) ask(fields string, header ...string) (body, cache string) {
	h.t.Helper()
	answer := h.post("/v1/completions", `{"model":"m","prompt":"p"`+fields+`}`, header...)
	return read(h.t, answer), answer.Header.Get("X-Kvasir-Cache")
}

func (h *house) responses() respcache.Stats {
	h.t.Helper()
	all := h.picker.ResponseStats()
	if len(all) != 1 {
		h.t.Fatalf("%d caches", len(all))
	}
	return all[0].Stats
}

const cold = `,"temperature":0`

// TestARepeatedRequestIsAnsweredWithoutAnEngine: byte for byte, with its age, as JSON and as a stream; the engine is asked once for each.
func TestARepeatedRequestIsAnsweredWithoutAnEngine(t *testing.T) {
	t.Parallel()
	address, asked := counting(t)
	h := newHouse(t, Options{}, caching(address))
	for i, fields := range []string{cold, cold + `,"stream":true`, cold + `,"stream":true,"stream_options":{"include_usage":true}`} {
		first := h.post("/v1/completions", `{"model":"m","prompt":"p"`+fields+`}`)
		want := read(t, first)
		if got := first.Header.Get("X-Kvasir-Cache"); got != "miss" || first.Header.Get("Age") != "" {
			t.Errorf("%s: the first answer says %q", fields, got)
		}
		eventually(t, "it is stored", func() bool { return h.responses().Entries == i+1 })
		for _, same := range []string{fields, ` , "user":"somebody"` + fields} {
			again := h.post("/v1/completions", `{"model":"m","prompt":"p"`+same+`}`, "X-Request-Id", "mine")
			got := read(t, again)
			if got != want || again.Header.Get("X-Kvasir-Cache") != "hit" || again.Header.Get("Age") != "0" ||
				again.Header.Get("Content-Type") != first.Header.Get("Content-Type") || again.Header.Get("X-Request-Id") != "mine" {
				t.Errorf("%s: %v %q, want %q", fields, again.Header, got, want)
			}
			if stream := strings.Contains(fields, "stream"); stream != (again.ContentLength < 0) {
				t.Errorf("%s: length %d", fields, again.ContentLength)
			}
		}
		if n := asked.Load(); n != int64(i+1) {
			t.Errorf("%s: the engine was asked %d times", fields, n)
		}
	}
	if s := h.responses(); s.Results[respcache.Hit] != 6 || s.Results[respcache.Miss] != 3 || s.Storings[respcache.Stored] != 3 {
		t.Errorf("%+v", s)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 3})
}

// TestWhatIsNotAnsweredFromTheCache: requests with another answer than the one before, or that could have one, and those whose client
// declines. Each is sent to the engine although the one before it is stored.
func TestWhatIsNotAnsweredFromTheCache(t *testing.T) {
	t.Parallel()
	address, asked := counting(t)
	h := newHouse(t, Options{}, caching(address))
	h.ask(cold)
	eventually(t, "it is stored", func() bool { return h.responses().Entries == 1 })
	const warm = `,"temperature":0.7`
	h.ask(warm, "X-Kvasir-Cache", "true")
	eventually(t, "it is stored", func() bool { return h.responses().Entries == 2 })
	n := asked.Load()
	for name, tc := range map[string]struct {
		fields string
		header []string
		want   string // of the header
	}{
		"without a temperature":       {``, nil, ""},
		"null":                        {`,"temperature":null`, nil, ""},
		"a temperature as text":       {`,"temperature":"0"`, nil, ""},
		"chance":                      {warm, nil, ""},
		"a small temperature":         {`,"temperature":1e-9`, nil, ""},
		"several answers":             {cold + `,"n":2`, nil, ""},
		"the best of several":         {cold + `,"best_of":2`, nil, ""},
		"beams":                       {cold + `,"use_beam_search":true`, nil, ""},
		"a temperature twice":         {`,"temperature":1,"temperature":0`, nil, ""},
		"a temperature in disguise":   {cold + `,"temperatur\u0065":1`, nil, ""},
		"an answer that is kept":      {cold + `,"store":true`, nil, ""},
		"no-store":                    {cold, []string{"Cache-Control", "max-age=60, No-Store"}, ""},
		"no-cache":                    {cold + `,"seed":1`, []string{"Cache-Control", "no-cache"}, "miss"},
		"another seed":                {cold + `,"seed":2`, nil, "miss"},
		"the same seed, with a point": {cold + `,"seed":2.0`, nil, "miss"},
		"a salt":                      {cold + `,"cache_salt":"a"`, nil, "miss"},
		"another salt":                {cold + `,"cache_salt":"b"`, nil, "miss"},
		"a header that is not known":  {cold, []string{"X-Mode", "terse"}, "miss"},
		"another key for the engine":  {cold, []string{"Authorization", "Bearer other"}, "miss"},
	} {
		body, cache := h.ask(tc.fields, tc.header...)
		if n++; asked.Load() != n || cache != tc.want {
			t.Errorf("%s: asked %d times, want %d; cache %q: %s", name, asked.Load(), n, cache, body)
			n = asked.Load()
		}
	}
	if _, cache := h.ask(warm, "X-Kvasir-Cache", "true"); cache != "hit" {
		t.Errorf("a client that asks for it gets a %q", cache)
	}
	if answer := h.post("/v1/completions?x=1", `{"model":"m","prompt":"p"`+cold+`}`); read(t, answer) == "" || answer.Header.Get("X-Kvasir-Cache") != "miss" {
		t.Errorf("with a query: %q", answer.Header.Get("X-Kvasir-Cache"))
	}
	for _, model := range []string{"alias", "lora"} {
		answer := h.post("/v1/completions", `{"model":"`+model+`","prompt":"p"`+cold+`}`)
		if read(t, answer); answer.Header.Get("X-Kvasir-Cache") != "miss" {
			t.Errorf("the model %s: %q", model, answer.Header.Get("X-Kvasir-Cache"))
		}
	}
	if _, cache := h.ask(cold, "User-Agent", "other", "Traceparent", "00-1-2-01", "X-Stainless-Os", "x"); cache != "hit" {
		t.Errorf("headers that mean nothing: %q", cache)
	}
}

// TestAnswersOfAllRoutesAreKept: each route has its own sign of a complete answer.
func TestAnswersOfAllRoutesAreKept(t *testing.T) {
	t.Parallel()
	const events = "text/event-stream"
	for name, tc := range map[string]struct{ path, request, kind, answer string }{
		"chats":     {"/v1/chat/completions", `"messages":[{"role":"user","content":"p"}]`, "application/json", `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`},
		"embedding": {"/v1/embeddings", `"input":"p"`, "application/json", `{"object":"list","data":[{"index":0,"embedding":[0.1]}],"usage":{"prompt_tokens":1}}`},
		"Responses": {"/v1/responses", `"input":"p"`, "application/json", `{"object":"response","status":"completed","output":[]}`},
		"Messages":  {"/v1/messages", `"max_tokens":2,"messages":[{"role":"user","content":"p"}]`, "application/json", `{"type":"message","content":[{"type":"text","text":"a"}],"stop_reason":"end_turn"}`},
		"a stream of Messages": {"/v1/messages", `"max_tokens":2,"stream":true,"messages":[{"role":"user","content":"p"}]`, events,
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
		"a stream of Responses": {"/v1/responses", `"stream":true,"input":"p"`, events,
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[]}}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, Options{}, caching(engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", tc.kind)
				_, _ = io.WriteString(w, tc.answer)
			})))
			body := `{"model":"m","temperature":0,` + tc.request + `}`
			if first := h.post(tc.path, body); read(t, first) != tc.answer || first.Header.Get("X-Kvasir-Cache") != "miss" {
				t.Fatalf("%d %v", first.StatusCode, first.Header)
			}
			eventually(t, "the answer is stored or refused", func() bool {
				s := h.responses()
				return s.Storings[respcache.Stored]+s.Storings[respcache.Unfit]+s.Storings[respcache.Incomplete] == 1
			})
			if again := h.post(tc.path, body); read(t, again) != tc.answer || again.Header.Get("X-Kvasir-Cache") != "hit" {
				t.Errorf("%d %v %+v", again.StatusCode, again.Header, h.responses().Storings)
			}
		})
	}
}

// TestOnRequestNeedsTheClientsWish: with requests OnRequest, nothing is stored or answered that its client has not asked for.
func TestOnRequestNeedsTheClientsWish(t *testing.T) {
	t.Parallel()
	address, asked := counting(t)
	s := caching(address)
	s.Policy.Responses.OnRequest = true
	h := newHouse(t, Options{}, s)
	h.ask(cold)
	h.ask(cold, "X-Kvasir-Cache", "false")
	h.ask(cold, "X-Kvasir-Cache", "true")
	eventually(t, "it is stored", func() bool { return h.responses().Entries == 1 })
	if body, cache := h.ask(cold); cache != "" || asked.Load() != 4 {
		t.Errorf("%q after %d: %s", cache, asked.Load(), body)
	}
	if _, cache := h.ask(cold, "X-Kvasir-Cache", "true"); cache != "hit" || asked.Load() != 4 {
		t.Errorf("%q after %d", cache, asked.Load())
	}
}

// TestAnswersStayWithTheirTenant: the same request of another tenant, of a client that is none, or after the tenant's salt has changed is
// sent to the engine. Limits hold before the cache.
func TestAnswersStayWithTheirTenant(t *testing.T) {
	t.Parallel()
	for _, salts := range []bool{false, true} {
		address, asked := counting(t)
		s := keyed(t, address)
		s.Policy.Responses = picker.ResponseCacheSpec{MaxBytes: 1 << 20, Life: time.Hour}
		s.Policy.Admission.Tenants.Salts = salts
		h := newHouse(t, Options{}, s)
		if body, cache := h.ask(cold); cache != "" || asked.Load() != 0 {
			t.Errorf("a stranger gets %q: %s", cache, body)
		}
		first, _ := h.ask(cold, "Authorization", "Bearer k-acme")
		eventually(t, "it is stored", func() bool { return h.responses().Entries == 1 })
		if body, cache := h.ask(cold, "X-Api-Key", "k-acme"); cache != "hit" || body != first {
			t.Errorf("by another header: %q %s", cache, body)
		}
		other, cache := h.ask(cold, "Authorization", "Bearer k-small")
		if cache != "miss" || other == first || asked.Load() != 2 {
			t.Errorf("salts %v: another tenant: %q %s", salts, cache, other)
		}
		if body, cache := h.ask(cold); cache != "" || asked.Load() != 2 {
			t.Errorf("a stranger gets %q: %s", cache, body)
		}
	}
}

// TestAHooksModelIsPartOfTheKey: a hook reads what is not compared, and sends the same body to another model.
func TestAHooksModelIsPartOfTheKey(t *testing.T) {
	t.Parallel()
	address, asked := counting(t)
	s := caching(address)
	s.Policy.Hooks = hooks.Spec{Headers: []string{"x-session-id"}, Steps: []hooks.Step{
		{Name: "tuned", When: `headers["x-session-id"] == "b"`, Model: "lora", CostLimit: 100},
	}}
	h := newHouse(t, Options{}, s)
	for i, session := range []string{"a", "b"} {
		if body, cache := h.ask(cold, "X-Session-Id", session); cache != "miss" || asked.Load() != int64(i+1) {
			t.Errorf("session %s: %q after %d: %s", session, cache, asked.Load(), body)
		}
		eventually(t, "it is stored", func() bool { return h.responses().Entries == i+1 })
	}
	if _, cache := h.ask(cold, "X-Session-Id", "c"); cache != "hit" {
		t.Errorf("another session: %q", cache)
	}
}

// TestClientsWithoutATenantShareNothing: where the policy distinguishes tenants and admits others, these are not one tenant.
func TestClientsWithoutATenantShareNothing(t *testing.T) {
	t.Parallel()
	address, asked := counting(t)
	s := keyed(t, address)
	s.Policy.Admission.Tenants.Reject = false
	s.Policy.Responses = picker.ResponseCacheSpec{MaxBytes: 1 << 20, Life: time.Hour}
	h := newHouse(t, Options{}, s)
	for i := range int64(2) {
		if body, cache := h.ask(cold); cache != "" || asked.Load() != i+1 {
			t.Errorf("%q after %d: %s", cache, asked.Load(), body)
		}
	}
	if n := h.responses().Results[respcache.NoTenant]; n != 2 {
		t.Errorf("%d requests without a tenant, want 2", n)
	}
}

// TestAnswersThatAreNotStored: after each of them, the same request is sent to an engine again.
func TestAnswersThatAreNotStored(t *testing.T) {
	t.Parallel()
	event := func(text string) string { return "data: " + text + "\n\n" }
	const half, end = `{"choices":[{"index":0,"text":"half"}]}`, `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`
	for name, tc := range map[string]struct {
		status int
		header [2]string
		body   string
		cut    bool
		want   respcache.Storing
	}{
		"a refusal":              {status: 400, body: `{"error":{"message":"no","code":400}}`, want: respcache.Unfit},
		"a created thing":        {status: 201, body: `{"choices":[]}`, want: respcache.Unfit},
		"half of JSON":           {body: `{"choices":[{"text":"half"`, want: respcache.Incomplete},
		"JSON that is cut off":   {body: `{"choices":[{"text":"half"`, cut: true, want: respcache.Incomplete},
		"a stream without end":   {header: [2]string{"Content-Type", "text/event-stream"}, body: event(half), want: respcache.Incomplete},
		"a stream that is cut":   {header: [2]string{"Content-Type", "text/event-stream"}, body: event(half), cut: true, want: respcache.Incomplete},
		"a stream without mark":  {header: [2]string{"Content-Type", "text/event-stream"}, body: event(half) + event(end), want: respcache.Incomplete},
		"a stream that fails":    {header: [2]string{"Content-Type", "text/event-stream"}, body: event(half) + event(`{"error":{"code":500}}`) + event("[DONE]"), want: respcache.Unfit},
		"a stream that is ended": {header: [2]string{"Content-Type", "text/event-stream"}, body: event(half) + event(`{"choices":[{"finish_reason":"abort","text":""}]}`) + event("[DONE]"), want: respcache.Incomplete},
		"an encoded answer":      {header: [2]string{"Content-Encoding", "gzip"}, body: "x", want: respcache.Unfit},
		"one for this client":    {header: [2]string{"Cache-Control", "private, max-age=9"}, body: `{"choices":[]}`, want: respcache.Unfit},
		"one with a cookie":      {header: [2]string{"Set-Cookie", "a=b"}, body: `{"choices":[]}`, want: respcache.Unfit},
		"one that varies":        {header: [2]string{"Vary", "Origin, X-Mode"}, body: `{"choices":[]}`, want: respcache.Unfit},
		"a large one":            {body: `{"choices":[{"text":"` + strings.Repeat("x", 1<<18) + `","finish_reason":"stop"}]}`, want: respcache.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, Options{}, caching(engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				if tc.header[0] != "" {
					w.Header().Set(tc.header[0], tc.header[1])
				}
				w.WriteHeader(max(tc.status, 200))
				_, _ = io.WriteString(w, tc.body)
				if tc.cut {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
			})))
			for range 2 {
				answer := h.post("/v1/completions", `{"model":"m","prompt":"p"`+cold+`}`)
				_, _ = io.Copy(io.Discard, answer.Body)
				if got := answer.Header.Get("X-Kvasir-Cache"); got == "hit" {
					t.Errorf("it was stored")
				}
			}
			eventually(t, "both are counted", func() bool { return h.responses().Storings[tc.want] == 2 })
			if s := h.responses(); s.Entries != 0 || s.Bytes != 0 || s.Storings[respcache.Stored] != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestAClientThatLeavesStoresNothing: neither what it has got, nor what it has not.
func TestAClientThatLeavesStoresNothing(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	h := newHouse(t, Options{}, caching(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"half\"}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-gone
		<-r.Context().Done()
	})))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"p","stream":true`+cold+`}`))
	if err != nil {
		t.Fatal(err)
	}
	answer := h.do(r)
	if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	close(gone)
	eventually(t, "it is counted", func() bool { return h.responses().Storings[respcache.Incomplete] == 1 })
	if s := h.responses(); s.Entries != 0 || s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
	h.idle()
}

// TestAChangeEmptiesTheCache: a change of the policy or the pool does, one of the endpoints does not. The answer to a request that came
// before the change is not stored after it. Without the policy nothing is cached.
func TestAChangeEmptiesTheCache(t *testing.T) {
	t.Parallel()
	address, asked := counting(t)
	began, goOn := make(chan struct{}), make(chan struct{})
	waiting := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		began <- struct{}{}
		<-goOn
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"text":"old","finish_reason":"stop"}]}`)
	})
	s := caching(address)
	h := newHouse(t, Options{}, s)
	apply := func(s picker.Spec) {
		t.Helper()
		if err := h.picker.Apply([]picker.Spec{s}); err != nil {
			t.Fatal(err)
		}
	}
	h.ask(cold)
	eventually(t, "it is stored", func() bool { return h.responses().Entries == 1 })
	more := s
	more.Endpoints = spec(address, address).Endpoints
	apply(more)
	if _, cache := h.ask(cold); cache != "hit" {
		t.Errorf("after a change of endpoints: %q", cache)
	}
	for name, change := range map[string]func(*picker.Spec){
		"of the policy": func(s *picker.Spec) { s.Policy.Generation++ },
		"of a rule":     func(s *picker.Spec) { s.Policy.Attempts++ },
		"of the pool":   func(s *picker.Spec) { s.Generation++ },
		"of the life":   func(s *picker.Spec) { s.Policy.Responses.Life /= 2 },
	} {
		n := asked.Load()
		change(&s)
		apply(s)
		if stats := h.responses(); stats.Entries != 0 || stats.Bytes != 0 {
			t.Errorf("after a change %s: %+v", name, stats)
		}
		if _, cache := h.ask(cold); cache != "miss" || asked.Load() != n+1 {
			t.Errorf("after a change %s: %q", name, cache)
		}
		eventually(t, "it is stored", func() bool { return h.responses().Entries == 1 })
	}

	s.Endpoints = spec(waiting).Endpoints
	s.Generation++
	apply(s)
	var all sync.WaitGroup
	all.Go(func() { h.ask(cold) })
	await(t, "the request is at the engine", began)
	s.Generation++
	s.Endpoints = spec(address).Endpoints
	apply(s)
	close(goOn)
	all.Wait()
	eventually(t, "it is counted", func() bool { return h.responses().Storings[respcache.Outdated] == 1 })
	if body, cache := h.ask(cold); cache != "miss" || strings.Contains(body, "old") {
		t.Errorf("after the change: %q %s", cache, body)
	}
	s.Policy.Responses = picker.ResponseCacheSpec{}
	apply(s)
	if _, cache := h.ask(cold); cache != "" || len(h.picker.ResponseStats()) != 0 {
		t.Errorf("without a cache: %q, %+v", cache, h.picker.ResponseStats())
	}
}

// TestExplainSaysWhatTheCacheWouldDo: a hit with its age, also while no endpoint is ready, a miss, or the reason why the request is not
// looked up. It changes nothing: neither what is counted nor how long an answer lives. Tenants and headers count as they do for clients.
func TestExplainSaysWhatTheCacheWouldDo(t *testing.T) {
	t.Parallel()
	address, asked := counting(t)
	h := newHouse(t, Options{}, caching(address))
	explain := func(fields string, header http.Header) string {
		t.Helper()
		e, err := h.picker.Explain(t.Context(), &picker.Request{
			Route: openai.Completions, Body: []byte(`{"model":"m","prompt":"p"` + fields + `}`), Header: header.Get, Headers: header,
		})
		if err != nil {
			t.Fatal(err)
		}
		if e.ResponseCache == nil {
			return ""
		}
		return fmt.Sprint(e.ResponseCache.Result, " ", e.ResponseCache.AgeSeconds, " ", len(e.Candidates))
	}
	none := http.Header{}
	if got := explain(cold, none); got != "miss 0 1" {
		t.Errorf("before any request: %s", got)
	}
	h.ask(cold)
	eventually(t, "it is stored", func() bool { return h.responses().Entries == 1 })
	before := h.responses()
	for name, tc := range map[string]struct {
		fields string
		header http.Header
		want   string
	}{
		"stored":              {cold, none, "hit 0 1"},
		"another header":      {cold, http.Header{"X-Else": {"1"}}, "miss 0 1"},
		"chance":              {``, none, "not_deterministic 0 1"},
		"a wish":              {``, http.Header{"X-Kvasir-Cache": {"true"}}, "miss 0 1"},
		"declined":            {cold, http.Header{"Cache-Control": {"no-store"}}, "declined 0 1"},
		"a fresh answer only": {cold, http.Header{"Cache-Control": {"no-cache"}}, "miss 0 1"},
		"not to be compared":  {cold + `,"seed":1,"seed":2`, none, "unreadable 0 1"},
	} {
		if got := explain(tc.fields, tc.header); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if after := h.responses(); after != before || asked.Load() != 1 {
		t.Errorf("explaining has changed %+v to %+v, and the engine was asked %d times", before, after, asked.Load())
	}
	gone := caching(address)
	gone.Endpoints[0].Ready = false
	if err := h.picker.Apply([]picker.Spec{gone}); err != nil {
		t.Fatal(err)
	}
	if got := explain(cold, none); got != "hit 0 0" {
		t.Errorf("while no endpoint is ready: %s", got)
	}
	without := caching(address)
	without.Policy.Responses = picker.ResponseCacheSpec{}
	if err := h.picker.Apply([]picker.Spec{without}); err != nil {
		t.Fatal(err)
	}
	if got := explain(cold, none); got != "" {
		t.Errorf("without a cache: %s", got)
	}
}
