// Package usageotlp sends the records of what requests have used to an OpenTelemetry collector, as logs by OTLP: one log record for
// each record of usagelog, with the same fields.
//
// No request waits for the collector. A bounded number of records waits to be sent; one that finds no room is lost. A batch that the
// collector has not taken, because it cannot be reached or asks to wait, is sent again until it has, or until its time has passed:
//
//	Write ── full? ── lost
//	  │
//	queue ── batch ── sent ── taken ──────────── sent
//	            │      │ ├── refused ──────────── lost
//	            │      │ └── failed ── too late? ─ lost
//	            └──────┴── pause ──────┘
//
// Each record is counted once: as sent or as lost. One that the collector has taken without its answer arriving is sent again, or lost
// in the count although the collector has it; its request id is the same.
package usageotlp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	otlplog "go.opentelemetry.io/otel/log"
	sdk "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

const (
	// DefaultWaiting is how many records can wait to be sent, if OTEL_BLRP_MAX_QUEUE_SIZE does not set it. One takes about 3 KiB.
	DefaultWaiting = 4096
	// patience is how long a batch is sent again, if OTEL_BLRP_EXPORT_TIMEOUT does not set it.
	patience = 5 * time.Minute
	// reconnect is the longest pause before gRPC connects again, connecting the least time that an attempt can take.
	reconnect, connecting = 10 * time.Second, 5 * time.Second
)

// Config is where records are sent. The SDK also reads the environment's OTEL_* variables.
type Config struct {
	// Endpoint is the URL of a collector; empty for that of the environment.
	Endpoint string
	// Getenv reads the environment; needed.
	Getenv func(name string) string
	// Log gets what cannot be sent, at most once a minute.
	Log logr.Logger
}

// Wanted reports whether a collector of records is configured. OTEL_EXPORTER_OTLP_ENDPOINT alone configures none, because it is also
// that of traces, and records name tenants.
func (c *Config) Wanted() bool {
	if strings.EqualFold(c.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if c.Endpoint != "" {
		return true
	}
	switch c.Getenv("OTEL_LOGS_EXPORTER") {
	case "none":
		return false
	case "otlp":
		return c.setting("ENDPOINT") != ""
	}
	return c.Getenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT") != ""
}

// waiting is how many records can wait.
func (c *Config) waiting() int {
	if n, err := strconv.Atoi(c.Getenv("OTEL_BLRP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		return n
	}
	return DefaultWaiting
}

// Exporter sends records. It is safe for concurrent use, and must be closed.
type Exporter struct {
	provider *sdk.LoggerProvider
	logger   otlplog.Logger
	sender   *sender
	log      logr.Logger
	most     int64
	// waiting are the records that Write has taken and that are neither sent nor lost. The SDK's queue has room for all.
	waiting atomic.Int64
}

// Open returns an exporter, nil if no collector is configured. It does not wait for the collector.
func Open(ctx context.Context, c Config) (*Exporter, error) {
	if !c.Wanted() {
		return nil, nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logging.Warn(c.Log, "Reading the settings of the export of usage records failed", "reason", err.Error())
	}))
	to, err := c.exporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("usage records: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("kvasir-picker")), resource.WithTelemetrySDK(),
		resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("usage records: %w", err), to.Shutdown(ctx))
	}
	e := &Exporter{log: c.Log, most: int64(c.waiting())}
	e.sender = newSender(to, &e.waiting, c.Log)
	options := []sdk.BatchProcessorOption{sdk.WithMaxQueueSize(int(e.most))}
	if c.Getenv("OTEL_BLRP_EXPORT_TIMEOUT") == "" {
		options = append(options, sdk.WithExportTimeout(patience))
	}
	e.provider = sdk.NewLoggerProvider(sdk.WithResource(about), sdk.WithProcessor(sdk.NewBatchProcessor(e.sender, options...)),
		sdk.WithAllowKeyDuplication()) // no field is there twice
	e.logger = e.provider.Logger("github.com/kvasir-dev/kvasir", otlplog.WithSchemaURL(semconv.SchemaURL))
	return e, nil
}

// exporter uses OTLP, by gRPC unless the environment selects HTTP. Batches are sent again by the sender.
func (c *Config) exporter(ctx context.Context) (sdk.Exporter, error) {
	switch p := cmp.Or(c.setting("PROTOCOL"), "grpc"); p {
	case "grpc":
		soon := backoff.DefaultConfig
		soon.MaxDelay = reconnect
		options := []otlploggrpc.Option{otlploggrpc.WithRetry(otlploggrpc.RetryConfig{}),
			otlploggrpc.WithDialOption(grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: connecting}))}
		if c.Endpoint != "" {
			options = append(options, otlploggrpc.WithEndpointURL(c.Endpoint))
		}
		if by := c.credentials(); by != nil {
			options = append(options, otlploggrpc.WithTLSCredentials(by))
		}
		return otlploggrpc.New(ctx, options...)
	case "http/protobuf":
		options := []otlploghttp.Option{otlploghttp.WithRetry(otlploghttp.RetryConfig{})}
		if c.Endpoint != "" {
			to, err := url.Parse(c.Endpoint)
			if err != nil {
				return nil, err
			}
			if strings.Trim(to.Path, "/") == "" {
				to.Path = "/v1/logs" // as for traces; the SDK would have the root
			}
			options = append(options, otlploghttp.WithEndpointURL(to.String()))
		}
		return otlploghttp.New(ctx, options...)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: want grpc or http/protobuf", p)
	}
}

// Write passes a record on to be sent, and loses it when too many wait. It never blocks.
func (e *Exporter) Write(r *usagelog.Record) {
	if e.waiting.Add(1) > e.most {
		e.waiting.Add(-1)
		e.sender.lost.Add(1)
		return
	}
	e.logger.Emit(context.Background(), logRecord(r))
}

// Stats are the records that the collector has taken, and those that are lost.
func (e *Exporter) Stats() (sent, lost int64) { return e.sender.sent.Load(), e.sender.lost.Load() }

// Close sends what waits and ends the exporter, at the latest when ctx ends: what the collector has not taken then is lost, and the log
// reports how much of all records is. Records that are written afterwards are lost.
func (e *Exporter) Close(ctx context.Context) {
	e.sender.hurry()
	defer context.AfterFunc(ctx, e.sender.abort)()
	err := e.provider.Shutdown(ctx)
	e.sender.abort()
	e.sender.close(e.most)
	if sent, lost := e.Stats(); lost > 0 {
		logging.Warn(e.log, "Usage records were not exported", "lost", lost, "sent", sent, "reason", e.sender.reason(err))
	}
}
