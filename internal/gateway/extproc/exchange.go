package extproc

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/gateway/h2stream"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
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

// stream is what an exchange needs of a stream of h2stream, which has the details.
type stream interface {
	Host() string
	Context() context.Context
	// Send sends a message in three parts. The second must stay unchanged until After; counts of its bytes count
	// as pending.
	Send(head, body, tail []byte, counts int)
	After(f func())
	// Off runs what can wait, before the next message is taken.
	Off(f func())
	Finish(code codes.Code, message string)
	// What is kept for the stream counts in the budget, for its owner, and its request is complete at some time.
	holder
	Own(owner string) (room bool)
	Complete()
}

// exchange is one HTTP request of a gateway, and the h2stream.Handler of its stream.
//
// It never ends a stream in the middle of a request: what becomes of bytes on their way then differs from gateway to
// gateway.
//
// It has many fields because the request, the answer and the account of both are read by the same messages' handlers.
type exchange struct {
	server  *Server
	out     stream
	ready   func() bool    // whether the picker takes requests; nil for always
	call    *h2stream.Call // nil unless requests are traced
	gateway string         // its address
	start   time.Time
	id      string // of the request
	made    bool   // the id is new: the engine and the client need it

	mode bodyMode
	echo bool // of the answer's body
	// bodyless: the answer's body is not shown.
	bodyless bool
	// silent: the gateway takes no answers (observability_mode). It routes the request by itself.
	silent bool
	head   head
	held   int64 // bytes that are counted for head
	body   body
	subset subset // nil for all endpoints
	// subsetHeld is the bytes that are counted for subset.
	subsetHeld int64
	// explain: the policy can be asked to explain itself.
	explain string

	request, response phase
	decision          *picker.Decision // nil until picked, and when refused
	named             int              // of its targets, that the gateway was given
	answer            picker.Answer
	stream            streaming
	span              *tracing.Request
	usage             *usagelog.Request // nil where nothing is recorded
	status            int               // of the answer; 0 until there is one
	shown             bool              // some of the answer's body, or that it has none
	settled           bool              // the decision has been ended
	guard
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

// Slow implements h2stream.Handler. Until the pick, what has arrived of the request is held for a client that is too slow.
func (x *exchange) Slow() {
	defer x.recovered()
	switch {
	case x.request == inBody && x.decision == nil:
		x.refuse(request.SlowBody)
	case x.decision == nil: // there is no request yet, or it was refused and the gateway does not end the stream
		x.ended()
		x.out.Finish(codes.DeadlineExceeded, "the request did not arrive in time")
	}
}

// Ended implements h2stream.Handler.
func (x *exchange) Ended() {
	x.ended()
	x.span.Close(x.status)
	x.usage.Close(x.status)
	x.dropHead()
	x.body.release(x.out)
	x.server.streams.Add(-1)
}

// off runs what can wait.
func (x *exchange) off(f func()) {
	x.out.Off(func() { defer x.recovered(); f() })
}

// recovered ends the request after a panic.
func (x *exchange) recovered() {
	v := recover()
	if v == nil {
		return
	}
	x.server.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "request", x.id, "stack", string(debug.Stack()))
	x.server.options.Observer.Refused(request.RefusedPanic)
	x.usage.Refused(request.RefusedPanic, x.since())
	x.settle(picker.Failed)
	x.out.Finish(codes.Internal, "the request could not be handled")
}

func (x *exchange) requestHeaders(c *pb.ProtocolConfiguration, h *pb.HttpHeaders) error {
	if x.request != begin {
		return status.Error(codes.InvalidArgument, "request headers must be sent once, and first")
	}
	x.mode, x.echo, x.bodyless = requestMode(c), echoes(c), bodyless(c)
	if x.silent && c.GetRequestBodyMode() == filter.ProcessingMode_STREAMED {
		x.mode = fullDuplex // nothing waits for the pick, so the body arrives in time
	}
	x.head = headOf(h.GetHeaders())
	if h.GetEndOfStream() && x.head.asksForHealth() {
		x.health()
		return nil
	}
	given := x.head.get(picker.RequestIDHeader)
	x.id = picker.RequestID(given)
	x.made = x.id != given
	if tracer := x.server.options.Spans; tracer != nil {
		x.span = tracer.Shown(x.call.Header, x.head.get, x.id, x.start)
	}
	x.explain = x.head.get(picker.ExplainHeader)
	x.request = inBody
	tenant, stranger := x.server.picker.Whose(x.head.get)
	room := tenant == "" || x.out.Own(tenant)
	if log := x.server.options.Usage; log != nil && stranger == nil {
		x.usage = log.Begin(usagelog.Gateway, x.id, x.server.picker.ShownTenant(tenant), x.head.path(), x.start)
	}
	switch {
	case h.GetEndOfStream() && picker.IsPreflight(x.head.get(":method"), x.head.get):
		x.preflight()
	case openai.Administrative(x.head.get(":path")):
		x.refuse(request.NotFound)
	case h.GetEndOfStream() && stranger == nil && x.asksForModels():
		x.models()
	case stranger != nil: // nothing of its body is held
		x.refuse(request.RefusalOf(stranger))
	case !room:
		x.refuse(request.NoMemory)
	case !h.GetEndOfStream() && x.server.options.Overload.RefusesBody(tenant, x.head.length()):
		x.refuse(request.Overload)
	case h.GetEndOfStream() || x.mode == unseen:
		x.off(func() {
			if x.pick(&picker.Request{Unparsed: true, Hidden: x.hidden(h.GetEndOfStream()), Uncached: h.GetEndOfStream()}) {
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
		return status.Error(codes.InvalidArgument, "request headers must be sent first")
	case x.request == done && x.mode == unseen && x.decision != nil:
		x.send(requestBodyAnswer(&pb.CommonResponse{}))
		return nil
	case x.request == done: // sent again after its end
		return nil
	}
	limit := x.server.picker.MaxRequestBody(x.server.options.DefaultMaxBody)
	switch {
	case int64(x.body.size+len(p.bytes)) > limit:
		x.refuse(request.TooLarge)
	case !x.body.add(x.out, p.bytes):
		x.refuse(request.Memory)
	case x.mode == partial && !p.end:
		x.off(func() { x.bodyComplete(&picker.Request{Unparsed: true, Hidden: x.hidden(false)}, nil) })
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

// parse makes the request to pick for, whose body is complete; nil when there is no room for it.
func (x *exchange) parse() *picker.Request {
	route, ok := routeOf(x.head, x.body.Bytes)
	if !ok {
		return &picker.Request{Unparsed: true, Body: x.body.Bytes, Uncached: len(x.body.Bytes) == 0,
			Saltable: strings.HasSuffix(x.head.whole(), openai.Generate), Invokes: strings.HasSuffix(x.head.whole(), openai.Invocations)}
	}
	if !x.body.TakeIDs(x.out.Hold, route) {
		return nil
	}
	if name := picker.HeaderOf(x.head.get, picker.RewriteHeader); name != "" {
		var r openai.Request
		if openai.Parse(route, x.body.Bytes, &r) == nil && r.Model != name {
			if !x.body.replace(x.out, openai.ReplaceModel(nil, x.body.Bytes, &r, name)) {
				return nil
			}
		}
	}
	path := x.head.path()
	in := &picker.Request{Route: route, Body: x.body.Bytes, Light: path == openai.CountTokens, Guessed: path == ""}
	if !x.silent { // or the engine gets the body as it is
		in.Rename = x.rename
	}
	return in
}

// rename puts the name of a backend in place of the model in the body.
func (x *exchange) rename(r *openai.Request, model string) (body []byte, room bool) {
	room = x.body.rename(x.out, r, model)
	return x.body.Bytes, room
}

// hidden reports whether the gateway keeps the body of a request for the model's API from the picker.
func (x *exchange) hidden(noBody bool) bool {
	method := x.head.get(":method")
	_, api := openai.RouteOf(x.head.path())
	return !noBody && api && (method == "" || method == "POST")
}

// pick chooses an endpoint, or refuses. The request is complete; nil is one for which there was no room.
func (x *exchange) pick(in *picker.Request) bool {
	x.out.Complete()
	if in == nil {
		x.refuse(request.Memory)
		return false
	}
	in.ID, in.Gateway, in.Relays = x.id, x.gateway, !x.silent && !in.Guessed
	in.Uncached = in.Uncached || !openai.Computes(x.head.get(":method"), x.head.path())
	in.Header, in.Pool, in.Remote, in.Observed = x.head.get, x.server.options.Pool, true, x.silent
	if x.subset != nil {
		in.Allow = x.subset.has
	}
	in.Steps, in.Facts = x.span.Steps(), x.usage.Facts()
	if after := x.suspect(in); after > 0 {
		x.refuse(request.Suspect(after))
		return false
	}
	d, err := x.server.picker.Pick(x.out.Context(), in)
	if err != nil {
		x.refuse(request.RefusalOf(err))
		return false
	}
	x.decision = d
	if d.DropsPriority() {
		x.body.changed = openai.DropPriority(x.body.Bytes) || x.body.changed
	}
	if salt := d.CacheSalt(); salt != "" && !x.body.salt(x.out, salt) {
		d.End(picker.Failed)
		x.decision = nil
		x.refuse(request.Memory)
		return false
	}
	x.server.options.Observer.Picked(d)
	x.span.Picked(d)
	x.span.Attempt(0)
	return true
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
		sendRest(x.body.Bytes)
	}
	x.requestDone()
}

// keptBodyAnswer answers to a body that the gateway has kept: it gets the new one only if it was changed.
func (x *exchange) keptBodyAnswer(r *pb.CommonResponse) *pb.ProcessingResponse {
	if x.body.changed {
		r.BodyMutation = &pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: x.body.Bytes}}
	}
	return requestBodyAnswer(r)
}

// requestDone gives up what was needed for the pick, the body when all before it was sent.
func (x *exchange) requestDone() {
	x.request = done
	x.dropHead()
	if release := x.body.take(x.out); release != nil {
		x.out.After(release)
	}
}

// dropHead gives up what is known of the request's header.
func (x *exchange) dropHead() {
	x.head, x.subset = nil, nil
	x.out.Release(x.held + x.subsetHeld)
	x.held, x.subsetHeld = 0, 0
}

// refuse answers in place of an endpoint. The stream then only waits for its end.
func (x *exchange) refuse(why *request.Refusal) {
	x.request, x.response, x.refused = done, done, true
	defer func() { x.dropHead(); x.body.release(x.out) }()
	if x.out.Context().Err() != nil {
		x.server.options.Observer.Refused(request.RefusedClientGone)
		x.span.Refused(request.RefusedClientGone)
		x.usage.Refused(request.RefusedClientGone, x.since())
		x.server.options.Log.V(1).Info("Request refused", "request", x.id, "reason", request.RefusedClientGone)
		return
	}
	answer := refusalAnswer(why, x.head.isMessages())
	put(answer.Headers, picker.RequestIDHeader, x.id)
	if why.Cause != nil {
		x.server.options.Log.Error(why.Cause, "Picking failed", "request", x.id)
	}
	x.server.options.Observer.Refused(why.Reason)
	x.span.Refused(why.Reason)
	x.usage.Refused(why.Reason, x.since())
	x.status = why.Status
	if log := x.server.options.Log.V(1); log.Enabled() {
		log.Info("Request refused", "request", x.id, "status", x.status, "code", why.Code, "reason", why.Reason)
	}
	x.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: answer}})
}

// destination names the endpoint: in a header and in metadata, because gateways read the one or the other.
func (x *exchange) destination(answer func(*pb.CommonResponse) *pb.ProcessingResponse) {
	d := x.decision
	where := d.Targets[0].Endpoint.Address
	x.named = 1
	if d.Spec().OrderedDestinations && d.Targets[0].Endpoint.RankHeader < 0 {
		for _, t := range d.Targets[1:] {
			if t.Endpoint.RankHeader >= 0 { // one header cannot name the ranks of several
				break
			}
			where += "," + t.Endpoint.Address
			x.named++
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
	x.sendParts(raw, nil, more, 0)
}

// sendParts sends a message as stream.Send does, unless the gateway takes none.
func (x *exchange) sendParts(head, body, tail []byte, counts int) {
	if !x.silent {
		x.out.Send(head, body, tail, counts)
	}
}

// sendWhole sends the request's body back, to its end.
func (x *exchange) sendWhole(body []byte) { x.sendBody(body, true) }

// sendBody sends the request's body back.
func (x *exchange) sendBody(body []byte, end bool) {
	chunks(body, end, func(bytes []byte, end bool) {
		head, tail := streamed(requestBodyField, len(bytes), end)
		x.sendParts(head, bytes, tail, 0)
	})
}
