package extproc

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/gateway/h2stream"
)

// livenessService is the name under which a picker is healthy as long as it answers.
const livenessService = "liveness"

// readinessServices are the names under which gateways, kubelets and conformance tests ask whether a picker takes
// requests.
var readinessServices = map[string]bool{
	"": true, "readiness": true, "envoy.service.ext_proc.v3.ExternalProcessor": true, "inference-extension": true,
}

// watchEvery is the interval at which the state is checked for watchers.
const watchEvery = 500 * time.Millisecond

// Health answers the health checks of gRPC.
type Health struct {
	healthpb.UnimplementedHealthServer

	// Ready reports whether the picker takes requests; nil for always.
	Ready func() bool
}

func (h Health) status(service string) (s healthpb.HealthCheckResponse_ServingStatus, known bool) {
	switch {
	case service == livenessService:
		return healthpb.HealthCheckResponse_SERVING, true
	case !readinessServices[service]:
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN, false
	case h.Ready == nil || h.Ready():
		return healthpb.HealthCheckResponse_SERVING, true
	}
	return healthpb.HealthCheckResponse_NOT_SERVING, true
}

// Check implements healthpb.HealthServer.
func (h Health) Check(_ context.Context, in *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s, known := h.status(in.GetService())
	if !known {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	return &healthpb.HealthCheckResponse{Status: s}, nil
}

// List implements healthpb.HealthServer.
func (h Health) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	all := &healthpb.HealthListResponse{Statuses: map[string]*healthpb.HealthCheckResponse{}}
	add := func(name string) {
		s, _ := h.status(name)
		all.Statuses[name] = &healthpb.HealthCheckResponse{Status: s}
	}
	add(livenessService)
	for name := range readinessServices {
		add(name)
	}
	return all, nil
}

// Watch implements healthpb.HealthServer.
func (h Health) Watch(in *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	return h.watch(stream.Context(), in, stream.Send)
}

// watching is how many watch the state, on all ports. Each needs a goroutine, and no client has a reason to watch twice.
var watching atomic.Int64

// maxWatching is how many of them are allowed.
const maxWatching = 256

func (h Health) watch(ctx context.Context, in *healthpb.HealthCheckRequest, send func(*healthpb.HealthCheckResponse) error) error {
	defer watching.Add(-1)
	if watching.Add(1) > maxWatching {
		return status.Error(codes.ResourceExhausted, "too many watch the health: use Check")
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := healthpb.HealthCheckResponse_ServingStatus(-1); ; {
		if s, _ := h.status(in.GetService()); s != last {
			last = s
			if err := send(&healthpb.HealthCheckResponse{Status: s}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-tick.C:
		}
	}
}

// healthCall is a health check on the port of ext_proc, and the h2stream.Handler of its stream.
type healthCall struct {
	health Health
	method string
	out    *h2stream.Stream
}

// open begins a health check; nil for another method.
func (h Health) open(method string, out *h2stream.Stream) h2stream.Handler {
	switch method {
	case healthpb.Health_Check_FullMethodName, healthpb.Health_List_FullMethodName, healthpb.Health_Watch_FullMethodName:
		return &healthCall{h, method, out}
	}
	return nil
}

// Message implements h2stream.Handler.
func (c *healthCall) Message(raw []byte) {
	var in healthpb.HealthCheckRequest // a HealthListRequest is empty
	if err := proto.Unmarshal(raw, &in); err != nil {
		c.out.Finish(codes.InvalidArgument, "the question cannot be read")
		return
	}
	c.out.Complete()
	c.out.Off(func() {
		err := c.answer(&in)
		c.out.Finish(status.Code(err), status.Convert(err).Message())
	})
}

func (c *healthCall) answer(in *healthpb.HealthCheckRequest) error {
	var answer proto.Message
	var err error
	switch c.method {
	case healthpb.Health_Check_FullMethodName:
		answer, err = c.health.Check(c.out.Context(), in)
	case healthpb.Health_List_FullMethodName:
		answer, err = c.health.List(c.out.Context(), nil)
	default:
		return c.health.watch(c.out.Context(), in, func(m *healthpb.HealthCheckResponse) error { return c.send(m) })
	}
	if err != nil {
		return err
	}
	return c.send(answer)
}

func (c *healthCall) send(m proto.Message) error {
	raw, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	c.out.Send(raw, nil, nil, 0)
	c.out.Flush()
	return nil
}

// Slow implements h2stream.Handler.
func (c *healthCall) Slow() {
	c.out.Finish(codes.DeadlineExceeded, "the question did not arrive in time")
}

// HalfClosed implements h2stream.Handler.
func (c *healthCall) HalfClosed() { c.out.Finish(codes.InvalidArgument, "there is no question") }

// Ended implements h2stream.Handler.
func (*healthCall) Ended() {}

// NewHealthServer makes a server that answers health checks only, for a port of their own.
func NewHealthServer(h Health) *grpc.Server {
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, h)
	return server
}
