package extproc

import (
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/protosize"
)

const (
	// maxHead is the most bytes of a message besides a piece of a body, and maxDecoded the most that these take when they are decoded.
	maxHead, maxDecoded = 1 << 20, 4 << 20
	// uncounted is the decoded size up to which a message does not draw on the budget, unless some of it is kept: a connection
	// handles one at a time.
	uncounted = 8 << 10
)

var requestShape = protosize.Of(new(pb.ProcessingRequest))

// read reads and handles one message, and keeps nothing of its bytes. Pieces of bodies, which most bytes are in, are read in place.
func (x *exchange) read(raw []byte) error {
	if x.refused { // the stream only waits for its end
		return nil
	}
	kind, p, rest, ok := pieceIn(raw)
	if !ok {
		return x.readHead(raw)
	}
	if len(rest) > 0 {
		if err := x.readHead(rest); err != nil {
			return err
		}
	}
	if kind == requestBodyField {
		return x.requestBody(p)
	}
	x.responseBody(p)
	return nil
}

// readHead reads and handles a message, or what it has besides a piece of a body.
func (x *exchange) readHead(raw []byte) error {
	size, fits := requestShape.Decoded(raw, maxDecoded)
	if len(raw) > maxHead || !fits {
		return status.Error(codes.ResourceExhausted, "a message is too large, not counting a piece of a body")
	}
	if x.request != begin && size <= uncounted {
		return x.decode(raw)
	}
	if !x.out.Hold(size) {
		return status.Error(codes.ResourceExhausted, "there is no room for another request")
	}
	if x.request == begin {
		x.held += size // for head
	} else {
		defer x.out.Release(size)
	}
	return x.decode(raw)
}

// decode decodes and handles a message.
func (x *exchange) decode(raw []byte) error {
	var m pb.ProcessingRequest
	if err := proto.Unmarshal(raw, &m); err != nil {
		return status.Error(codes.InvalidArgument, "a message cannot be read")
	}
	return x.take(&m)
}

// take takes one message. An error is one that ends the stream: the gateway does not keep to the protocol.
func (x *exchange) take(m *pb.ProcessingRequest) error {
	x.silent = x.silent || m.GetObservabilityMode()
	if x.request != done {
		if err := x.restrict(m.GetMetadataContext()); err != nil {
			return err
		}
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

// restrict takes the hint of a message, in place of one before.
func (x *exchange) restrict(m *core.Metadata) error {
	s, size, ok := subsetOf(m)
	if !ok {
		return nil
	}
	if s == nil || !x.out.Hold(size) {
		return status.Error(codes.ResourceExhausted, "there is no room for the endpoints of the hint")
	}
	x.out.Release(x.subsetHeld)
	x.subset, x.subsetHeld = s, size
	return nil
}
