// Package keda answers KEDA, as an external scaler: how many pods a pool needs. A ScaledObject names the pool as its
// scale target, and this scaler as its trigger with the metadata pool; the pool has replicas, and autoscaling in the
// mode Recommend, so that the size has one writer.
package keda

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// Metric is the one that KEDA is given. Its target is 1 for each replica, so that what KEDA makes of it is the
// recommended size itself.
const Metric = "kvasir-recommended-replicas"

// poolKey is the metadata that names the pool; without it the pool has the ScaledObject's name.
const poolKey = "pool"

// Sizes reports how many pods a pool needs; false for a pool without autoscaling, or before the first decision.
type Sizes interface {
	Size(ctx context.Context, pool types.NamespacedName) (int, bool)
}

// Scaler implements ExternalScalerServer.
type Scaler struct {
	UnimplementedExternalScalerServer

	Sizes Sizes
	// Every is how often a stream looks whether its pool has become active or inactive.
	Every time.Duration
}

// size of the pool that a ScaledObject names.
func (s *Scaler) size(ctx context.Context, ref *ScaledObjectRef) (int, error) {
	name := types.NamespacedName{Namespace: ref.GetNamespace(), Name: ref.GetScalerMetadata()[poolKey]}
	if name.Name == "" {
		name.Name = ref.GetName()
	}
	size, ok := s.Sizes.Size(ctx, name)
	if !ok {
		// KEDA uses its fallback, or keeps the size.
		return 0, status.Errorf(codes.Unavailable, "pool %s has no autoscaling, or has not been looked at yet", name)
	}
	return size, nil
}

// IsActive implements ExternalScalerServer.
func (s *Scaler) IsActive(ctx context.Context, ref *ScaledObjectRef) (*IsActiveResponse, error) {
	size, err := s.size(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &IsActiveResponse{Result: size > 0}, nil
}

// StreamIsActive implements ExternalScalerServer.
func (s *Scaler) StreamIsActive(ref *ScaledObjectRef, stream ExternalScaler_StreamIsActiveServer) error {
	ticker := time.NewTicker(s.Every)
	defer ticker.Stop()
	for said, first := false, true; ; first = false {
		size, err := s.size(stream.Context(), ref)
		if err != nil {
			return err
		}
		if active := size > 0; active != said || first {
			if err := stream.Send(&IsActiveResponse{Result: active}); err != nil {
				return err
			}
			said = active
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// GetMetricSpec implements ExternalScalerServer.
func (s *Scaler) GetMetricSpec(context.Context, *ScaledObjectRef) (*GetMetricSpecResponse, error) {
	return &GetMetricSpecResponse{MetricSpecs: []*MetricSpec{{MetricName: Metric, TargetSize: 1, TargetSizeFloat: 1}}}, nil
}

// GetMetrics implements ExternalScalerServer.
func (s *Scaler) GetMetrics(ctx context.Context, r *GetMetricsRequest) (*GetMetricsResponse, error) {
	size, err := s.size(ctx, r.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	return &GetMetricsResponse{MetricValues: []*MetricValue{{MetricName: Metric, MetricValue: int64(size), MetricValueFloat: float64(size)}}},
		nil
}
