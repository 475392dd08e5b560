package server

import (
	"context"
	"errors"
	"flag"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/tracing"
)

// tracingOptions are the flags about traces of requests.
type tracingOptions struct {
	endpoint string
	ratio    *float64 // nil when the flag was not given
}

// tracingGrace is how long the last spans can take to be sent.
const tracingGrace = 3 * time.Second

func (o *tracingOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.endpoint, "tracing-endpoint", "", "`URL` of an OpenTelemetry collector for traces of requests by OTLP, such as http://collector:4317; default is OTEL_EXPORTER_OTLP_ENDPOINT. Without either, tracing is off")
	f.Func("tracing-ratio", "`share` of requests that are traced, 0 to 1, among those without a sampling decision of the client; default is OTEL_TRACES_SAMPLER, or all", func(value string) error {
		ratio, err := strconv.ParseFloat(value, 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return errors.New("want a number from 0 to 1")
		}
		o.ratio = &ratio
		return nil
	})
}

func (o *tracingOptions) check() error { return checkCollector("tracing-endpoint", o.endpoint) }

// openTracing makes the tracer, nil for none, and what sends its last spans.
func openTracing(ctx context.Context, o *tracingOptions, log logr.Logger) (*tracing.Tracer, func(), error) {
	tracer, shutdown, err := tracing.Open(ctx, tracing.Config{Endpoint: o.endpoint, Ratio: o.ratio, Getenv: os.Getenv,
		Log: log.WithName("tracing")})
	if err != nil {
		return nil, nil, err
	}
	if tracer == nil && o.ratio != nil {
		logging.Warn(log, "Tracing is off, --tracing-ratio has no effect: neither --tracing-endpoint nor OTEL_EXPORTER_OTLP_ENDPOINT is set, "+
			"or OTEL_TRACES_EXPORTER is none")
	}
	return tracer, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracingGrace)
		defer cancel()
		if err := shutdown(last); err != nil {
			logging.Warn(log, "Exporting the last spans failed", "reason", err.Error())
		}
	}, nil
}
