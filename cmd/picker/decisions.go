package main

import (
	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
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
	return w, func() {
		w.Close()
		if written, dropped, err := w.Stats(); dropped > 0 {
			log.Error(err, "Records of decisions were dropped", "dropped", dropped, "written", written)
		}
	}, nil
}

// decisionStats are the records of the decision log, nil without one.
func (a *app) decisionStats() *metrics.Decisions {
	if a.decisions == nil {
		return nil
	}
	written, dropped, _ := a.decisions.Stats()
	return &metrics.Decisions{Written: written, Dropped: dropped}
}
