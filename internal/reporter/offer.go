package reporter

import (
	"context"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelfiles"
)

// model is what is known of the model's files. The contents are read when somebody wants them, and not kept: they may
// be larger than everything else here.
type model struct {
	mu    sync.Mutex
	stamp string             // guarded by mu
	list  modelfiles.Listing // guarded by mu
}

// listing says what files there are.
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

// offer offers the model's files to a picker until ctx ends, again and again: they may change, and it may start again.
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
		list, err := r.model.listing(r.cfg.ModelDir)
		if err == nil {
			_, err = p.client.HandOver(ctx, r.cfg.Pod, list, func() (modelfiles.Set, error) { return modelfiles.Read(r.cfg.ModelDir, "") })
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			log.Info("The model's files are not handed over", "reason", said)
			fallthrough
		default:
			wait = min(wait, r.cfg.MaxBackoff)
		}
	}
}
