package extproc

import (
	"context"
	"io"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// script is a stream whose messages a test sends and receives one by one.
type script struct {
	t      *testing.T
	stream pb.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func (h *house) script(options ...grpc.DialOption) *script {
	h.t.Helper()
	if options == nil {
		options = []grpc.DialOption{plain}
	}
	c, err := grpc.NewClient("passthrough:///"+h.address, options...)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.scriptOn(c)
}

// scriptOn is a script on a connection, which it closes in the end.
func (h *house) scriptOn(c *grpc.ClientConn) *script {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	stream, err := pb.NewExternalProcessorClient(c).Process(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { cancel(); _ = c.Close() })
	return &script{t: h.t, stream: stream, cancel: cancel}
}

func (s *script) send(messages ...*pb.ProcessingRequest) {
	s.t.Helper()
	for _, m := range messages {
		if err := s.stream.Send(m); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *script) receive() *pb.ProcessingResponse {
	s.t.Helper()
	m, err := s.stream.Recv()
	if err != nil {
		s.t.Fatalf("the picker has ended the stream: %v", err)
	}
	return m
}

// silent fails when the picker says something within a short time.
func (s *script) silent() {
	s.t.Helper()
	got := make(chan *pb.ProcessingResponse, 1)
	go func() {
		m, err := s.stream.Recv()
		if err == nil {
			got <- m
		}
	}()
	select {
	case m := <-got:
		s.t.Fatalf("the picker says %v", m)
	case <-time.After(50 * time.Millisecond):
	}
}

// destination of an answer to request headers, or "".
func destinationOf(m *pb.ProcessingResponse) string {
	common := m.GetRequestHeaders().GetResponse()
	if common == nil {
		common = m.GetRequestBody().GetResponse()
	}
	for _, o := range common.GetHeaderMutation().GetSetHeaders() {
		if o.GetHeader().GetKey() == destinationHeader {
			return string(o.GetHeader().GetRawValue())
		}
	}
	return ""
}

var post = []string{":method", "POST", ":path", "/v1/completions", "content-type", "application/json"}

// requestHead is the first message, with pairs of names and values.
func requestHead(end bool, pairs ...string) *pb.ProcessingRequest {
	return &pb.ProcessingRequest{
		Request:        &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: rawHeaders(pairs), EndOfStream: end}},
		ProtocolConfig: &pb.ProtocolConfiguration{RequestBodyMode: filter.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filter.ProcessingMode_FULL_DUPLEX_STREAMED},
	}
}

func rawHeaders(pairs []string) *core.HeaderMap {
	m := &core.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &core.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func requestPiece(body string, end bool) *pb.ProcessingRequest {
	return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: []byte(body), EndOfStream: end}}}
}

func responseHead(end bool, pairs ...string) *pb.ProcessingRequest {
	return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{Headers: rawHeaders(pairs), EndOfStream: end}}}
}

func responsePiece(body string, end bool) *pb.ProcessingRequest {
	return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseBody{ResponseBody: &pb.HttpBody{Body: []byte(body), EndOfStream: end}}}
}

// withSubset adds a subset hint to a message.
func withSubset(m *pb.ProcessingRequest, hint *structpb.Value) *pb.ProcessingRequest {
	m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{
		subsetSpace: {Fields: map[string]*structpb.Value{subsetKey: hint}},
	}}
	return m
}

// routed takes a completion to its endpoint, and leaves the stream where its answer is due.
func (s *script) routed(body string) string {
	s.t.Helper()
	s.send(requestHead(false, post...), requestPiece(body, true))
	d := destinationOf(s.receive())
	if s.receive().GetRequestBody() == nil || d == "" {
		s.t.Fatalf("not routed: %q", d)
	}
	return d
}

// ended waits for the end of the stream.
func (s *script) ended() {
	s.t.Helper()
	for {
		if _, err := s.stream.Recv(); err != nil {
			if err != io.EOF { //nolint:errorlint // gRPC gives it as it is
				s.t.Errorf("the stream ended with %v", err)
			}
			return
		}
	}
}
