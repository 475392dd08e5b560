package reporter

import (
	"context"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// model is what is known of the model's files. The contents are read on request, and not kept: they might be larger than
// all other data here.
type model struct {
	mu    sync.Mutex
	stamp string             // guarded by mu
	list  modelfiles.Listing // guarded by mu
}

// listing lists the files.
func (m *model) listing(dir string) (modelfiles.Listing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stamp := modelfiles.Stamp(dir, "")
	if stamp == m.stamp && stamp != "" {
		return m.list, nil
	}
	set, err := modelfiles.Read(dir, "")
	if err != nil {
		return modelfiles.Listing{}, err
	}
	m.stamp, m.list = stamp, set.List()
	return m.list, nil
}

// offer offers the model's files to a picker until ctx ends, again and again: they can change, and it can start again.
func (r *Reporter) offer(ctx context.Context, p *picker) {
	log := r.cfg.Log.WithValues("picker", p.addr)
	said, wait := "", time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = r.cfg.OfferEvery
		var err error
		if r.caught("Handing over the model's files panicked", func() { err = r.handOver(ctx, p) }, "picker", p.addr) {
			err = errPanic
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			logging.Warn(log, "Handing over the model's files failed", "reason", said)
			fallthrough
		default:
			wait = min(wait, r.cfg.MaxBackoff)
		}
	}
}

// handOver offers the model's files once.
func (r *Reporter) handOver(ctx context.Context, p *picker) error {
	list, err := r.model.listing(r.cfg.ModelDir)
	if err == nil {
		_, err = p.client.HandOver(ctx, r.cfg.Pod, list, func() (modelfiles.Set, error) { return modelfiles.Read(r.cfg.ModelDir, "") })
	}
	return err
}
