package tracing_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// station is a collector on a real socket.
type station struct {
	collector.UnimplementedTraceServiceServer

	grpc, http string // its URLs

	mu       sync.Mutex
	spans    []*otlp.Span    // guarded by mu
	bytes    []byte          // of all spans received, guarded by mu
	services map[string]bool // of the resources, guarded by mu
	ways     map[string]bool // grpc, http; guarded by mu
}

func (s *station) take(way string, in *collector.ExportTraceServiceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ways[way] = true
	raw, err := proto.Marshal(in)
	if err != nil {
		panic(err)
	}
	s.bytes = append(s.bytes, raw...)
	for _, r := range in.GetResourceSpans() {
		s.services[attribute(r.GetResource().GetAttributes(), "service.name")] = true
		for _, scope := range r.GetScopeSpans() {
			s.spans = append(s.spans, scope.GetSpans()...)
		}
	}
}

// Export is the collector's gRPC method.
func (s *station) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.take("grpc", in)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (s *station) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	in := new(collector.ExportTraceServiceRequest)
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.take("http", in)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func newStation(t *testing.T) *station {
	t.Helper()
	s := &station{services: map[string]bool{}, ways: map[string]bool{}}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	overHTTP := httptest.NewServer(s)
	t.Cleanup(func() {
		server.Stop()
		overHTTP.Close()
		if err := <-done; err != nil {
			t.Errorf("serving the collector: %v", err)
		}
	})
	s.grpc, s.http = "http://"+listener.Addr().String(), overHTTP.URL
	return s
}

// tree is the received spans, by name, in the order of their beginnings.
func (s *station) tree() []*otlp.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.spans)
	slices.SortStableFunc(all, func(a, b *otlp.Span) int { return cmp.Compare(a.GetStartTimeUnixNano(), b.GetStartTimeUnixNano()) })
	return all
}

// one is the only span of a name.
func (s *station) one(t *testing.T, name string) *otlp.Span {
	t.Helper()
	var found *otlp.Span
	for _, span := range s.tree() {
		if span.GetName() != name {
			continue
		}
		if found != nil {
			t.Errorf("two spans are called %s", name)
		}
		found = span
	}
	if found == nil {
		var names []string
		for _, span := range s.tree() {
			names = append(names, span.GetName())
		}
		t.Fatalf("no span is called %s: %q", name, names)
	}
	return found
}

func (s *station) contains(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Contains(s.bytes, []byte(text))
}

// attribute is one of a span's, as text; empty when there is none.
func attribute(list []*common.KeyValue, key string) string {
	for _, a := range list {
		if a.GetKey() == key {
			switch v := a.GetValue().GetValue().(type) {
			case *common.AnyValue_StringValue:
				return v.StringValue
			case *common.AnyValue_IntValue:
				return itoa(v.IntValue)
			}
		}
	}
	return ""
}

func id(b []byte) string { return hex.EncodeToString(b) }
