package picker

import (
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/relay"
)

// BlocksLast is how long after its answer the engine that has prefilled is counted on to hold the blocks. vLLM's lease is 30 s,
// and begins a little earlier; engines that wait to load the blocks extend it.
const BlocksLast = relay.Lease

// leases are the hand-offs whose blocks an endpoint holds for others. It does no work for them, but must not be shut down.
type leases struct {
	mu  sync.Mutex
	all map[*lease]struct{}
}

// lease is one of them, until its time or until it is released.
type lease struct {
	of    *leases
	until time.Time
}

// add begins a lease.
func (h *leases) add(now time.Time) *lease {
	one := &lease{of: h, until: now.Add(BlocksLast)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[*lease]struct{}{}
	}
	h.all[one] = struct{}{}
	return one
}

// count is how many last.
func (h *leases) count(now time.Time) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for one := range h.all {
		if now.Before(one.until) {
			n++
		}
	}
	return n
}

// release ends the lease. Only the first call counts; calls on nil do nothing.
func (h *lease) release() {
	if h == nil {
		return
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	delete(h.of.all, h)
}
