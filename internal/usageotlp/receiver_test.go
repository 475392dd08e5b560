package usageotlp

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// mood is what a receiver does with a batch.
type mood int

const (
	takes    mood = iota
	hangs         // until the client has gone, or the mood changes
	busy          // asks to come later
	refuses       // for good
	takesAll      // but one record
)

// receiver is an OTLP receiver on real sockets, by gRPC and HTTP.
type receiver struct {
	collector.UnimplementedLogsServiceServer

	grpc, http string // its URLs

	mu       sync.Mutex
	mood     mood          // guarded by mu, like the rest
	changed  chan struct{} // closed when the mood changes
	began    int           // batches that have arrived
	records  []*otlp.LogRecord
	services map[string]bool // of the resources
	ways     map[string]bool // grpc, http
	headers  map[string]bool // of authorization
}

// feel changes the mood.
func (r *receiver) feel(m mood) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mood = m
	close(r.changed)
	r.changed = make(chan struct{})
}

// arrive gives the mood for a batch, one other than hangs while its client is there.
func (r *receiver) arrive(ctx context.Context) mood {
	r.mu.Lock()
	r.began++
	r.mu.Unlock()
	for {
		r.mu.Lock()
		m, changed := r.mood, r.changed
		r.mu.Unlock()
		if m != hangs {
			return m
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return hangs
		}
	}
}

func (r *receiver) take(way, authorization string, in *collector.ExportLogsServiceRequest, but int) (out *collector.ExportLogsServiceResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ways[way], r.headers[authorization] = true, true
	for _, of := range in.GetResourceLogs() {
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				r.services[a.GetValue().GetStringValue()] = true
			}
		}
		for _, scope := range of.GetScopeLogs() {
			r.records = append(r.records, scope.GetLogRecords()[but:]...)
		}
	}
	out = &collector.ExportLogsServiceResponse{}
	if but > 0 {
		out.PartialSuccess = &collector.ExportLogsPartialSuccess{RejectedLogRecords: int64(but), ErrorMessage: "too\n(old)"}
	}
	return out
}

// Export is the collector's gRPC method.
func (r *receiver) Export(ctx context.Context, in *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, error) {
	but := 0
	switch r.arrive(ctx) {
	case hangs:
		return nil, ctx.Err()
	case busy:
		return nil, status.Error(codes.Unavailable, "later")
	case refuses:
		return nil, status.Error(codes.PermissionDenied, "never")
	case takesAll:
		but = 1
	}
	return r.take("grpc", "", in, but), nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	in := new(collector.ExportLogsServiceRequest)
	if err != nil || req.URL.Path != "/v1/logs" || proto.Unmarshal(body, in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	but := 0
	switch r.arrive(req.Context()) {
	case hangs:
		return
	case busy:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case refuses:
		w.WriteHeader(http.StatusForbidden)
		return
	case takesAll:
		but = 1
	}
	out, err := proto.Marshal(r.take("http", req.Header.Get("Authorization"), in, but))
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(out) // a client that has gone misses it
}

// got are the records received.
func (r *receiver) got() []*otlp.LogRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*otlp.LogRecord(nil), r.records...)
}

// batches is how many have arrived.
func (r *receiver) batches() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.began
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// secured serves over TLS what a receiver takes, at one address by both protocols, and gives the URL and a file with its authority.
func secured(t *testing.T, r *receiver) (url, authority string) {
	t.Helper()
	overGRPC := grpc.NewServer()
	collector.RegisterLogsServiceServer(overGRPC, r)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc") {
			overGRPC.ServeHTTP(w, req)
			return
		}
		r.ServeHTTP(w, req)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	authority = filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(authority, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s.URL, authority
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	return newReceiverAt(t, listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0"))
}

func newReceiverAt(t *testing.T, overGRPC, overHTTP net.Listener) *receiver {
	t.Helper()
	r := &receiver{changed: make(chan struct{}), services: map[string]bool{}, ways: map[string]bool{}, headers: map[string]bool{}}
	server := grpc.NewServer()
	collector.RegisterLogsServiceServer(server, r)
	done := make(chan error, 1)
	go func() { done <- server.Serve(overGRPC) }()
	web := httptest.NewUnstartedServer(r)
	_ = web.Listener.Close() // it has one of its own
	web.Listener = overHTTP
	web.Start()
	t.Cleanup(func() {
		r.feel(refuses)
		server.Stop()
		web.Close()
		if err := <-done; err != nil {
			t.Errorf("serving the receiver: %v", err)
		}
	})
	r.grpc, r.http = "http://"+overGRPC.Addr().String(), "http://"+overHTTP.Addr().String()
	return r
}

// fields are the attributes of a record, as JSON has them.
func fields(r *otlp.LogRecord) map[string]any {
	out := map[string]any{}
	for _, a := range r.GetAttributes() {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[a.GetKey()] = v.StringValue
		case *common.AnyValue_BoolValue:
			out[a.GetKey()] = v.BoolValue
		case *common.AnyValue_IntValue:
			out[a.GetKey()] = float64(v.IntValue)
		case *common.AnyValue_DoubleValue:
			out[a.GetKey()] = v.DoubleValue
		}
	}
	return out
}
