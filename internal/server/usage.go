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
	usage     usageSinks
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

// usageSinks are where records of use go.
type usageSinks struct {
	file *usagelog.File // nil without one
}

// log makes the records; nil without a place for them.
func (s *usageSinks) log() *usagelog.Log {
	if s.file == nil {
		return nil
	}
	return usagelog.New(s.file)
}

// openUsage begins the usage log. It must be closed.
func openUsage(o *options, log logr.Logger) (sinks usageSinks, done func(), err error) {
	if o.usage.Dir == "" {
		return usageSinks{}, func() {}, nil
	}
	file, err := usagelog.OpenFile(o.usage)
	if err != nil {
		return usageSinks{}, nil, err
	}
	log.Info("Logging usage", "directory", o.usage.Dir)
	if _, _, err := file.Stats(); err != nil {
		logging.Warn(log, "Usage log cannot be written, dropping its records", "directory", o.usage.Dir, "reason", err.Error())
	}
	return usageSinks{file: file}, func() {
		file.Close()
		if written, dropped, err := file.Stats(); dropped > 0 {
			log.Error(err, "Records of use were dropped", "dropped", dropped, "written", written)
		}
	}, nil
}

// serveUsageLog answers with the kept records of use, the oldest first.
func (a *app) serveUsageLog(w http.ResponseWriter, _ *http.Request) {
	if a.usage.file == nil {
		http.Error(w, "the picker has no --usage-log", http.StatusNotFound)
		return
	}
	a.serveLines(w, a.usage.file.Copy)
}

// usageStats are the records that each sink has written and dropped.
func (a *app) usageStats() []metrics.UsageSink {
	if a.usage.file == nil {
		return nil
	}
	written, dropped, _ := a.usage.file.Stats()
	return []metrics.UsageSink{{Name: "file", Written: written, Dropped: dropped}}
}
