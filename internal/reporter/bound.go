package reporter

import (
	"context"
	"errors"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// bound is a source of events for engines whose publishers connect to the reporter. The newest publisher counts: a
// restarted engine need not wait until the end of its former connection is noticed.
type bound struct {
	zmtp.EventSource // for replays

	listener *zmtp.SubListener
	accepted sync.WaitGroup

	mu      sync.Mutex
	next    *zmtp.Sub // guarded by mu; has connected and is not followed yet
	current *zmtp.Sub // guarded by mu; is followed
	arrived chan struct{}
}

func bind(addr string) (*bound, error) {
	l, err := zmtp.ListenSub(addr)
	if err != nil {
		return nil, err
	}
	b := &bound{listener: l, arrived: make(chan struct{}, 1)}
	b.accepted.Go(b.accept)
	return b, nil
}

func (b *bound) accept() {
	for {
		sub, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		for _, old := range []*zmtp.Sub{b.next, b.current} {
			if old != nil {
				_ = old.Close() // it returns nil
			}
		}
		b.next = sub
		b.mu.Unlock()
		select {
		case b.arrived <- struct{}{}:
		default:
		}
	}
}

// close ends everything and waits.
func (b *bound) close() {
	_ = b.listener.Close() // it returns nil
	b.accepted.Wait()
}

var errWaiting = errors.New("waiting for the engine ended")

// take waits for a publisher.
func (b *bound) take(ctx context.Context) (*zmtp.Sub, error) {
	for {
		b.mu.Lock()
		sub := b.next
		b.next, b.current = nil, sub
		b.mu.Unlock()
		if sub != nil {
			return sub, nil
		}
		select {
		case <-ctx.Done():
			return nil, errWaiting
		case <-b.arrived:
		}
	}
}

// Subscribe implements events.Source: it waits for a publisher to connect, and follows it.
func (b *bound) Subscribe(ctx context.Context, _ string, up func(), each func(frames [][]byte) error) error {
	sub, err := b.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		stop()
		_ = sub.Close() // it returns nil
	}()
	up()
	for {
		m, err := sub.Recv()
		if err != nil {
			return err
		}
		if err := each(m); err != nil {
			return err
		}
	}
}
