package server

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	neturl "net/url"
	"os"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
	"github.com/kvasir-dev/kvasir/internal/usageotlp"
)

// usageOptions are the flags about records of use.
type usageOptions struct {
	usagelog.FileOptions

	endpoint string // of a collector
}

func (o *usageOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.Dir, "usage-log", "", "`directory` for records of what each request has used, for billing and audit; empty for none")
	f.Int64Var(&o.FileBytes, "usage-log-bytes", 64<<20, "size at which a new file of that log begins")
	f.IntVar(&o.Files, "usage-log-files", 4, "number of its files that are kept; older ones are removed")
	f.StringVar(&o.endpoint, "usage-endpoint", "", "`URL` of an OpenTelemetry collector for the same records as logs by OTLP, such as http://collector:4317; default is OTEL_EXPORTER_OTLP_LOGS_ENDPOINT. Without either, none are sent")
}

// checkCollector checks the URL of a collector that a flag gives.
func checkCollector(flag, endpoint string) error {
	if endpoint == "" {
		return nil
	}
	if u, err := neturl.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--%s %q: want http://HOST:PORT, or https", flag, endpoint)
	}
	return nil
}

// exportGrace is how long the last records can take to be sent.
const exportGrace = 3 * time.Second

// records are the logs of a picker that have a record for each request.
type records struct {
	decisions *decisionlog.Writer // nil without one
	usage     *usagelog.File      // nil without one
	exported  *usageotlp.Exporter // nil without a collector for records of use
}

// openRecords begins the logs of records. They must be closed.
func openRecords(ctx context.Context, o *options, log logr.Logger) (kept records, done func(), err error) {
	decisions, closeDecisions, err := openDecisions(&o.decisions, log)
	if err != nil {
		return records{}, nil, err
	}
	usage, closeUsage, err := openUsage(o, log)
	if err != nil {
		closeDecisions()
		return records{}, nil, err
	}
	exported, closeExport, err := openExport(ctx, o, log)
	if err != nil {
		closeUsage()
		closeDecisions()
		return records{}, nil, err
	}
	return records{decisions, usage, exported}, func() { closeExport(); closeUsage(); closeDecisions() }, nil
}

// openExport begins to send records of use to a collector, if there is one. It must be closed.
func openExport(ctx context.Context, o *options, log logr.Logger) (to *usageotlp.Exporter, done func(), err error) {
	c := usageotlp.Config{Endpoint: o.usage.endpoint, Getenv: os.Getenv, Log: log.WithName("usage")}
	if to, err = usageotlp.Open(ctx, c); err != nil || to == nil {
		return nil, func() {}, err
	}
	log.Info("Exporting usage")
	return to, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportGrace)
		defer cancel()
		to.Close(last)
	}, nil
}

// usageLog makes the records of use; nil without a place for them.
func (r *records) usageLog() *usagelog.Log {
	var sinks []usagelog.Sink
	if r.usage != nil {
		sinks = append(sinks, r.usage)
	}
	if r.exported != nil {
		sinks = append(sinks, r.exported)
	}
	if sinks == nil {
		return nil
	}
	return usagelog.New(sinks...)
}

// openUsage begins the usage log. It must be closed.
func openUsage(o *options, log logr.Logger) (file *usagelog.File, done func(), err error) {
	if o.usage.Dir == "" {
		return nil, func() {}, nil
	}
	file, err = usagelog.OpenFile(o.usage.FileOptions)
	if err != nil {
		return nil, nil, err
	}
	log.Info("Logging usage", "directory", o.usage.Dir)
	if _, _, err := file.Stats(); err != nil {
		logging.Warn(log, "Usage log cannot be written, dropping its records", "directory", o.usage.Dir, "reason", err.Error())
	}
	return file, func() {
		file.Close()
		if written, dropped, err := file.Stats(); dropped > 0 {
			log.Error(err, "Records of use were dropped", "dropped", dropped, "written", written)
		}
	}, nil
}

// serveUsageLog answers with the kept records of use, the oldest first.
func (a *app) serveUsageLog(w http.ResponseWriter, _ *http.Request) {
	if a.usage == nil {
		http.Error(w, "the picker has no --usage-log", http.StatusNotFound)
		return
	}
	a.serveLines(w, a.usage.Copy)
}

// usageStats are the records that were written and dropped.
func (a *app) usageStats() *metrics.Records {
	if a.usage == nil {
		return nil
	}
	written, dropped, _ := a.usage.Stats()
	return &metrics.Records{Written: written, Dropped: dropped}
}

// exportStats are the records that a collector has taken, and those that are lost.
func (a *app) exportStats() *metrics.Exports {
	if a.exported == nil {
		return nil
	}
	sent, lost := a.exported.Stats()
	return &metrics.Exports{Sent: sent, Lost: lost}
}
