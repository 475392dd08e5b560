package reporter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// model is what is known of the model's files. The contents are read on request and in parts, and not kept: they might be larger than
// all other data here.
type model struct {
	mu    sync.Mutex
	known bool               // guarded by mu; state and list are of the last reading, which has succeeded
	state modelfiles.State   // guarded by mu
	list  modelfiles.Listing // guarded by mu
}

// listing lists the files. They are read if they have changed.
func (m *model) listing(source *modelfiles.Source) (modelfiles.Listing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, err := source.State()
	if err == nil && m.known && state.Equal(m.state) {
		return m.list, nil
	}
	m.known = false
	if err != nil {
		return modelfiles.Listing{}, err
	}
	m.list, m.state, err = source.List()
	m.known = err == nil
	return m.list, err
}

// errLocal wraps what has failed in the pod, and not on the way to a picker.
type errLocal struct{ error }

func (e errLocal) Unwrap() error { return e.error }

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
		done := make(chan error, 1)
		go func() { // it is not waited for: a file system that hangs must not keep the reporter from following the pickers
			var err error
			if r.caught("Handing over the model's files panicked", func() { err = r.handOver(ctx, p) }, "picker", p.addr) {
				err = errPanic
			}
			done <- err
		}()
		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-done:
		}
		if err == nil {
			said = ""
			continue
		}
		if err.Error() != said {
			said = err.Error()
			logging.Warn(log, "Handing over the model's files failed", "reason", said)
		}
		if !errors.As(err, new(errLocal)) { // the files are not read at the pace at which pickers are tried
			wait = min(wait, r.cfg.MaxBackoff)
		}
	}
}

// handOver offers the model's files once, or reports why there are none.
func (r *Reporter) handOver(ctx context.Context, p *picker) error {
	source := &r.cfg.Model
	list, err := r.model.listing(source)
	if err != nil {
		err = errLocal{err}
		return errors.Join(err, p.client.NoFiles(ctx, r.cfg.Pod, err))
	}
	_, err = p.client.HandOver(ctx, r.cfg.Pod, list, func(put func([]byte) error) error { return source.Send(&list, put) })
	if errors.Is(err, modelfiles.ErrChanged) {
		err = errLocal{err}
	}
	return err
}
