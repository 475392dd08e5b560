package server

import (
	"io"
	"net/http"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/metrics"
)

// openDecisions begins the decision log, nil without a directory for it. The log must be closed.
func openDecisions(o *decisionlog.Options, log logr.Logger) (*decisionlog.Writer, func(), error) {
	if o.Dir == "" {
		return nil, func() {}, nil
	}
	w, err := decisionlog.Open(*o)
	if err != nil {
		return nil, nil, err
	}
	log.Info("Logging decisions", "directory", o.Dir)
	if _, _, err := w.Stats(); err != nil {
		logging.Warn(log, "Decision log cannot be written, dropping its records", "directory", o.Dir, "reason", err.Error())
	}
	return w, func() {
		w.Close()
		if written, dropped, err := w.Stats(); dropped > 0 {
			log.Error(err, "Records of decisions were dropped", "dropped", dropped, "written", written)
		}
	}, nil
}

// serveDecisionLog answers with the kept records of the decision log, the oldest first.
func (a *app) serveDecisionLog(w http.ResponseWriter, _ *http.Request) {
	if a.decisions == nil {
		http.Error(w, "the picker has no --decision-log", http.StatusNotFound)
		return
	}
	a.serveLines(w, a.decisions.Copy)
}

// serveLines answers with records, one JSON object a line.
func (a *app) serveLines(w http.ResponseWriter, copyTo func(io.Writer) error) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/x-ndjson")
	if err := copyTo(w); err != nil {
		a.log.V(1).Info("Sending records failed", "reason", err.Error())
		panic(http.ErrAbortHandler) // the client must not take a part for all of it
	}
}

// decisionStats are the records of the decision log, nil without one.
func (a *app) decisionStats() *metrics.Records {
	if a.decisions == nil {
		return nil
	}
	written, dropped, _ := a.decisions.Stats()
	return &metrics.Records{Written: written, Dropped: dropped}
}
