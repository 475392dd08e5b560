package tracing_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace/noop"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/gateway/extproc"
	"github.com/kvasir-dev/kvasir/internal/gateway/httpproxy"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/test/dns"
	"github.com/kvasir-dev/kvasir/test/envoytest"
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

// shown sends a request through a stand-in for Envoy to a picker that traces.
func shown(t *testing.T, tracer *tracing.Tracer, p *picker.Picker, o envoytest.Options, header ...string) {
	t.Helper()
	server := extproc.New(extproc.Options{Picker: p, Spans: tracer, Log: logr.Discard()})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener, extproc.ServeOptions{}) }()
	o.Pickers, o.Allowed = []string{listener.Addr().String()}, []string{"traceparent", "tracestate"}
	o.Dial = append(o.Dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	g, err := envoytest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(g)
	status := post(t, front.URL, chat, header...)
	front.Close()
	g.Close()
	stop()
	if err := <-done; err != nil || status != 200 {
		t.Fatalf("status %d, %v", status, err)
	}
	for _, v := range g.Violations() {
		t.Errorf("a rule of Envoy's is broken: %s", v)
	}
}

func TestARequestOfAGatewayIsTraced(t *testing.T) {
	for name, header := range map[string][]string{
		"the client's context":          {"Traceparent", "00-" + traceID + "-" + parentID + "-01", "Tracestate", "a=b"},
		"one whose state is not a list": {"Traceparent", "00-" + traceID + "-" + parentID + "-01", "Tracestate", "="},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := newStation(t), newEngine(t)
			tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
			shown(t, tracer, newPicker(t, e.address), envoytest.Options{}, header...)
			flush()
			root := s.one(t, "envoy.service.ext_proc.v3.ExternalProcessor/Process")
			checkTree(t, s, root, parentID, allSteps...)
			attempt := s.one(t, "chat m")
			expect(t, attempt, "gen_ai.usage.input_tokens", "64", "http.response.status_code", "200")
			s.one(t, "kvasir.first_byte")
			state := header[3]
			if state == "=" {
				state = ""
			}
			goesOn(t, e.header(t), attempt, state)
		})
	}
}

// The gateway's own span is nearer than the client's.
func TestTheGatewaysCallIsTheParent(t *testing.T) {
	const own = "00f067aa0ba902b7"
	s, e := newStation(t), newEngine(t)
	tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
	call := grpc.WithPerRPCCredentials(calling{"traceparent": "00-" + traceID + "-" + own + "-01"})
	shown(t, tracer, newPicker(t, e.address), envoytest.Options{Dial: []grpc.DialOption{call}}, "Traceparent", "00-"+traceID+"-"+parentID+"-01")
	flush()
	checkTree(t, s, s.one(t, "envoy.service.ext_proc.v3.ExternalProcessor/Process"), own, allSteps...)
}

// calling adds metadata to every call.
type calling map[string]string

func (c calling) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return c, nil
}
func (calling) RequireTransportSecurity() bool { return false }

func TestTheEnvironmentSaysWhereSpansGo(t *testing.T) {
	s := newStation(t)
	for name, tc := range map[string]struct {
		endpoint string
		env      []string
		want     string // the way that spans take; empty for no tracing
	}{
		"no decision anywhere":            {},
		"the flag":                        {endpoint: s.grpc, want: "grpc"},
		"the flag, and HTTP":              {endpoint: s.http, env: []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}, want: "http"},
		"the environment":                 {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", s.grpc}, want: "grpc"},
		"the environment, for traces":     {env: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", s.grpc}, want: "grpc"},
		"the environment, and HTTP":       {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", s.http, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"}, want: "http"},
		"the environment, but not traces": {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", s.grpc, "OTEL_TRACES_EXPORTER", "none"}},
		"turned off":                      {endpoint: s.grpc, env: []string{"OTEL_SDK_DISABLED", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := 0; i < len(tc.env); i += 2 {
				t.Setenv(tc.env[i], tc.env[i+1]) // for the SDK, which reads it itself
			}
			s.mu.Lock()
			s.spans, s.ways = nil, map[string]bool{}
			s.mu.Unlock()
			e := newEngine(t)
			tracer, flush := open(t, tracing.Config{Endpoint: tc.endpoint, Getenv: environment(tc.env...)})
			if (tracer != nil) != (tc.want != "") {
				t.Fatalf("traced: %v", tracer != nil)
			}
			proxied(t, tracer, newPicker(t, e.address), chat)
			flush()
			if (len(s.tree()) > 0) != (tc.want != "") || tc.want != "" && !s.ways[tc.want] {
				t.Errorf("%d spans came by %v", len(s.tree()), s.ways)
			}
		})
	}
	if _, _, err := tracing.Open(t.Context(), tracing.Config{Endpoint: s.grpc, Getenv: environment("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")}); err == nil {
		t.Error("a protocol that is none is taken")
	}
}

// A collector that is not there costs spans, not requests.
func TestNobodyWaitsForTheCollector(t *testing.T) {
	e := newEngine(t)
	tracer, shutdown, err := tracing.Open(t.Context(), tracing.Config{Endpoint: "http://127.0.0.1:1", Getenv: environment()})
	if err != nil {
		t.Fatal(err)
	}
	if status := proxied(t, tracer, newPicker(t, e.address), chat); status != 200 {
		t.Errorf("status %d", status)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_ = shutdown(ctx) // what it says of the spans that are lost
}

// nameService, if set, is asked for names instead of this machine's.
var nameService atomic.Pointer[net.Resolver]

// TestMain gives the process its resolver once: clients of earlier tests can still read the variable.
func TestMain(m *testing.M) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if r := nameService.Load(); r != nil {
			return r.Dial(ctx, network, address)
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	os.Exit(m.Run())
}

// TestTheCollectorIsFoundAgain: while its name does not resolve, requests are served as usual; when it resolves again, spans arrive.
func TestTheCollectorIsFoundAgain(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // ms
	names := dns.New(t)
	names.Set("collector.test.", "127.0.0.1")
	nameService.Store(names.Resolver())
	defer nameService.Store(nil)
	e := newEngine(t)
	for _, fault := range []dns.Fault{dns.Failing, dns.Silent} {
		for _, protocol := range []string{"grpc", "http/protobuf"} {
			s := newStation(t)
			to := map[string]string{"grpc": s.grpc, "http/protobuf": s.http}[protocol]
			names.Break(fault)
			tracer, shutdown, err := tracing.Open(t.Context(), tracing.Config{Endpoint: strings.Replace(to, "127.0.0.1", "collector.test.", 1),
				Getenv: environment("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)})
			if err != nil {
				t.Fatal(err)
			}
			p := newPicker(t, e.address)
			ask := func() {
				if status := proxied(t, tracer, p, chat); status != 200 {
					t.Errorf("%s, fault %d: status %d", protocol, fault, status)
				}
			}
			asked := names.Asked()
			for deadline := time.Now().Add(time.Minute); names.Asked() == asked; time.Sleep(10 * time.Millisecond) {
				if ask(); time.Now().After(deadline) {
					t.Fatalf("%s, fault %d: nothing looks the collector up", protocol, fault)
				}
			}
			names.Break(dns.None)
			for deadline := time.Now().Add(time.Minute); len(s.tree()) == 0; time.Sleep(10 * time.Millisecond) {
				if ask(); time.Now().After(deadline) {
					t.Fatalf("%s, fault %d: no span arrives after the name resolves again", protocol, fault)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			_ = shutdown(ctx)
			cancel()
		}
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
