package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"

	"github.com/kvasir-dev/kvasir/internal/logging"
)

// Config is where spans are sent, and how many. The SDK also reads the environment's OTEL_* variables.
type Config struct {
	// Endpoint is the URL of a collector; empty for that of the environment.
	Endpoint string
	// Ratio of the requests that are traced of those whose client has not decided it; nil for the environment's setting,
	// and all without one.
	Ratio *float64
	// Getenv reads the environment; needed.
	Getenv func(name string) string
	// Log gets what cannot be exported.
	Log logr.Logger
}

// wanted reports whether a destination for spans is configured, and tracing is not disabled.
func (c *Config) wanted() bool {
	if strings.EqualFold(c.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if c.Endpoint != "" {
		return true
	}
	return c.Getenv("OTEL_TRACES_EXPORTER") != "none" &&
		cmp.Or(c.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), c.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) != ""
}

// Open returns a tracer, nil if none is configured, and a function that sends the last spans and closes it. It does not
// wait for the collector: spans that it does not take in time are dropped.
func Open(ctx context.Context, c Config) (*Tracer, func(context.Context) error, error) {
	if !c.wanted() {
		return nil, func(context.Context) error { return nil }, nil
	}
	exporter, err := c.exporter(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("tracing: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("kvasir-picker")), resource.WithTelemetrySDK(),
		resource.WithFromEnv())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("tracing: %w", err), exporter.Shutdown(ctx))
	}
	options := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(about)}
	if c.Ratio != nil {
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(*c.Ratio))))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logging.Warn(c.Log, "Exporting spans failed", "reason", err.Error()) }))
	provider := sdk.NewTracerProvider(options...)
	return New(provider), provider.Shutdown, nil
}

// exporter uses OTLP, by gRPC unless the environment selects HTTP.
func (c *Config) exporter(ctx context.Context) (*otlptrace.Exporter, error) {
	switch p := cmp.Or(c.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), c.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "grpc"); p {
	case "grpc":
		var options []otlptracegrpc.Option
		if c.Endpoint != "" {
			options = append(options, otlptracegrpc.WithEndpointURL(c.Endpoint))
		}
		return otlptracegrpc.New(ctx, options...)
	case "http/protobuf":
		var options []otlptracehttp.Option
		if c.Endpoint != "" {
			options = append(options, otlptracehttp.WithEndpointURL(c.Endpoint))
		}
		return otlptracehttp.New(ctx, options...)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: want grpc or http/protobuf", p)
	}
}
