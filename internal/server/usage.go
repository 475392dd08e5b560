package server

import (
	"net/http"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// records are the logs of a picker that have a record for each request.
type records struct {
	decisions *decisionlog.Writer // nil without one
	usage     *usagelog.File      // nil without one
}

// openRecords begins the logs of records. They must be closed.
func openRecords(o *options, log logr.Logger) (kept records, done func(), err error) {
	decisions, closeDecisions, err := openDecisions(&o.decisions, log)
	if err != nil {
		return records{}, nil, err
	}
	usage, closeUsage, err := openUsage(o, log)
	if err != nil {
		closeDecisions()
		return records{}, nil, err
	}
	return records{decisions, usage}, func() { closeUsage(); closeDecisions() }, nil
}

// usageLog makes the records of use; nil without a place for them.
func (r *records) usageLog() *usagelog.Log {
	if r.usage == nil {
		return nil
	}
	return usagelog.New(r.usage)
}

// openUsage begins the usage log. It must be closed.
func openUsage(o *options, log logr.Logger) (file *usagelog.File, done func(), err error) {
	if o.usage.Dir == "" {
		return nil, func() {}, nil
	}
	file, err = usagelog.OpenFile(o.usage)
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
