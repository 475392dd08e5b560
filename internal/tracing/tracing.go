// Package tracing reports to an OpenTelemetry collector how long the steps of each request take.
//
// The spans of a request, named by OpenTelemetry's semantic conventions where they have a name:
//
//	POST /v1/chat/completions      the request, as the proxy serves it; for a gateway's, the ext_proc call
//	  kvasir.parse .tokenize .admit .match .score .book     the steps of the pick
//	  chat MODEL                   each attempt at an engine, gen_ai attributes
//	    kvasir.first_byte          until the engine's answer begins
//
// The context of a trace is read and written as W3C's traceparent and tracestate. A span contains nothing of a prompt, an
// answer, a key or a session.
//
// Without a Tracer, all methods can be called on nil, have no effect, and neither allocate nor read the clock.
package tracing

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Tracer begins the traces of requests. It is safe for concurrent use; nil traces nothing.
type Tracer struct{ tracer trace.Tracer }

// New makes a tracer of spans that a provider takes.
func New(p trace.TracerProvider) *Tracer {
	return &Tracer{tracer: p.Tracer("github.com/kvasir-dev/kvasir", trace.WithSchemaURL(semconv.SchemaURL))}
}

// Request is the trace of one request, for one goroutine at a time; nil traces nothing.
type Request struct {
	tracer trace.Tracer
	ctx    context.Context // with the request's span in it
	span   trace.Span
	// recording is false for a request that is not sampled: its context goes out, and nothing else is done.
	recording bool
	steps     picker.Steps
	decision  *picker.Decision // nil until picked

	attempt    trace.Span // nil when none is under way
	attemptCtx context.Context
	began      time.Time // the attempt
	answered   bool      // the attempt's answer has begun
	tokens     bool      // the first of them has arrived
	ended      bool
}

// requestID is the attribute for the request's id.
const requestID = attribute.Key("kvasir.request.id")

// Proxied begins the trace of a request to the proxy, of an id, that arrived at start; known reports that its path is one of few.
// Other paths, and methods that are not registered, are texts of the client, and not shown.
func (t *Tracer) Proxied(r *http.Request, id string, known bool, start time.Time) *Request {
	if t == nil {
		return nil
	}
	ctx := extract(r.Context(), r.Header.Get)
	name, about := methodOf(r), []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(methodOf(r)),
		semconv.URLScheme("http"), semconv.NetworkProtocolVersion(protocol(r)), requestID.String(id)}
	if known {
		name += " " + r.URL.Path
		about = append(about, semconv.HTTPRoute(r.URL.Path))
	}
	return t.begin(ctx, name, start, about...)
}

// methodOf is the request's method, or what OpenTelemetry has for others.
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
		http.MethodConnect, http.MethodTrace:
		return r.Method
	}
	return "_OTHER"
}

func protocol(r *http.Request) string {
	if r.ProtoMajor == 2 {
		return "2"
	}
	return strconv.Itoa(r.ProtoMajor) + "." + strconv.Itoa(r.ProtoMinor)
}

// method is the gRPC method of ext_proc.
const method = "envoy.service.ext_proc.v3.ExternalProcessor/Process"

// Shown begins the trace of a request, of an id, that a gateway has shown since start. Its context is that of the gateway's call,
// as call reads it from the call's metadata, or that of the request's header.
func (t *Tracer) Shown(call, header func(name string) string, id string, start time.Time) *Request {
	if t == nil {
		return nil
	}
	ctx := extract(context.Background(), call)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = extract(ctx, header)
	}
	return t.begin(ctx, method, start, semconv.RPCSystemNameGRPC, semconv.RPCMethod(method), requestID.String(id))
}

func (t *Tracer) begin(ctx context.Context, name string, start time.Time, about ...attribute.KeyValue) *Request {
	r := &Request{tracer: t.tracer}
	r.ctx, r.span = t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start),
		trace.WithAttributes(about...))
	r.recording = r.span.IsRecording()
	return r
}

// Steps records the steps of the pick; nil when they are not needed.
func (r *Request) Steps() *picker.Steps {
	if r == nil || !r.recording {
		return nil
	}
	return &r.steps
}

// Picked is called for the decision.
func (r *Request) Picked(d *picker.Decision) {
	if r == nil || !r.recording {
		return
	}
	r.decision = d
	r.pick(nil)
	first := &d.Targets[0]
	r.span.SetAttributes(
		attribute.String("kvasir.pool", d.Pool), attribute.String("kvasir.strategy", string(d.Strategy)),
		attribute.String("kvasir.endpoint", first.Endpoint.ID.String()), attribute.String("kvasir.tokens.source", d.Tokens.String()),
		attribute.Int("kvasir.tokens.prompt", d.PromptTokens), attribute.Int("kvasir.tokens.predicted", first.Predicted),
	)
	if d.TokensMissing != "" {
		r.span.SetAttributes(attribute.String("kvasir.tokens.missing", d.TokensMissing))
	}
}

// pick makes the spans of the steps, once. failed is why the pick ended in the step that has no end, nil if it did not.
func (r *Request) pick(failed *string) {
	from := r.steps.Began
	r.steps.Began = time.Time{}
	if from.IsZero() {
		return
	}
	last := -1
	for step, end := range r.steps.Ended {
		if end.IsZero() {
			continue
		}
		last = step
		_, span := r.tracer.Start(r.ctx, "kvasir."+picker.Step(step).String(), trace.WithTimestamp(from))
		if picker.Step(step) == picker.StepMatch && r.decision != nil {
			span.SetAttributes(attribute.Int("kvasir.match.blocks", r.decision.Targets[0].Found.Blocks()))
		}
		span.End(trace.WithTimestamp(end))
		from = end
	}
	if failed == nil || last+1 >= picker.NumSteps {
		return
	}
	_, span := r.tracer.Start(r.ctx, "kvasir."+picker.Step(last+1).String(), trace.WithTimestamp(from),
		trace.WithAttributes(semconv.ErrorTypeKey.String(*failed)))
	span.SetStatus(codes.Error, "")
	span.End()
}

// Refused reports that the request got no decision, for a reason of few values.
func (r *Request) Refused(reason string) {
	if r == nil || !r.recording {
		return
	}
	r.pick(&reason)
	r.span.SetAttributes(semconv.ErrorTypeKey.String(reason))
}

// Answered reports that the response cache of a pool had the answer: the request got no decision, and no engine was asked.
func (r *Request) Answered(pool string) {
	if r == nil || !r.recording {
		return
	}
	r.pick(nil)
	r.span.SetAttributes(attribute.String("kvasir.pool", pool), attribute.String("kvasir.outcome", "answered"))
}

// Attempt reports that the request is being sent to Targets[i].
func (r *Request) Attempt(i int) {
	if r == nil || !r.recording || r.decision == nil {
		return
	}
	d := r.decision
	r.began, r.answered = time.Now(), false
	operation := operationOf(d)
	name := operation
	if d.Model != "" {
		name += " " + d.Model
	}
	about := append(make([]attribute.KeyValue, 0, 10), semconv.GenAIOperationNameKey.String(operation), engineOf(d.Spec().Engine))
	if d.Model != "" {
		about = append(about, semconv.GenAIRequestModel(d.Model))
	}
	about = append(about, target(&d.Targets[i])...)
	if i > 0 {
		about = append(about, semconv.HTTPRequestResendCount(i))
	}
	r.attemptCtx, r.attempt = r.tracer.Start(r.ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(r.began),
		trace.WithAttributes(about...))
}

// target names an endpoint: its address, and its pod.
func target(t *picker.Target) []attribute.KeyValue {
	about := []attribute.KeyValue{semconv.K8SPodName(t.Endpoint.Pod), semconv.K8SNamespaceName(t.Endpoint.Namespace)}
	if t.Endpoint.Socket != "" {
		return append(about, semconv.ServerAddress(t.Endpoint.Socket))
	}
	host, text, err := net.SplitHostPort(t.Endpoint.Address)
	if err != nil {
		return about
	}
	about = append(about, semconv.ServerAddress(host))
	if port, err := strconv.Atoi(text); err == nil {
		about = append(about, semconv.ServerPort(port))
	}
	return about
}

// Inject passes the trace context for the engine to set, by the headers' lower-case names.
func (r *Request) Inject(set func(name, value string)) {
	if r == nil {
		return
	}
	ctx := r.ctx
	if r.attempt != nil {
		ctx = r.attemptCtx
	}
	propagation.TraceContext{}.Inject(ctx, writer(set))
}

// Failed reports that the attempt has failed, for a reason of few values.
func (r *Request) Failed(reason string) {
	if r == nil || r.attempt == nil {
		return
	}
	r.attempt.SetAttributes(semconv.ErrorTypeKey.String(reason))
	r.attempt.SetStatus(codes.Error, "")
	r.endAttempt()
}

// FirstByte reports that the engine's answer has begun, with a status.
func (r *Request) FirstByte(status int) {
	if r == nil || r.attempt == nil || r.answered {
		return
	}
	r.answered = true
	_, span := r.tracer.Start(r.attemptCtx, "kvasir.first_byte", trace.WithTimestamp(r.began))
	span.End()
	r.attempt.SetAttributes(semconv.HTTPResponseStatusCode(status))
}

// FirstToken reports that the first generated token has arrived.
func (r *Request) FirstToken() {
	if r == nil || r.attempt == nil || r.tokens {
		return
	}
	r.tokens = true
	r.attempt.AddEvent("kvasir.first_token")
}

// Ended reports how the request has ended that was picked for.
func (r *Request) Ended(outcome picker.Outcome) {
	if r == nil || !r.recording || r.decision == nil {
		return
	}
	r.span.SetAttributes(attribute.String("kvasir.outcome", outcome.String()))
	if served := r.decision.Target(); served != &r.decision.Targets[0] {
		r.span.SetAttributes(attribute.String("kvasir.endpoint", served.Endpoint.ID.String()))
	}
	if r.attempt == nil {
		return
	}
	used := r.decision.Reported()
	if used.Prompt >= 0 {
		r.attempt.SetAttributes(semconv.GenAIUsageInputTokens(used.Prompt))
	}
	if used.Cached >= 0 {
		r.attempt.SetAttributes(semconv.GenAIUsageCacheReadInputTokens(used.Cached))
	}
	if used.Generated >= 0 {
		r.attempt.SetAttributes(semconv.GenAIUsageOutputTokens(used.Generated))
	}
	if outcome == picker.Failed || outcome == picker.ClientGone || outcome == picker.Rejected {
		r.attempt.SetAttributes(semconv.ErrorTypeKey.String(outcome.String()))
		r.attempt.SetStatus(codes.Error, "")
	}
	r.endAttempt()
}

func (r *Request) endAttempt() {
	r.attempt.End()
	r.attempt, r.attemptCtx = nil, nil
}

// Close ends the trace, with the status that the client was given, 0 for none. Only the first call counts.
func (r *Request) Close(status int) {
	if r == nil || r.ended {
		return
	}
	r.ended = true
	if r.attempt != nil { // a bug has ended the request
		r.Failed("_OTHER")
	}
	if status != 0 {
		r.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	}
	if status >= 500 {
		r.span.SetStatus(codes.Error, "")
	}
	r.span.End()
}

// operationOf is the conventions' word for what is asked.
func operationOf(d *picker.Decision) string {
	route, read := d.Route()
	switch {
	case !read:
		return "other"
	case route == openai.Completions:
		return semconv.GenAIOperationNameTextCompletion.Value.AsString()
	case route == openai.Embeddings:
		return semconv.GenAIOperationNameEmbeddings.Value.AsString()
	}
	return semconv.GenAIOperationNameChat.Value.AsString()
}

// engineOf names the engine; the conventions have no word for engines of one's own.
func engineOf(engine string) attribute.KeyValue {
	if engine == "SGLang" {
		return semconv.GenAIProviderNameKey.String("sglang")
	}
	return semconv.GenAIProviderNameKey.String("vllm")
}

func extract(ctx context.Context, get func(name string) string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, reader(get))
}

// reader and writer are headers, as carriers of the propagated context.
type (
	reader func(name string) string
	writer func(name, value string)
)

func (get reader) Get(name string) string { return get(name) }
func (reader) Set(string, string)         {}
func (reader) Keys() []string             { return nil }

func (writer) Get(string) string          { return "" }
func (set writer) Set(name, value string) { set(name, value) }
func (writer) Keys() []string             { return nil }
