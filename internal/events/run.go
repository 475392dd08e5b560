package events

import (
	"context"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/fault"
)

// run is a stream with the two goroutines that drive it: a receiver, and an applier.
type run struct {
	*Stream
	cancel  context.CancelFunc
	workers sync.WaitGroup
}

func startStream(feed Feed, cfg *Config) *run {
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{Stream: newStream(feed, cfg), cancel: cancel}
	r.workers.Go(func() { r.receive(ctx) })
	r.workers.Go(func() { r.apply(ctx) })
	return r
}

// stop ends both goroutines; wait waits until they have ended.
func (r *run) stop() { r.cancel() }
func (r *run) wait() {
	r.workers.Wait()
	r.Close()
}

// source is the transport of the endpoint's messages.
func (r *run) source() Subscriber {
	if r.feed.Endpoint.DialsIn {
		return r.cfg.Reception
	}
	return r.cfg.Source
}

// receive keeps a connection to the publisher and queues its messages.
func (r *run) receive(ctx context.Context) {
	backoff := fault.Backoff{Min: r.cfg.MinBackoff, Max: r.cfg.MaxBackoff}
	for {
		began := time.Now()
		link, cut := context.WithCancel(ctx)
		var err error
		if p := r.caught("Reading an event stream panicked", func() { err = r.subscribe(link) }, nil); p != nil {
			err = p
		}
		cut()
		if ctx.Err() != nil {
			r.link.Store(false)
			return
		}
		r.Down(err)
		if time.Since(began) >= r.cfg.MaxBackoff {
			backoff.Reset()
		}
		if !backoff.Wait(ctx) {
			return
		}
	}
}

// subscribe queues the messages of one connection, until it ends.
func (r *run) subscribe(link context.Context) error {
	return r.source().Subscribe(link, r.feed.address(), func() { r.Up(link) }, func(frames [][]byte) error {
		r.Take(frames)
		return nil
	})
}

// apply works until ctx ends.
func (r *run) apply(ctx context.Context) {
	for ctx.Err() == nil {
		if r.Work() {
			continue
		}
		var wake <-chan time.Time
		if at := r.Wake(); !at.IsZero() {
			wake = time.After(at.Sub(r.cfg.Now()))
		}
		select {
		case <-ctx.Done():
		case <-r.queue.wake:
		case <-wake:
		}
	}
}

// sleep waits for d, false when ctx has ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
