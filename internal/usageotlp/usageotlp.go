// Package usageotlp sends the records of what requests have used to an OpenTelemetry collector, as logs by OTLP: one log record for
// each record of usagelog, with the same fields.
//
// No request waits for the collector. A bounded number of records waits to be sent; one that finds no room is lost. A batch that the
// collector has not taken, because it cannot be reached or asks to wait, is sent again until it has, or until its time has passed:
//
//	Write ── no room? ── lost
//	  │
//	queue ── batch ── attempt ── taken ───────────── sent
//	                    │  ├──── refused ──────────── lost
//	                    │  └──── failed ── too late? ── lost
//	                    └── pause ─┘
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
	"sync"
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
	// defaultWaiting is how many records can wait to be sent, and defaultBatch how many are sent at once, if OTEL_BLRP_MAX_QUEUE_SIZE and
	// OTEL_BLRP_MAX_EXPORT_BATCH_SIZE do not set it.
	defaultWaiting, defaultBatch = 4096, 512
	// defaultDelay is how long the first record of a batch waits for others, if OTEL_BLRP_SCHEDULE_DELAY does not set it.
	defaultDelay = time.Second
	// defaultPatience is how long a batch is sent again, if OTEL_BLRP_EXPORT_TIMEOUT does not set it.
	defaultPatience = 5 * time.Minute
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

// number is a positive one of the environment, or another one.
func (c *Config) number(name string, other int) int {
	if n, err := strconv.Atoi(c.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return other
}

// milliseconds is a positive duration of the environment, or another one.
func (c *Config) milliseconds(name string, other time.Duration) time.Duration {
	return time.Duration(c.number(name, int(other.Milliseconds()))) * time.Millisecond
}

// Exporter sends records. It is safe for concurrent use, and must be closed.
//
// It has a queue of its own, because that of the SDK neither counts what it loses nor rests while the collector is away.
type Exporter struct {
	logger otlplog.Logger
	sender *sender
	log    logr.Logger

	records chan *usagelog.Record // with room for most
	most    int64
	// waiting are the records that Write has taken and that are neither sent nor lost.
	waiting atomic.Int64

	batch gatherer // of the goroutine that sends
	size  int      // of a batch
	delay time.Duration
	stop  chan struct{}
	done  chan struct{}

	closing sync.RWMutex // held for reading by Write, so that nothing is added to what waits at the end
	closed  bool
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
	most := c.number("OTEL_BLRP_MAX_QUEUE_SIZE", defaultWaiting)
	e := &Exporter{
		log: c.Log, records: make(chan *usagelog.Record, most), most: int64(most),
		size:  min(most, c.number("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", defaultBatch)),
		delay: c.milliseconds("OTEL_BLRP_SCHEDULE_DELAY", defaultDelay),
		stop:  make(chan struct{}), done: make(chan struct{}),
	}
	e.sender = newSender(to, &e.waiting, c.milliseconds("OTEL_BLRP_EXPORT_TIMEOUT", defaultPatience), c.Log)
	// No field is there twice, so the provider need not look for that.
	provider := sdk.NewLoggerProvider(sdk.WithResource(about), sdk.WithProcessor(&e.batch), sdk.WithAllowKeyDuplication())
	e.logger = provider.Logger("github.com/kvasir-dev/kvasir", otlplog.WithSchemaURL(semconv.SchemaURL))
	go e.run()
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
	e.closing.RLock()
	defer e.closing.RUnlock()
	switch {
	case e.closed:
		e.sender.lost.Add(1)
	case e.waiting.Add(1) > e.most:
		e.sender.settle(1, 1)
	default:
		e.records <- r // there is room
	}
}

// Stats are the records that the collector has taken, and those that are lost.
func (e *Exporter) Stats() (sent, lost int64) { return e.sender.sent.Load(), e.sender.lost.Load() }

// Close sends what waits and ends the exporter, at the latest when ctx ends: what the collector has not taken then is lost, and the log
// reports how much of all records is. Records that are written afterwards are lost.
func (e *Exporter) Close(ctx context.Context) {
	e.closing.Lock()
	closed := e.closed
	e.closed = true
	e.closing.Unlock()
	if closed {
		return
	}
	e.sender.hurry()
	close(e.stop)
	unbound := context.AfterFunc(ctx, e.sender.abort)
	<-e.done
	unbound()
	err := e.sender.to.Shutdown(ctx)
	e.sender.abort()
	if sent, lost := e.Stats(); lost > 0 {
		logging.Warn(e.log, "Usage records were not exported", "lost", lost, "sent", sent, "reason", e.sender.reason(err))
	}
}

// run sends batches until the exporter is closed and nothing waits, or there is no time for what does.
func (e *Exporter) run() {
	defer close(e.done)
	for open := true; open; {
		select {
		case r := <-e.records:
			open = e.gather(r)
		case <-e.stop:
			open = false
		}
		e.send()
	}
	for e.rest() && e.sender.aborted.Err() == nil {
		e.send()
	}
	left := e.waiting.Load()
	e.sender.settle(left, left)
}

// gather begins a batch, and waits for more of it. It returns false when the exporter is closed.
func (e *Exporter) gather(first *usagelog.Record) bool {
	e.logger.Emit(context.Background(), logRecord(first))
	delay := time.NewTimer(e.delay)
	defer delay.Stop()
	for len(e.batch.records) < e.size {
		select {
		case r := <-e.records:
			e.logger.Emit(context.Background(), logRecord(r))
		case <-delay.C:
			return true
		case <-e.stop:
			return false
		}
	}
	return true
}

// rest fills a batch with what waits, and reports whether there is something.
func (e *Exporter) rest() bool {
	for len(e.batch.records) < e.size {
		select {
		case r := <-e.records:
			e.logger.Emit(context.Background(), logRecord(r))
			continue
		default:
		}
		break
	}
	return len(e.batch.records) > 0
}

// send sends the batch, if it is not empty.
func (e *Exporter) send() {
	if len(e.batch.records) > 0 {
		e.sender.deliver(e.batch.records)
	}
	clear(e.batch.records)
	e.batch.records = e.batch.records[:0]
}

// gatherer keeps the log records that the SDK makes, for one goroutine.
type gatherer struct{ records []sdk.Record }

// Enabled is true for all records.
func (g *gatherer) Enabled(context.Context, sdk.EnabledParameters) bool { return true }

// OnEmit keeps a record.
func (g *gatherer) OnEmit(_ context.Context, r *sdk.Record) error {
	g.records = append(g.records, r.Clone())
	return nil
}

// Shutdown has no effect: the sender's exporter is shut down by itself.
func (g *gatherer) Shutdown(context.Context) error { return nil }

// ForceFlush has no effect.
func (g *gatherer) ForceFlush(context.Context) error { return nil }
