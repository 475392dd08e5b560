package tracing_test

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/test/dns"
)

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
