package tracing_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace/noop"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/gateway/httpproxy"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tracing"
)

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	parentID = "b7ad6b7169203331"
	secret   = "the-prompt-that-nobody-shall-see"
	chat     = `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + secret + `"}]}`
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// engine answers with a stream, and keeps the headers that it was sent.
type engine struct {
	address string
	mu      sync.Mutex
	headers []http.Header // guarded by mu
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		e.mu.Lock()
		e.headers = append(e.headers, r.Header.Clone())
		e.mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"`+secret+`"}}]}`+"\n\n"+
			`data: {"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":16}}}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	e.address = s.Listener.Addr().String()
	return e
}

func (e *engine) header(t *testing.T) http.Header {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.headers) != 1 {
		t.Fatalf("the engine was asked %d times", len(e.headers))
	}
	return e.headers[0]
}

func newPicker(t *testing.T, addresses ...string) *picker.Picker {
	t.Helper()
	s := picker.Spec{
		Namespace: "default", Name: "pool", Model: "m", Engine: "VLLM", NoEvents: true, BlockTokens: 16, MaxRequestBody: 1 << 20,
		Policy: picker.PolicySpec{
			Strategy: policy.Config{Type: policy.RoundRobin}, SpeculationMax: time.Minute, MaxKVUsage: 0.95,
			CircuitFailures: 1000, CircuitOpen: time.Second, Attempts: 3, RetryConnect: true, FirstByte: time.Minute, AnswerHeaders: "Never",
		},
	}
	for i, a := range addresses {
		s.Endpoints = append(s.Endpoints, endpoint.Endpoint{
			ID: endpoint.ID{Pod: fmt.Sprintf("uid-%d", i)}, Pod: fmt.Sprintf("pod-%d", i), Namespace: "default",
			Address: a, RankHeader: -1, Ready: true, Serving: true,
		})
	}
	p := picker.New(picker.Options{Log: logr.Discard()})
	if err := p.Apply([]picker.Spec{s}); err != nil {
		t.Fatal(err)
	}
	return p
}

// environment has nothing but what is given, name by name.
func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func open(t *testing.T, c tracing.Config) (*tracing.Tracer, func()) {
	t.Helper()
	if c.Getenv == nil {
		c.Getenv = environment()
	}
	tracer, shutdown, err := tracing.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return tracer, func() {
		if err := shutdown(context.Background()); err != nil {
			t.Errorf("sending the last spans: %v", err)
		}
	}
}

// proxied sends a request through a proxy that traces, and gives the status.
func proxied(t *testing.T, tracer *tracing.Tracer, p *picker.Picker, body string, header ...string) int {
	t.Helper()
	proxy := httpproxy.New(httpproxy.Options{Picker: p, Spans: tracer, Log: logr.Discard()})
	server := httptest.NewServer(proxy)
	defer proxy.Close()
	defer server.Close() // it waits for the handlers
	return post(t, server.URL, body, header...)
}

func post(t *testing.T, url, body string, header ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}

// checkTree asserts that the spans are one tree below a parent, that the steps of the pick follow each other without a gap
// inside it, and that no span contains a word of the prompt.
func checkTree(t *testing.T, s *station, root *otlp.Span, parent string, steps ...string) {
	t.Helper()
	if id(root.GetTraceId()) != traceID || id(root.GetParentSpanId()) != parent {
		t.Errorf("the request's span is in trace %x below %x, not in %s below %s", root.GetTraceId(), root.GetParentSpanId(), traceID, parent)
	}
	var at uint64
	for i, name := range steps {
		span := s.one(t, "kvasir."+name)
		if id(span.GetParentSpanId()) != id(root.GetSpanId()) {
			t.Errorf("%s is not below the request", name)
		}
		if i > 0 && span.GetStartTimeUnixNano() != at || span.GetEndTimeUnixNano() < span.GetStartTimeUnixNano() ||
			span.GetStartTimeUnixNano() < root.GetStartTimeUnixNano() || span.GetEndTimeUnixNano() > root.GetEndTimeUnixNano() {
			t.Errorf("%s is not where it belongs", name)
		}
		at = span.GetEndTimeUnixNano()
	}
	for _, span := range s.tree() {
		if id(span.GetTraceId()) != traceID {
			t.Errorf("%s is in another trace", span.GetName())
		}
	}
	if s.contains(secret) {
		t.Error("a span has the prompt, or the answer")
	}
}

func expect(t *testing.T, span *otlp.Span, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := attribute(span.GetAttributes(), pairs[i]); got != pairs[i+1] {
			t.Errorf("%s has %s %q, not %q", span.GetName(), pairs[i], got, pairs[i+1])
		}
	}
}

// goesOn holds that the engine's header continues the trace below a span.
func goesOn(t *testing.T, h http.Header, below *otlp.Span, state string) {
	t.Helper()
	if want := "00-" + traceID + "-" + id(below.GetSpanId()) + "-01"; h.Get("Traceparent") != want || len(h["Traceparent"]) != 1 {
		t.Errorf("the engine received %q, not %q", h["Traceparent"], want)
	}
	if h.Get("Tracestate") != state {
		t.Errorf("the engine received the state %q, not %q", h.Get("Tracestate"), state)
	}
}

var allSteps = []string{"parse", "tokenize", "admit", "match", "score", "book"}

func TestARequestOfTheProxyIsTraced(t *testing.T) {
	s, e := newStation(t), newEngine(t)
	tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
	if status := proxied(t, tracer, newPicker(t, e.address), chat, "Traceparent", "00-"+traceID+"-"+parentID+"-01", "Tracestate", "a=b"); status != 200 {
		t.Fatalf("status %d", status)
	}
	flush()
	root := s.one(t, "POST /v1/chat/completions")
	checkTree(t, s, root, parentID, allSteps...)
	expect(t, root, "http.request.method", "POST", "http.route", "/v1/chat/completions", "http.response.status_code", "200",
		"kvasir.pool", "pool", "kvasir.endpoint", "uid-0/0", "kvasir.outcome", "completed")
	attempt := s.one(t, "chat m")
	if attempt.GetKind() != otlp.Span_SPAN_KIND_CLIENT || root.GetKind() != otlp.Span_SPAN_KIND_SERVER || id(attempt.GetParentSpanId()) != id(root.GetSpanId()) {
		t.Error("the attempt is not the request's call of the engine")
	}
	host, port, _ := net.SplitHostPort(e.address)
	expect(t, attempt, "gen_ai.operation.name", "chat", "gen_ai.request.model", "m", "gen_ai.provider.name", "vllm", "server.address", host, "server.port", port,
		"k8s.pod.name", "pod-0", "http.response.status_code", "200",
		"gen_ai.usage.input_tokens", "64", "gen_ai.usage.cache_read.input_tokens", "16", "gen_ai.usage.output_tokens", "7")
	if first := s.one(t, "kvasir.first_byte"); id(first.GetParentSpanId()) != id(attempt.GetSpanId()) || first.GetEndTimeUnixNano() > attempt.GetEndTimeUnixNano() {
		t.Error("the first byte is not the attempt's")
	}
	if events := attempt.GetEvents(); len(events) != 1 || events[0].GetName() != "kvasir.first_token" {
		t.Errorf("events %v", events)
	}
	goesOn(t, e.header(t), attempt, "a=b")
	if !s.services["kvasir-picker"] {
		t.Errorf("the service is called %v", s.services)
	}
}

func TestEveryAttemptIsTraced(t *testing.T) {
	s, e := newStation(t), newEngine(t)
	tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
	if status := proxied(t, tracer, newPicker(t, "127.0.0.1:1", e.address), chat, "Traceparent", "00-"+traceID+"-"+parentID+"-01"); status != 200 {
		t.Fatalf("status %d", status)
	}
	flush()
	var attempts []*otlp.Span
	for _, span := range s.tree() {
		if span.GetName() == "chat m" {
			attempts = append(attempts, span)
		}
	}
	if len(attempts) != 2 {
		t.Fatalf("%d attempts", len(attempts))
	}
	expect(t, attempts[0], "error.type", "connection", "server.port", "1", "http.request.resend_count", "")
	expect(t, attempts[1], "error.type", "", "http.request.resend_count", "1", "k8s.pod.name", "pod-1")
	if attempts[0].GetStatus().GetCode() != otlp.Status_STATUS_CODE_ERROR || attempts[1].GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
		t.Error("the wrong attempt has failed")
	}
	goesOn(t, e.header(t), attempts[1], "")
	expect(t, s.one(t, "POST /v1/chat/completions"), "kvasir.endpoint", "uid-1/0")
}

// TestTheStepsOfAPickAreTracedOnce, also of a request that goes on to the fallback of its route.
func TestTheStepsOfAPickAreTracedOnce(t *testing.T) {
	s, e := newStation(t), newEngine(t)
	tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
	pool := func(name, address string) picker.Spec {
		return picker.Spec{
			Namespace: "default", Name: name, Model: name, Engine: "VLLM", NoEvents: true, BlockTokens: 16,
			Policy:    picker.PolicySpec{Strategy: policy.Config{Type: policy.RoundRobin}, CircuitFailures: 1000, RetryConnect: true, Attempts: 1},
			Endpoints: []endpoint.Endpoint{{ID: endpoint.ID{Pod: name}, Pod: name, Address: address, RankHeader: -1, Ready: true, Serving: true}},
		}
	}
	p := picker.New(picker.Options{Log: logr.Discard()})
	if err := p.Apply([]picker.Spec{pool("a", "127.0.0.1:1"), pool("b", e.address)}, modelroute.Route{
		Namespace: "default", Name: "m", Models: []string{"m"}, Rules: []modelroute.Rule{{
			Backends: []modelroute.Backend{{Pool: "default/a", Weight: 1}}, Fallbacks: []modelroute.Backend{{Pool: "default/b"}},
			On: modelroute.Of(modelroute.Down), Within: time.Minute,
		}},
	}); err != nil {
		t.Fatal(err)
	}
	if status := proxied(t, tracer, p, chat, "Traceparent", "00-"+traceID+"-"+parentID+"-01"); status != 200 {
		t.Fatalf("status %d", status)
	}
	flush()
	s.one(t, "kvasir.parse")
	expect(t, s.one(t, "POST /v1/chat/completions"), "kvasir.pool", "b")
}

func TestARefusalIsTracedToTheStepThatRefused(t *testing.T) {
	for body, want := range map[string]struct {
		status int
		reason string
	}{
		strings.Replace(chat, `"m"`, `"nobody"`, 1): {404, "model"},
		"{": {400, "unreadable"},
	} {
		s := newStation(t)
		tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
		if status := proxied(t, tracer, newPicker(t, "127.0.0.1:1"), body, "Traceparent", "00-"+traceID+"-"+parentID+"-01"); status != want.status {
			t.Fatalf("status %d", status)
		}
		flush()
		root := s.one(t, "POST /v1/chat/completions")
		checkTree(t, s, root, parentID, "parse")
		expect(t, root, "error.type", want.reason, "http.response.status_code", strconv.Itoa(want.status))
		expect(t, s.one(t, "kvasir.parse"), "error.type", want.reason)
		if len(s.tree()) != 2 {
			t.Errorf("%d spans of a refusal", len(s.tree()))
		}
	}
}

// Names of spans are few, whatever clients ask for.
func TestNamesOfSpansAreFew(t *testing.T) {
	s, e := newStation(t), newEngine(t)
	tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
	proxy := httpproxy.New(httpproxy.Options{Picker: newPicker(t, e.address), Spans: tracer, Log: logr.Discard()})
	server := httptest.NewServer(proxy)
	for _, path := range []string{"/v1/a", "/v1/b", "/nowhere"} {
		answer, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	server.Close()
	proxy.Close()
	flush()
	names := map[string]int{}
	for _, span := range s.tree() {
		if !strings.HasPrefix(span.GetName(), "kvasir.") {
			names[span.GetName()]++
		}
	}
	if len(names) != 2 || names["GET"] != 2 || names["other"] != 2 {
		t.Errorf("spans are called %v", names)
	}
}

// A client's decision against tracing is respected, and passed on to the engine.
func TestWhatIsNotSampledIsNotTold(t *testing.T) {
	zero := 0.0
	for name, tc := range map[string]struct {
		ratio  *float64
		parent string
	}{
		"the client says no":            {nil, "00-" + traceID + "-" + parentID + "-00"},
		"the ratio is zero":             {&zero, ""},
		"the client's word is no trace": {&zero, "nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := newStation(t), newEngine(t)
			tracer, flush := open(t, tracing.Config{Endpoint: s.grpc, Ratio: tc.ratio})
			if status := proxied(t, tracer, newPicker(t, e.address), chat, "Traceparent", tc.parent, "Tracestate", "a=b"); status != 200 {
				t.Fatalf("status %d", status)
			}
			flush()
			if n := len(s.tree()); n != 0 {
				t.Errorf("%d spans", n)
			}
			h, known := e.header(t), strings.Contains(tc.parent, traceID)
			if told := h.Get("Traceparent"); !strings.HasSuffix(told, "-00") || known != strings.Contains(told, traceID) || known != (h.Get("Tracestate") != "") {
				t.Errorf("the engine received %q, %q", told, h.Get("Tracestate"))
			}
		})
	}
}

// life makes all the calls that one request makes.
func life(tracer *tracing.Tracer, p *picker.Picker, in *picker.Request, header func(string) string) {
	r := tracer.Shown(header, header, "", time.Time{})
	in.Steps = r.Steps()
	d, err := p.Pick(context.Background(), in)
	if err != nil {
		panic(err)
	}
	r.Picked(d)
	r.Attempt(0)
	r.FirstByte(200)
	r.FirstToken()
	d.End(picker.Completed)
	r.Ended(picker.Completed)
	r.Close(200)
}

func TestNoTracingCostsNothing(t *testing.T) {
	var tracer *tracing.Tracer
	header := environment()
	if n := testing.AllocsPerRun(100, func() {
		r := tracer.Shown(header, header, "", time.Time{})
		_ = tracer.Proxied(nil, "", true, time.Time{})
		if r.Steps() != nil {
			panic("steps are asked for")
		}
		r.Refused("model")
		r.Picked(nil)
		r.Attempt(0)
		r.Inject(nil)
		r.Failed("timeout")
		r.FirstByte(200)
		r.FirstToken()
		r.Ended(picker.Completed)
		r.Close(200)
	}); n != 0 {
		t.Errorf("a request that is not traced allocates %v times", n)
	}
}

// BenchmarkRequest is the pick of a short request and its tracing: bare, without a word of tracing; with tracing that is
// off; of a request that is not sampled; of one that is, and whose spans wait for a collector that is not there; and with a
// provider that drops all spans, which leaves the cost of this package.
func BenchmarkRequest(b *testing.B) {
	p := picker.New(picker.Options{Log: logr.Discard()})
	s := picker.Spec{Namespace: "default", Name: "pool", Model: "m", Engine: "VLLM", NoEvents: true, BlockTokens: 16, MaxRequestBody: 1 << 20,
		Policy: picker.PolicySpec{Strategy: policy.Config{Type: policy.RoundRobin}, SpeculationMax: time.Minute, MaxKVUsage: 0.95, CircuitFailures: 9, Attempts: 1}}
	s.Endpoints = []endpoint.Endpoint{{ID: endpoint.ID{Pod: "uid"}, Pod: "pod", Address: "127.0.0.1:1", RankHeader: -1, Ready: true, Serving: true}}
	if err := p.Apply([]picker.Spec{s}); err != nil {
		b.Fatal(err)
	}
	in := &picker.Request{Body: []byte(`{"model":"m","prompt":[1,2,3]}`)}
	off, none := environment(), environment("traceparent", "00-"+traceID+"-"+parentID+"-00")
	nowhere := tracing.Config{Endpoint: "http://127.0.0.1:1", Getenv: off}
	exported, shutdown, err := tracing.Open(b.Context(), nowhere)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = shutdown(ctx)
	}()
	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d, err := p.Pick(context.Background(), in)
			if err != nil {
				b.Fatal(err)
			}
			d.End(picker.Completed)
		}
	})
	for name, tc := range map[string]struct {
		tracer *tracing.Tracer
		header func(string) string
	}{
		"off": {nil, off}, "unsampled": {exported, none}, "dropped": {tracing.New(noop.NewTracerProvider()), off}, "exported": {exported, off},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in.Steps = nil
				life(tc.tracer, p, in, tc.header)
			}
		})
	}
}
