package tracing_test

import (
	"context"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvasir-dev/kvasir/internal/gateway/extproc"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// shown sends a request through a stand-in for Envoy to a picker that traces.
func shown(t *testing.T, tracer *tracing.Tracer, p *picker.Picker, o envoytest.Options, header ...string) {
	t.Helper()
	server := extproc.New(extproc.Options{Picker: p, Spans: tracer, Log: logr.Discard()})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener, extproc.ServeOptions{}) }()
	o.Pickers, o.Allowed = []string{listener.Addr().String()}, []string{"traceparent", "tracestate"}
	o.Dial = append(o.Dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	g, err := envoytest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(g)
	status := post(t, front.URL, chat, header...)
	front.Close()
	g.Close()
	stop()
	if err := <-done; err != nil || status != 200 {
		t.Fatalf("status %d, %v", status, err)
	}
	for _, v := range g.Violations() {
		t.Errorf("a rule of Envoy's is broken: %s", v)
	}
}

func TestARequestOfAGatewayIsTraced(t *testing.T) {
	for name, header := range map[string][]string{
		"the client's context":          {"Traceparent", "00-" + traceID + "-" + parentID + "-01", "Tracestate", "a=b"},
		"one whose state is not a list": {"Traceparent", "00-" + traceID + "-" + parentID + "-01", "Tracestate", "="},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := newStation(t), newEngine(t)
			tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
			shown(t, tracer, newPicker(t, e.address), envoytest.Options{}, header...)
			flush()
			root := s.one(t, "envoy.service.ext_proc.v3.ExternalProcessor/Process")
			checkTree(t, s, root, parentID, allSteps...)
			attempt := s.one(t, "chat m")
			expect(t, attempt, "gen_ai.usage.input_tokens", "64", "http.response.status_code", "200")
			s.one(t, "kvasir.first_byte")
			state := header[3]
			if state == "=" {
				state = ""
			}
			goesOn(t, e.header(t), attempt, state)
		})
	}
}

// The gateway's own span is nearer than the client's.
func TestTheGatewaysCallIsTheParent(t *testing.T) {
	const own = "00f067aa0ba902b7"
	s, e := newStation(t), newEngine(t)
	tracer, flush := open(t, tracing.Config{Endpoint: s.grpc})
	call := grpc.WithPerRPCCredentials(calling{"traceparent": "00-" + traceID + "-" + own + "-01"})
	shown(t, tracer, newPicker(t, e.address), envoytest.Options{Dial: []grpc.DialOption{call}}, "Traceparent", "00-"+traceID+"-"+parentID+"-01")
	flush()
	checkTree(t, s, s.one(t, "envoy.service.ext_proc.v3.ExternalProcessor/Process"), own, allSteps...)
}

// calling adds metadata to every call.
type calling map[string]string

func (c calling) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return c, nil
}
func (calling) RequireTransportSecurity() bool { return false }
