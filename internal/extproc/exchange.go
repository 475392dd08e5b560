package extproc

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"strconv"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/h2stream"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/spans"
)

// phase is how far one direction of an exchange is.
//
//	request:   begin --headers--> body --end of body, trailers--> done
//	             |                 |
//	             +--no body--------+--refused, or an answer that is not the endpoint's--> done
//	response:  begin --headers--> body --end of body, trailers--> done
type phase uint8

const (
	begin phase = iota
	inBody
	done
)

// bodyMode is how a gateway shows bodies.
type bodyMode uint8

const (
	// fullDuplex gateways send a body without waiting, keep nothing of it, and take a body back in its place. Gateways
	// that do not say how they send are taken for such.
	fullDuplex bodyMode = iota
	// buffered gateways wait for the answer to the headers, then send the body as a whole and take changes of the
	// headers with its answer.
	buffered
	// partial is buffered, but the body may be cut off.
	partial
	// unseen bodies are not shown, or only after the last moment at which an endpoint can be named.
	unseen
)

func requestMode(c *pb.ProtocolConfiguration) bodyMode {
	if c == nil {
		return fullDuplex
	}
	switch c.GetRequestBodyMode() {
	case filter.ProcessingMode_BUFFERED:
		return buffered
	case filter.ProcessingMode_BUFFERED_PARTIAL:
		return partial
	case filter.ProcessingMode_NONE, filter.ProcessingMode_STREAMED:
		return unseen
	}
	return fullDuplex
}

// echoes tells whether a gateway takes the answer's body back in place of what it has sent.
func echoes(c *pb.ProtocolConfiguration) bool {
	switch c.GetResponseBodyMode() {
	case filter.ProcessingMode_FULL_DUPLEX_STREAMED, filter.ProcessingMode_GRPC:
		return true
	}
	return c == nil
}

// stream is what an exchange needs of a stream of h2stream, which has the details.
type stream interface {
	Client() net.Addr
	Context() context.Context
	// Send sends a message in three parts, of which the second must stay as it is until After; counts of its bytes count
	// as pending.
	Send(head, body, tail []byte, counts int)
	After(f func())
	// Off runs what may wait, before the next message is taken.
	Off(f func())
	Finish(code codes.Code, message string)
}

// exchange is one HTTP request of a gateway, and the h2stream.Handler of its stream.
//
// It never ends a stream in the middle of a request: what becomes of bytes on their way then differs from gateway to
// gateway.
type exchange struct {
	server  *Server
	out     stream
	call    *h2stream.Call // nil unless requests are traced
	gateway string         // its address
	start   time.Time

	mode   bodyMode
	echo   bool // of the answer's body
	head   head
	body   body
	subset subset // nil for all endpoints
	// explain: the policy may be asked to explain itself.
	explain string

	request, response phase
	decision          *picker.Decision // nil until picked, and when refused
	answer            picker.Answer
	span              *spans.Request
	status            int  // of the answer; 0 until there is one
	settled           bool // the decision has been ended
	refused           bool // by an immediate response
}

// Message implements h2stream.Handler.
func (x *exchange) Message(raw []byte) {
	defer x.recovered()
	if err := x.read(raw); err != nil {
		x.ended()
		x.out.Finish(status.Code(err), status.Convert(err).Message())
	}
}

// HalfClosed implements h2stream.Handler. The gateway still reads.
func (x *exchange) HalfClosed() {
	defer x.recovered()
	finish := func() {
		x.ended()
		x.out.Finish(codes.OK, "")
	}
	if x.request == inBody && x.mode == fullDuplex {
		x.off(func() { x.bodyComplete(x.parse(), x.sendWhole); finish() })
		return
	}
	finish()
}

// Ended implements h2stream.Handler.
func (x *exchange) Ended() {
	x.ended()
	x.span.Close(x.status)
	x.body.release(x.server)
	x.server.streams.Add(-1)
}

// off runs what may wait.
func (x *exchange) off(f func()) {
	x.out.Off(func() { defer x.recovered(); f() })
}

// recovered ends the request after a panic.
func (x *exchange) recovered() {
	v := recover()
	if v == nil {
		return
	}
	x.server.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "stack", string(debug.Stack()))
	x.server.options.Observer.Refused(RefusedPanic)
	x.settle(picker.Failed)
	x.out.Finish(codes.Internal, "the request could not be handled")
}

// read reads and takes one message, of which nothing is kept. Pieces of bodies, which are most, are read in place.
func (x *exchange) read(raw []byte) error {
	if kind, p, ok := pieceIn(raw); ok {
		switch {
		case x.refused:
		case kind == requestBodyField:
			return x.requestBody(p)
		default:
			x.responseBody(p)
		}
		return nil
	}
	var m pb.ProcessingRequest
	if err := proto.Unmarshal(raw, &m); err != nil {
		return status.Error(codes.InvalidArgument, "a message cannot be read")
	}
	return x.take(&m)
}

// take takes one message. An error is one that ends the stream: the gateway does not keep to the protocol.
func (x *exchange) take(m *pb.ProcessingRequest) error {
	if x.refused { // the stream only waits for its end
		return nil
	}
	if m.GetObservabilityMode() {
		return status.Error(codes.Unimplemented, "an endpoint is picked only where the answers are heeded")
	}
	if s, ok := subsetOf(m.GetMetadataContext()); ok && x.request != done {
		x.subset = s
	}
	switch r := m.GetRequest().(type) {
	case *pb.ProcessingRequest_RequestHeaders:
		return x.requestHeaders(m.GetProtocolConfig(), r.RequestHeaders)
	case *pb.ProcessingRequest_RequestBody:
		return x.requestBody(pieceOf(r.RequestBody))
	case *pb.ProcessingRequest_RequestTrailers:
		x.requestTrailers()
	case *pb.ProcessingRequest_ResponseHeaders:
		x.responseHeaders(m, r.ResponseHeaders)
	case *pb.ProcessingRequest_ResponseBody:
		x.responseBody(pieceOf(r.ResponseBody))
	case *pb.ProcessingRequest_ResponseTrailers:
		x.responseTrailers()
	}
	return nil
}

func (x *exchange) requestHeaders(c *pb.ProtocolConfiguration, h *pb.HttpHeaders) error {
	if x.request != begin {
		return status.Error(codes.InvalidArgument, "request headers come once, and first")
	}
	x.mode, x.echo = requestMode(c), echoes(c)
	x.head = headOf(h.GetHeaders())
	if tracer := x.server.options.Spans; tracer != nil {
		x.span = tracer.Shown(x.call.Header, x.head.get, x.start)
	}
	x.explain = x.head.get(picker.ExplainHeader)
	x.request = inBody
	switch {
	case h.GetEndOfStream() || x.mode == unseen:
		preflight := h.GetEndOfStream() && picker.IsPreflight(x.head.get(":method"), x.head.get)
		x.off(func() {
			if x.pick(&picker.Request{Unparsed: true, Preflight: preflight}) {
				x.destination(requestHeadersAnswer)
				x.requestDone()
			}
		})
	case x.mode != fullDuplex:
		x.send(requestHeadersAnswer(&pb.CommonResponse{}))
	}
	return nil
}

func (x *exchange) requestBody(p piece) error {
	switch {
	case x.request == begin:
		return status.Error(codes.InvalidArgument, "request headers come first")
	case x.request == done && x.mode == unseen && x.decision != nil:
		x.send(requestBodyAnswer(&pb.CommonResponse{}))
		return nil
	case x.request == done: // sent again after its end
		return nil
	}
	limit := x.server.picker.MaxRequestBody(x.server.options.DefaultMaxBody)
	switch {
	case int64(x.body.size+len(p.bytes)) > limit:
		x.refuse(errTooLarge)
	case !x.body.add(x.server, p.bytes):
		x.refuse(errMemory)
	case x.mode == partial && !p.end:
		x.off(func() { x.bodyComplete(&picker.Request{Unparsed: true}, nil) })
	case x.mode != fullDuplex:
		x.off(func() { x.bodyComplete(x.parse(), nil) })
	case p.end:
		x.off(func() { x.bodyComplete(x.parse(), x.sendWhole) })
	}
	return nil
}

func (x *exchange) requestTrailers() {
	switch {
	case x.mode != fullDuplex:
		x.send(requestTrailersAnswer())
	case x.request == inBody:
		x.off(func() {
			x.bodyComplete(x.parse(), func(rest []byte) {
				x.sendBody(rest, false)
				x.send(requestTrailersAnswer())
			})
		})
	}
}

// parse makes what is to be picked for of the request, whose body is complete.
func (x *exchange) parse() *picker.Request {
	route, ok := routeOf(x.head, x.body.bytes)
	if !ok {
		return &picker.Request{Unparsed: true, Body: x.body.bytes}
	}
	if name := picker.HeaderOf(x.head.get, picker.RewriteHeader); name != "" {
		var r openai.Request
		if openai.Parse(route, x.body.bytes, &r) == nil && r.Model != name {
			x.body.replace(openai.ReplaceModel(nil, x.body.bytes, &r, name))
		}
	}
	return &picker.Request{Route: route, Body: x.body.bytes, Light: x.head.path() == openai.CountTokens}
}

// pick chooses an endpoint, or refuses.
func (x *exchange) pick(in *picker.Request) bool {
	in.Header, in.Pool, in.Allow = x.head.get, x.server.options.Pool, x.allow
	in.Steps = x.span.Steps()
	d, err := x.server.picker.Pick(x.out.Context(), in)
	if err != nil {
		x.refuse(err)
		return false
	}
	x.decision = d
	x.server.options.Observer.Picked(d)
	x.span.Picked(d)
	x.span.Attempt(0)
	return true
}

// allow tells whether a gateway can reach an endpoint and may.
func (x *exchange) allow(ep *endpoint.Endpoint) bool {
	return ep.Socket == "" && (x.subset == nil || x.subset.has(ep))
}

// bodyComplete picks once the body is complete, and sends it back by sendRest; a nil sendRest is for gateways that
// have kept the body.
func (x *exchange) bodyComplete(in *picker.Request, sendRest func(body []byte)) {
	if !x.pick(in) {
		return
	}
	if sendRest == nil {
		x.destination(x.keptBodyAnswer)
	} else {
		x.destination(requestHeadersAnswer)
		sendRest(x.body.bytes)
	}
	x.requestDone()
}

// keptBodyAnswer answers to a body that the gateway has kept: it gets the new one only if it was changed.
func (x *exchange) keptBodyAnswer(r *pb.CommonResponse) *pb.ProcessingResponse {
	if x.body.changed {
		r.BodyMutation = &pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: x.body.bytes}}
	}
	return requestBodyAnswer(r)
}

// requestDone gives up what was needed for the pick, the body when all before it was sent.
func (x *exchange) requestDone() {
	x.request = done
	x.head, x.subset = nil, nil
	if release := x.body.take(x.server); release != nil {
		x.out.After(release)
	}
}

// refuse answers in place of an endpoint. The stream then only waits for its end.
func (x *exchange) refuse(err error) {
	x.request, x.response, x.refused = done, done, true
	defer func() { x.head, x.subset = nil, nil; x.body.release(x.server) }()
	if x.out.Context().Err() != nil {
		x.server.options.Observer.Refused(RefusedClientGone)
		x.span.Refused(RefusedClientGone)
		return
	}
	answer, reason := refusal(err, x.head.isMessages())
	if reason == RefusedPick {
		x.server.options.Log.Error(err, "Picking failed")
	}
	x.server.options.Observer.Refused(reason)
	x.span.Refused(reason)
	x.status = int(answer.GetStatus().GetCode())
	x.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: answer}})
}

// destination names the endpoint: in a header and in metadata, because gateways read the one or the other.
func (x *exchange) destination(answer func(*pb.CommonResponse) *pb.ProcessingResponse) {
	d := x.decision
	where := d.Targets[0].Endpoint.Address
	if d.Spec().OrderedDestinations && d.Targets[0].Endpoint.RankHeader < 0 {
		for _, t := range d.Targets[1:] {
			if t.Endpoint.RankHeader < 0 { // one header cannot name the ranks of several
				where += "," + t.Endpoint.Address
			}
		}
	}
	x.send(answer(&pb.CommonResponse{HeaderMutation: x.requestMutation(where), ClearRouteCache: true}), destinationMetadata(where)...)
}

// send sends a message, and more fields of it.
func (x *exchange) send(m *pb.ProcessingResponse, more ...byte) {
	raw, err := proto.Marshal(m)
	if err != nil {
		panic(err) // a string that is not UTF-8, where we have made them all
	}
	x.out.Send(raw, nil, more, 0)
}

// sendWhole sends the request's body back, to its end.
func (x *exchange) sendWhole(body []byte) { x.sendBody(body, true) }

// sendBody sends the request's body back.
func (x *exchange) sendBody(body []byte, end bool) {
	chunks(body, end, func(bytes []byte, end bool) {
		head, tail := streamed(requestBodyField, len(bytes), end)
		x.out.Send(head, bytes, tail, 0)
	})
}

func (x *exchange) responseHeaders(m *pb.ProcessingRequest, h *pb.HttpHeaders) {
	if x.response != begin {
		return
	}
	x.response = inBody
	x.server.gateways.learn(x.gateway)
	if x.request != done { // the gateway has answered by itself
		x.request = done
		x.body.release(x.server)
	}
	d := x.decision
	if d == nil {
		x.send(responseHeadersAnswer(nil))
		return
	}
	if address := servedBy(m.GetMetadataContext()); address != "" {
		d.Served(address)
	}
	x.send(responseHeadersAnswer(x.explained()))

	head := headOf(h.GetHeaders())
	code, err := strconv.Atoi(head.get(":status"))
	if err != nil {
		code = 200
	}
	x.status = code
	x.span.FirstByte(code)
	if code >= 500 && code != 501 && code != 505 { // not what the engine just cannot do
		d.Fail()
	}
	x.answer.Start(d, code, head.get("content-type"), head.get("content-encoding"))
	if h.GetEndOfStream() {
		x.responseDone()
	}
}

// explained is what is added to the answer's header.
func (x *exchange) explained() *pb.CommonResponse {
	if !x.decision.Explains(x.explain) {
		return nil
	}
	m := &pb.HeaderMutation{}
	x.decision.Explain(x.decision.Index(), func(name, value string) { put(m, name, value) })
	return &pb.CommonResponse{HeaderMutation: m}
}

// responseBody sends a piece of the answer back before it looks at it.
func (x *exchange) responseBody(p piece) {
	if x.response == done {
		return
	}
	if x.response == begin { // the gateway does not show the headers
		x.response = inBody
		x.server.gateways.learn(x.gateway)
		if x.decision != nil {
			x.answer.Start(x.decision, 200, "", "")
		}
	}
	if x.echo {
		x.echoBody(p)
	} else {
		x.send(responseBodyAnswer(nil))
	}
	if x.decision != nil && x.answer.Write(p.bytes) {
		x.firstToken()
	}
	if p.end {
		x.responseDone()
	}
}

// echoBody sends a piece of the answer back as it is, and also if it is empty.
func (x *exchange) echoBody(p piece) {
	body := p.bytes
	if len(body) > h2stream.SmallMessage {
		body = bytes.Clone(body) // it is ours for now only
	}
	send := func(bytes []byte, end bool) {
		head, tail := streamed(responseBodyField, len(bytes), end)
		x.out.Send(head, bytes, tail, len(bytes))
	}
	if len(body) == 0 {
		send(nil, p.end)
		return
	}
	chunks(body, p.end, send)
}

func (x *exchange) responseTrailers() {
	if x.response == done {
		return
	}
	x.send(responseTrailersAnswer())
	x.responseDone()
}

// responseDone accounts for an answer that has gone through to its end.
func (x *exchange) responseDone() {
	started := x.response == inBody
	x.response = done
	if x.decision == nil || !started {
		x.settle(picker.Completed)
		return
	}
	outcome, first := x.answer.Close()
	if first {
		x.firstToken()
	}
	x.settle(outcome)
}

func (x *exchange) firstToken() {
	x.span.FirstToken()
	x.server.options.Observer.FirstToken(x.decision, x.since())
}

// ended accounts for a stream that has ended.
func (x *exchange) ended() {
	switch {
	case x.response != begin || x.server.gateways.showAnswers(x.gateway):
		x.settle(picker.ClientGone)
	default:
		x.settle(picker.Unreported)
	}
}

// settle ends the decision, if there is one and it has not been ended.
func (x *exchange) settle(outcome picker.Outcome) {
	if x.settled || x.decision == nil {
		return
	}
	x.settled = true
	if outcome == picker.Unreported {
		x.decision.Unreported()
	} else {
		x.decision.End(outcome)
	}
	x.span.Ended(outcome)
	x.server.options.Observer.Ended(x.decision, outcome, x.since())
}

func (x *exchange) since() time.Duration { return x.server.options.Now().Sub(x.start) }
