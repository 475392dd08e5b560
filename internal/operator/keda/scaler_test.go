package keda

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

type sizes struct{ size atomic.Int64 }

func (s *sizes) Size(_ context.Context, pool types.NamespacedName) (int, bool) {
	if pool != (types.NamespacedName{Namespace: "llm", Name: "chat"}) {
		return 0, false
	}
	return int(s.size.Load()), true
}

func dial(t *testing.T, s *sizes) ExternalScalerClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	RegisterExternalScalerServer(server, &Scaler{Sizes: s, Every: 5 * time.Millisecond})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return NewExternalScalerClient(conn)
}

// replicas is what KEDA's HPA makes of a metric with an average value: the value over the target, rounded up.
func replicas(t *testing.T, c ExternalScalerClient, ref *ScaledObjectRef) int {
	t.Helper()
	spec, err := c.GetMetricSpec(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.GetMetrics(t.Context(), &GetMetricsRequest{ScaledObjectRef: ref, MetricName: spec.GetMetricSpecs()[0].GetMetricName()})
	if err != nil {
		t.Fatal(err)
	}
	return int(got.GetMetricValues()[0].GetMetricValueFloat() / spec.GetMetricSpecs()[0].GetTargetSizeFloat())
}

func TestKEDAComesToTheRecommendedSize(t *testing.T) {
	var s sizes
	c := dial(t, &s)
	for _, ref := range []*ScaledObjectRef{
		{Namespace: "llm", Name: "chat"},
		{Namespace: "llm", Name: "something", ScalerMetadata: map[string]string{"pool": "chat"}},
	} {
		for _, size := range []int64{0, 1, 7} {
			s.size.Store(size)
			if got := replicas(t, c, ref); got != int(size) {
				t.Errorf("%d replicas, want %d", got, size)
			}
			active, err := c.IsActive(t.Context(), ref)
			if err != nil || active.GetResult() != (size > 0) {
				t.Errorf("size %d: active %v (%v)", size, active.GetResult(), err)
			}
		}
	}
}

func TestUnknownPoolsAreAnError(t *testing.T) {
	c := dial(t, &sizes{})
	ref := &ScaledObjectRef{Namespace: "llm", Name: "other"}
	if _, err := c.IsActive(t.Context(), ref); status.Code(err) != codes.Unavailable {
		t.Errorf("IsActive: %v", err)
	}
	if _, err := c.GetMetrics(t.Context(), &GetMetricsRequest{ScaledObjectRef: ref}); status.Code(err) != codes.Unavailable {
		t.Errorf("GetMetrics: %v", err)
	}
}

func TestAStreamTellsEachChange(t *testing.T) {
	var s sizes
	c := dial(t, &s)
	stream, err := c.StreamIsActive(t.Context(), &ScaledObjectRef{Namespace: "llm", Name: "chat"})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 3, 0, 1} {
		s.size.Store(size)
		got, err := stream.Recv()
		if err != nil || got.GetResult() != (size > 0) {
			t.Fatalf("size %d: active %v (%v)", size, got.GetResult(), err)
		}
	}
}
