package extproc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// livenessService is the name under which a picker is healthy as long as it answers.
const livenessService = "liveness"

// readinessServices are the names under which gateways, kubelets and conformance tests ask whether a picker takes
// requests.
var readinessServices = map[string]bool{
	"": true, "readiness": true, "envoy.service.ext_proc.v3.ExternalProcessor": true, "inference-extension": true,
}

// watchEvery is how often the state is looked at for those who watch it.
const watchEvery = 500 * time.Millisecond

// Health answers the health checks of gRPC.
type Health struct {
	healthpb.UnimplementedHealthServer

	// Ready tells whether the picker takes requests; nil for always.
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
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := healthpb.HealthCheckResponse_ServingStatus(-1); ; {
		if s, _ := h.status(in.GetService()); s != last {
			last = s
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: s}); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-tick.C:
		}
	}
}

// NewHealthServer makes a server that answers health checks only, for a port of their own.
func NewHealthServer(h Health) *grpc.Server {
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, h)
	return server
}
