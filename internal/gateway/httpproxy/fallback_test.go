package httpproxy

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

const completed = `{"choices":[{"finish_reason":"stop"}]}`

// fallingBack is routeTo with fallbacks.
func fallingBack(pool string, fallbacks ...string) modelroute.Route {
	r := routeTo(pool)
	rule := &r.Rules[0]
	rule.On, rule.Within = modelroute.Of(modelroute.Full, modelroute.Cold, modelroute.Down), time.Minute
	for _, name := range fallbacks {
		rule.Fallbacks = append(rule.Fallbacks, modelroute.Backend{Pool: "default/" + name})
	}
	return r
}

// serving is an engine that completes requests, and keeps the last body.
func serving(t *testing.T, body *atomic.Value) string {
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body.Store(string(b))
		_, _ = io.WriteString(w, completed)
	})
}

// TestARequestFallsBack before the first byte, from a pool that is down, cold or full, and over pools that do not serve it either.
func TestARequestFallsBack(t *testing.T) {
	answers := func(status int, header ...string) func(t *testing.T) []picker.Spec {
		return func(t *testing.T) []picker.Spec {
			return []picker.Spec{named("first", engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(status)
			}))}
		}
	}
	for name, tc := range map[string]struct {
		pools func(t *testing.T) []picker.Spec
		why   string
	}{
		"nothing listens": {func(t *testing.T) []picker.Spec { return []picker.Spec{named("first", nobodyAt(t))} }, "down"},
		"a server error":  {answers(http.StatusInternalServerError), "down"},
		"a broken connection": {func(t *testing.T) []picker.Spec {
			return []picker.Spec{named("first", engine(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))}
		}, "down"},
		"no endpoint": {func(t *testing.T) []picker.Spec { return []picker.Spec{named("first")} }, "cold"},
		"no pool":     {func(t *testing.T) []picker.Spec { return nil }, "cold"},
		"endpoints that are not ready": {func(t *testing.T) []picker.Spec {
			s := named("first", nobodyAt(t))
			s.Endpoints[0].Ready, s.Endpoints[0].Serving = false, false
			return []picker.Spec{s}
		}, "down"},
	} {
		t.Run(name, func(t *testing.T) {
			var body atomic.Value
			second, third := named("second", nobodyAt(t)), named("third", serving(t, &body))
			third.Policy.AnswerHeaders = "Always"
			specs := append(tc.pools(t), second, third)
			h := newHouse(t, Options{}, specs...)
			h.apply(specs, fallingBack("first", "second", "third"))
			answer := h.post("/v1/completions", `{"model":"chat","prompt":"x"}`)
			if text := read(t, answer); answer.StatusCode != http.StatusOK || text != completed {
				t.Fatalf("answer %d %s", answer.StatusCode, text)
			}
			if got := body.Load(); got != `{"model":"third","prompt":"x"}` {
				t.Errorf("body %s", got)
			}
			if route := answer.Header.Get("X-Kvasir-Route"); !strings.HasSuffix(route, "pool=default/third; fallback 2 of 2, down before") {
				t.Errorf("route %q", route)
			}
			var first [modelroute.NumCauses]int64
			if stats := h.picker.Routes(); len(stats) == 1 {
				first = stats[0].Fallbacks["default/first"]
			}
			for cause := range first {
				want := int64(0)
				if modelroute.Cause(cause).String() == tc.why {
					want = 1
				}
				if first[cause] != want {
					t.Errorf("%d fallbacks because the pool is %s, want %d", first[cause], modelroute.Cause(cause), want)
				}
			}
			h.idle()
		})
	}
}

// TestThereIsNoFallback when the route, or what the client has got already, rules it out.
func TestThereIsNoFallback(t *testing.T) {
	down := nobodyAt
	for name, tc := range map[string]struct {
		first  func(t *testing.T) string
		change func(*modelroute.Rule)
		status int
	}{
		"for another cause": {down, func(r *modelroute.Rule) { r.On = modelroute.Of(modelroute.Full) }, http.StatusBadGateway},
		"after its time":    {down, func(r *modelroute.Rule) { r.Within = time.Nanosecond }, http.StatusBadGateway},
		"to the same pool":  {down, func(r *modelroute.Rule) { r.Fallbacks[0].Pool = "default/first" }, http.StatusBadGateway},
		"for a client's fault": {func(t *testing.T) string {
			return engine(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(422) })
		}, nil, 422},
	} {
		t.Run(name, func(t *testing.T) {
			var body atomic.Value
			specs := []picker.Spec{named("first", tc.first(t)), named("second", serving(t, &body))}
			h := newHouse(t, Options{}, specs...)
			route := fallingBack("first", "second")
			if tc.change != nil {
				tc.change(&route.Rules[0])
			}
			h.apply(specs, route)
			if answer := h.post("/v1/completions", `{"model":"chat","prompt":"x"}`); answer.StatusCode != tc.status || body.Load() != nil {
				t.Errorf("status %d, want %d; the other pool got %v", answer.StatusCode, tc.status, body.Load())
			}
			h.idle()
		})
	}
	t.Run("after the first byte", func(t *testing.T) {
		var body atomic.Value
		specs := []picker.Spec{named("first", engine(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})), named("second", serving(t, &body))}
		h := newHouse(t, Options{}, specs...)
		h.apply(specs, fallingBack("first", "second"))
		answer := h.post("/v1/completions", `{"model":"chat","prompt":"x","stream":true}`)
		if _, err := io.ReadAll(answer.Body); err == nil || body.Load() != nil {
			t.Errorf("the answer ended with %v; the other pool got %v", err, body.Load())
		}
		h.idle()
	})
}

// TestAClientThatLeavesEndsTheChain: no fallback is tried for it.
func TestAClientThatLeavesEndsTheChain(t *testing.T) {
	reached, leave := make(chan struct{}), make(chan struct{})
	var body atomic.Value
	specs := []picker.Spec{named("first", engine(t, func(http.ResponseWriter, *http.Request) {
		close(reached)
		<-leave
		panic(http.ErrAbortHandler)
	})), named("second", serving(t, &body))}
	h := newHouse(t, Options{}, specs...)
	h.apply(specs, fallingBack("first", "second"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"chat","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-reached
		cancel()
	}()
	if _, err := http.DefaultClient.Do(r); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	eventually(t, "the request has ended", func() bool { return h.picker.Stats()[0].Outcomes[picker.ClientGone] == 1 })
	close(leave)
	h.idle()
	if body.Load() != nil {
		t.Error("the fallback was asked for a client that has left")
	}
}

// TestATimeOfTheRouteEndsTheRequest: before its answer with 504, and no engine is blamed for it.
func TestATimeOfTheRouteEndsTheRequest(t *testing.T) {
	specs := []picker.Spec{named("first", engine(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))}
	h := newHouse(t, Options{}, specs...)
	route := routeTo("first")
	route.Timeout = 50 * time.Millisecond
	h.apply(specs, route)
	answer := h.post("/v1/completions", `{"model":"chat","prompt":"x"}`)
	if text := read(t, answer); answer.StatusCode != http.StatusGatewayTimeout || !strings.Contains(text, "request_timeout") {
		t.Errorf("answer %d %s", answer.StatusCode, text)
	}
	if n := h.picker.Stats()[0].Endpoints[0].Failures; n != 0 {
		t.Errorf("%d failures of the endpoint", n)
	}
	h.idle()
}

// TestAPoolThatGoesWhileRequestsWait: they go to the fallback.
func TestAPoolThatGoesWhileRequestsWait(t *testing.T) {
	var body atomic.Value
	first := named("first", nobodyAt(t))
	first.Endpoints[0].Ready, first.Endpoints[0].Serving = false, false
	first.Policy.Admission.Queue = true
	first.Policy.Admission.Limits.Hold = patience
	first.Policy.Admission.Limits.TTL = patience
	first.Policy.Admission.Limits.Requests, first.Policy.Admission.Limits.Bytes = 100, 1<<20
	second := named("second", serving(t, &body))
	h := newHouse(t, Options{}, first, second)
	route := fallingBack("first", "second")
	route.Rules[0].On = modelroute.Of(modelroute.Cold) // not ready is Down: the request waits
	h.apply([]picker.Spec{first, second}, route)
	done := make(chan int, 1)
	go func() { done <- h.post("/v1/completions", `{"model":"chat","prompt":"x"}`).StatusCode }()
	eventually(t, "the request waits", func() bool { return h.picker.Stats()[0].Admission.Waiting == 1 })
	h.apply([]picker.Spec{second}, route)
	if status := await(t, "the answer", done); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

// TestABodyIsNotCopiedForEachTry: it stays in the one buffer, and is changed there for each pool.
func TestABodyIsNotCopiedForEachTry(t *testing.T) {
	const size, rounds = 512 << 10, 8
	allocated := func(fallbacks ...string) uint64 {
		var body atomic.Value
		specs := []picker.Spec{named("a", nobodyAt(t)), named("b", nobodyAt(t)), named("c", nobodyAt(t)), named("d", serving(t, &body))}
		h := newHouse(t, Options{}, specs...)
		h.apply(specs, fallingBack("a", fallbacks...))
		text := `{"model":"chat","prompt":"` + strings.Repeat("x", size) + `"}`
		ask := func() {
			if answer := h.post("/v1/completions", text); answer.StatusCode != http.StatusOK {
				t.Fatalf("status %d", answer.StatusCode)
			}
		}
		ask()
		if want := strings.Replace(text, "chat", "d", 1); body.Load() != want {
			t.Fatal("more than the model has changed")
		}
		least := uint64(math.MaxUint64) // of the rounds: a collection of garbage empties the pools of buffers
		for range rounds {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ask()
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		h.idle()
		return least
	}
	if one, three := allocated("d"), allocated("b", "c", "d"); three > one+size {
		t.Errorf("a request over two more pools allocates %d bytes, a request without them %d", three, one)
	}
}

// TestABodyThatAConnectionStillReadsIsCopied, because it must not change under it.
func TestABodyThatAConnectionStillReadsIsCopied(t *testing.T) {
	h := newHouse(t, Options{}, named("a"))
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"chat"}`))
	out := &client{ResponseWriter: httptest.NewRecorder(), stall: patience}
	out.control = http.NewResponseController(out.ResponseWriter)
	b, refused := h.proxy.readBody(out, r)
	if refused != nil {
		t.Fatal(refused)
	}
	e := &exchange{proxy: h.proxy, client: out, request: r, body: b}
	reader := b.reader(new(atomic.Bool))
	if !e.ownBody() || e.body == b {
		t.Fatal("the body was not copied while it is read")
	}
	own := e.body
	e.body.Bytes[0] = 'x'
	if text, err := io.ReadAll(reader); err != nil || string(text) != `{"model":"chat"}` {
		t.Errorf("the connection reads %q: %v", text, err)
	}
	_ = reader.Close()
	if !e.ownBody() || e.body != own {
		t.Error("the body was copied though nothing reads it")
	}
	e.dropBody()
	if held := h.proxy.budget.Stats().Held; held != 0 {
		t.Errorf("%d bytes remain held", held)
	}
}
