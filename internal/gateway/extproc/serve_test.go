package extproc

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// Replicas are all active. A killed one loses its streams; later requests are sent to the other, and no request is lost
// that was not on a stream of the killed one.
func TestPitfall13_TheOtherReplicaTakesOver(t *testing.T) {
	var served atomic.Int64
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_ = readRequest(r)
		served.Add(1)
		_, _ = io.WriteString(w, "ok")
	})
	// The one that is killed never has a request under way when it dies: its streams are opened and refused.
	one, two := newHouse(t, Options{}, ServeOptions{Grace: time.Millisecond}, spec(e)), newHouse(t, Options{}, ServeOptions{}, spec(e))
	g := newGate(t, envoytest.Options{Pickers: []string{one.address, two.address}})
	const workers, each = 8, 40
	var failed atomic.Int64
	var wait sync.WaitGroup
	half := make(chan struct{})
	var count atomic.Int64
	for range workers {
		wait.Go(func() {
			for range each {
				answer, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(completion))
				if err != nil {
					failed.Add(1)
					t.Logf("%v", err)
					continue
				}
				if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != 200 {
					failed.Add(1)
					t.Logf("status %d, %q, %v", answer.StatusCode, text, err)
				}
				_ = answer.Body.Close()
				if count.Add(1) == workers*each/2 {
					close(half)
				}
			}
		})
	}
	<-half
	one.stop()
	wait.Wait()
	// Streams that were open on the killed replica can be lost: no more than there were workers.
	if n := failed.Load(); n > workers {
		t.Errorf("%d requests lost, more than were under way", n)
	}
	a, b := one.picker.Stats()[0].Endpoints[0].Picks, two.picker.Stats()[0].Endpoints[0].Picks
	if a == 0 || b <= workers*each/2 {
		t.Errorf("the replicas picked %d and %d times", a, b)
	}
	two.idle()
}

// With the drain, not one is lost.
func TestPitfall14_DrainLosesNothing(t *testing.T) {
	const event = "data: {\"choices\":[{\"text\":\"1\"}]}\n\n"
	enter, leave := make(chan bool, 1), make(chan bool)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(readRequest(r), "slow") {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
			enter <- true
			<-leave
		}
		_, _ = io.WriteString(w, "data: 2\n\n")
	})
	one, two := newHouse(t, Options{}, ServeOptions{}, spec(e)), newHouse(t, Options{}, ServeOptions{}, spec(e))
	first := newGate(t, envoytest.Options{Pickers: []string{one.address}})
	answer := first.post("/v1/completions", `{"model":"m","prompt":"slow","stream":true}`)
	<-enter
	stopped := make(chan struct{})
	go func() { one.stop(); close(stopped) }()
	g := newGate(t, envoytest.Options{Pickers: []string{one.address, two.address}})
	for range 20 {
		if text := read(t, g.post("/v1/completions", completion)); text != "data: 2\n\n" {
			t.Errorf("answer %q", text)
		}
	}
	select {
	case <-stopped:
		t.Error("it has not waited for the stream that is open")
	default:
	}
	leave <- true
	if text := read(t, answer); text != event+"data: 2\n\n" {
		t.Errorf("the open stream was cut: %q", text)
	}
	<-stopped
	one.outcomes(map[picker.Outcome]int64{picker.Completed: one.picker.Stats()[0].Outcomes[picker.Completed]})
}

func TestPitfall14_TheGraceEnds(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{Grace: 10 * time.Millisecond}, spec("127.0.0.1:1"))
	h.script().routed(completion)
	h.server.gateways.learn(route{host: "127.0.0.1"})
	h.stop()
	h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 1})
}

// Connections grow old, so that gateways find replicas that have joined; open streams live on.
func TestPitfall14_ConnectionsAge(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{ConnectionAge: 50 * time.Millisecond}, spec("127.0.0.1:1"))
	c, err := grpc.NewClient("passthrough:///"+h.address, plain)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	s := h.script()
	s.routed(completion)
	eventually(t, "it is connected", func() bool { c.Connect(); return c.GetState() == connectivity.Ready }) // again, if it was so unseen
	eventually(t, "the idle connection is given up", func() bool { return c.GetState() != connectivity.Ready })
	time.Sleep(150 * time.Millisecond) // the script's connection receives GOAWAY, too
	s.send(responseHead(true, ":status", "200"))
	if s.receive().GetResponseHeaders() == nil {
		t.Error("the open stream was cut")
	}
	s.cancel()
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}

func TestPitfall15_TLSIsSelfSignedByDefault(t *testing.T) {
	config, err := TLS(certs.Files{}, certs.ServiceNames("picker", "ns"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf := config.Certificates[0].Leaf
	if _, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok {
		t.Errorf("the key is a %T", leaf.PublicKey)
	}
	for _, name := range []string{"picker.ns.svc", "picker.ns.svc.cluster.local"} {
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	h := newHouse(t, Options{}, ServeOptions{TLS: config}, spec(engine(t, says("ok"))))
	g := h.envoy(envoytest.Options{Dial: []grpc.DialOption{unchecked}, Seed: 2}) // TLS 1.2, as Envoy
	if text := read(t, g.post("/v1/completions", completion)); text != "ok" {
		t.Errorf("answer %q", text)
	}
	g = h.envoy(envoytest.Options{Dial: []grpc.DialOption{plain}})
	if answer := g.post("/v1/completions", completion); answer.StatusCode != 500 {
		t.Errorf("status %d without TLS", answer.StatusCode)
	}
}

func TestPitfall15_CertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	files := certs.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	write := func(name string) {
		t.Helper()
		pair, err := certs.SelfSigned([]string{name}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		for path, block := range map[string]*pem.Block{
			files.Cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, files.Key: {Type: "PRIVATE KEY", Bytes: key},
		} {
			if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("before")
	config, err := TLS(files, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, Options{}, ServeOptions{TLS: config}, spec("127.0.0.1:1"))
	shown := func() string {
		c, err := tls.Dial("tcp", h.address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // to see it
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		return c.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	if name := shown(); name != "before" {
		t.Errorf("certificate of %s", name)
	}
	write("after, with another length")
	if name := shown(); name != "after, with another length" {
		t.Errorf("certificate of %s", name)
	}
	if _, err := TLS(certs.Files{Cert: "none", Key: "none"}, nil, time.Now()); err == nil {
		t.Error("files that are not there were taken")
	}
}

// The health service answers for every name that clients request, here on the port of ext_proc; the health port has the
// same.
func TestPitfall15_HealthUnderAllNames(t *testing.T) {
	var ready atomic.Bool
	h := newHouse(t, Options{}, ServeOptions{Ready: ready.Load}, spec("127.0.0.1:1"))
	alone := httptest.NewUnstartedServer(NewHealthServer(Health{Ready: ready.Load}))
	alone.EnableHTTP2 = true
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	alone.Config.Protocols = protocols
	alone.Start()
	defer alone.Close()
	for place, address := range map[string]string{"with ext_proc": h.address, "alone": alone.Listener.Addr().String()} {
		c, err := grpc.NewClient("passthrough:///"+address, plain)
		if err != nil {
			t.Fatal(err)
		}
		client := healthpb.NewHealthClient(c)
		for _, is := range []bool{false, true} {
			ready.Store(is)
			want := healthpb.HealthCheckResponse_NOT_SERVING
			if is {
				want = healthpb.HealthCheckResponse_SERVING
			}
			for _, name := range []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"} {
				answer, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
				if err != nil || answer.GetStatus() != want {
					t.Errorf("%s: %q: %v, %v, want %v", place, name, answer, err, want)
				}
			}
			answer, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "liveness"})
			if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("%s: liveness: %v, %v", place, answer, err)
			}
		}
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("%s: a service that is not there: %v", place, err)
		}
		_ = c.Close()
	}
}

// Envoy's gRPC health checker offers no application protocol in its TLS handshake unless its cluster is configured to.
func TestHealthChecksNeedNoALPN(t *testing.T) {
	config, err := TLS(certs.Files{}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, Options{}, ServeOptions{TLS: config}, spec("127.0.0.1:1"))
	for name, protocols := range map[string][]string{"without ALPN": nil, "with h2": {"h2"}} {
		t.Run(name, func(t *testing.T) {
			dial := func(ctx context.Context, address string) (net.Conn, error) {
				d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}} // as Envoy does
				return d.DialContext(ctx, "tcp", address)
			}
			c, err := grpc.NewClient("passthrough:///"+h.address, plain, grpc.WithContextDialer(dial))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			answer, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{})
			if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("%v, %v", answer, err)
			}
		})
	}
	t.Run("another protocol", func(t *testing.T) {
		c, err := tls.Dial("tcp", h.address, &tls.Config{InsecureSkipVerify: true}) // to be closed
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: picker\r\n\r\n")
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection without the HTTP/2 preface stays open")
		}
	})
}

func TestHealthCanBeWatched(t *testing.T) {
	var ready atomic.Bool
	h := newHouse(t, Options{}, ServeOptions{Ready: ready.Load}, spec("127.0.0.1:1"))
	c, err := grpc.NewClient("passthrough:///"+h.address, plain)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch, err := healthpb.NewHealthClient(c).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING} {
		if m, err := watch.Recv(); err != nil || m.GetStatus() != want {
			t.Fatalf("%v, %v, want %v", m, err, want)
		}
		ready.Store(true)
	}
	all, err := healthpb.NewHealthClient(c).List(ctx, &healthpb.HealthListRequest{})
	if err != nil || len(all.GetStatuses()) != 5 {
		t.Errorf("%v, %v", all, err)
	}
}

// The gateway's failure mode is its own affair: the picker has to fail cleanly.
func TestFailureModesOfGateways(t *testing.T) {
	e := engine(t, says("any pod"))
	nobody := "127.0.0.1:1"
	for name, tc := range map[string]struct {
		open bool
		want int
	}{"FailOpen": {true, 200}, "FailClose": {false, 500}} {
		g := newGate(t, envoytest.Options{Pickers: []string{nobody}, FailOpen: tc.open, Endpoints: []string{e}})
		if answer := g.post("/v1/completions", completion); answer.StatusCode != tc.want {
			t.Errorf("%s: status %d", name, answer.StatusCode)
		}
	}
	// A refusal is no failure.
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	g := h.envoy(envoytest.Options{FailOpen: true, Endpoints: []string{e}})
	if answer := g.post("/v1/completions", "{"); answer.StatusCode != 400 {
		t.Errorf("status %d", answer.StatusCode)
	}
}

// stuck is an endpoint picker that answers nothing, which the stand-in must notice in modes that wait.
func TestTheStandInKeepsTheMessageTimeout(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { <-s.Context().Done(); return nil }))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	g := newGate(t, envoytest.Options{
		Pickers: []string{l.Addr().String()}, Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: 10 * time.Millisecond,
	})
	if answer := g.post("/v1/completions", completion); answer.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("status %d", answer.StatusCode)
	}
}

// TestHealthWatchesAreBounded: each takes a goroutine, and 20,000 of them would take the picker's memory.
func TestHealthWatchesAreBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	refused := make(chan struct{}, maxWatching)
	before := watching.Load()
	for range 2 * maxWatching {
		wg.Go(func() {
			err := Health{}.watch(ctx, &healthpb.HealthCheckRequest{}, func(*healthpb.HealthCheckResponse) error { return nil })
			if status.Code(err) == codes.ResourceExhausted {
				refused <- struct{}{}
			}
		})
	}
	for range maxWatching {
		<-refused
	}
	if n := watching.Load() - before; n > maxWatching {
		t.Errorf("%d watch", n)
	}
}
