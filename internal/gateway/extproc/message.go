package extproc

import (
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

const (
	// destinationHeader names the endpoint that serves a request: ip:port, or several with commas between. Headers
	// that begin with it are the protocol's own.
	destinationHeader = "x-gateway-destination-endpoint"
	// destinationSpace is the namespace of the dynamic metadata with the same destination.
	destinationSpace = "envoy.lb"

	rankHeader = "x-data-parallel-rank"

	// maxChunk is the most bytes of a body in one answer. Gateways take 64 KiB.
	maxChunk = 62000
)

// put sets a header, in place of any that the client has sent under the name. Gateways read raw_value only.
func put(m *pb.HeaderMutation, name, value string) {
	m.SetHeaders = append(m.SetHeaders, &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	})
}

// requestMutation is what is changed in a request's header: only what is ours. A client cannot name a destination: the
// header is overwritten, and its relatives are taken off.
func (x *exchange) requestMutation(destination string) *pb.HeaderMutation {
	d := x.decision
	m := &pb.HeaderMutation{}
	put(m, destinationHeader, destination)
	rank := d.Targets[0].Endpoint.RankHeader
	if rank >= 0 {
		put(m, rankHeader, strconv.Itoa(rank))
	}
	if x.made {
		put(m, picker.RequestIDHeader, x.id)
	}
	key, own := d.Spec().Authorization()
	if key != "" {
		put(m, "authorization", key)
	} else if !own {
		m.RemoveHeaders = append(m.RemoveHeaders, "authorization")
	}
	if !own && x.head.has(picker.APIKeyHeader) {
		m.RemoveHeaders = append(m.RemoveHeaders, picker.APIKeyHeader)
	}
	if x.body.changed && x.head.get("content-length") != "" {
		put(m, "content-length", strconv.Itoa(x.body.size))
	}
	if d.CountsTokens() && x.head.has("accept-encoding") {
		m.RemoveHeaders = append(m.RemoveHeaders, "accept-encoding")
	}
	if x.span != nil {
		x.inject(m)
	}
	model := d.InvokedModel()
	if model != "" {
		put(m, picker.InvokedModelHeader, model)
	}
	relay, value := d.RelayHeader()
	if relay != "" {
		put(m, relay, value)
	}
	d.EachForeignHeader(func(name string) {
		isSet := name == picker.InvokedModelHeader && model != "" || name == relay
		if !isSet && x.head.has(name) {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	})
	x.head.each(func(name string) {
		if name == rankHeader && rank < 0 || len(name) > len(destinationHeader) && name[:len(destinationHeader)] == destinationHeader {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	})
	return m
}

// inject lets the engine go on with the trace.
func (x *exchange) inject(m *pb.HeaderMutation) {
	state := false
	x.span.Inject(func(name, value string) {
		put(m, name, value)
		state = state || name == "tracestate"
	})
	if !state && x.head.has("tracestate") { // of a context that cannot be read
		m.RemoveHeaders = append(m.RemoveHeaders, "tracestate")
	}
}

func requestHeadersAnswer(r *pb.CommonResponse) *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{Response: r}}}
}

func requestBodyAnswer(r *pb.CommonResponse) *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: r}}}
}

func requestTrailersAnswer() *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestTrailers{RequestTrailers: &pb.TrailersResponse{}}}
}

func responseHeadersAnswer(r *pb.CommonResponse) *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseHeaders{ResponseHeaders: &pb.HeadersResponse{Response: r}}}
}

func responseBodyAnswer(r *pb.CommonResponse) *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseBody{ResponseBody: &pb.BodyResponse{Response: r}}}
}

func responseTrailersAnswer() *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseTrailers{ResponseTrailers: &pb.TrailersResponse{}}}
}

// chunks cuts a body into pieces that gateways take. An empty body that ends is one piece.
func chunks(body []byte, end bool, each func(piece []byte, end bool)) {
	for len(body) > maxChunk {
		each(body[:maxChunk], false)
		body = body[maxChunk:]
	}
	if len(body) > 0 || end {
		each(body, end)
	}
}
