package extproc

import (
	"context"
	"sync"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// outbox sends a stream's answers in order without making the receiver wait. A goroutine sends while there is
// something to send, so that an idle stream costs none.
type outbox struct {
	send  func(*pb.ProcessingResponse) error
	limit int64 // of pending bytes, above which await waits

	mu      sync.Mutex
	queue   []letter
	pending int64 // bytes in queue that count
	sending bool
	failed  bool
	wake    chan struct{} // closed by the sender when await or drain may look again; nil when nobody waits
}

// letter is a message to be sent.
type letter struct {
	message *pb.ProcessingResponse
	size    int64  // in bytes, as far as it counts
	sent    func() // called when the message was sent, or never will be; may be nil
}

// put hands a message over. After a failure to send, messages are dropped: the stream is over.
func (o *outbox) put(l letter) {
	o.mu.Lock()
	if o.failed {
		o.mu.Unlock()
		l.done()
		return
	}
	defer o.mu.Unlock()
	o.queue = append(o.queue, l)
	o.pending += l.size
	if !o.sending {
		o.sending = true
		go o.run()
	}
}

// after calls f when all that was put so far is sent, or never will be.
func (o *outbox) after(f func()) { o.put(letter{sent: f}) }

func (l *letter) done() {
	if l.sent != nil {
		l.sent()
	}
}

// run sends until there is nothing to send.
func (o *outbox) run() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 {
		batch := o.queue
		o.queue = nil
		o.mu.Unlock()
		failed := false
		for i := range batch {
			l := &batch[i]
			failed = failed || l.message != nil && o.send(l.message) != nil
			l.done()
			l.message = nil
			o.mu.Lock()
			o.pending -= l.size
			o.stir()
			o.mu.Unlock()
		}
		o.mu.Lock()
		o.failed = o.failed || failed
		if o.failed {
			for i := range o.queue {
				o.pending -= o.queue[i].size
				o.queue[i].done()
			}
			o.queue = nil
		}
	}
	o.sending = false
	o.stir()
}

// stir wakes who waits. o.mu is held.
func (o *outbox) stir() {
	if o.wake != nil && (!o.sending || o.pending <= o.limit) {
		close(o.wake)
		o.wake = nil
	}
}

// await waits while too much is pending, or until ctx ends.
func (o *outbox) await(ctx context.Context) {
	o.wait(ctx, func() bool { return o.pending > o.limit })
}

// drain waits until all is sent, or cannot be sent any more: sending fails at once when the stream has ended.
func (o *outbox) drain() {
	o.wait(context.Background(), func() bool { return o.sending })
}

func (o *outbox) wait(ctx context.Context, busy func() bool) {
	for {
		o.mu.Lock()
		if !busy() {
			o.mu.Unlock()
			return
		}
		if o.wake == nil {
			o.wake = make(chan struct{})
		}
		wake := o.wake
		o.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return
		}
	}
}
