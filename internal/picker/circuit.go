package picker

import (
	"sync"
	"sync/atomic"
	"time"
)

// circuit keeps requests away from an endpoint that fails.
//
//	closed --failures in a row--> open --openFor--> half open --success--> closed
//	                               ^                   |
//	                               +-----failure-------+
//
// Half open, one request at a time is let through to try.
type circuit struct {
	// failures in a row. Picks read it without the lock, as long as it lets them all through.
	failures atomic.Int64
	mu       sync.Mutex
	openTill time.Time
	trying   bool
}

// closed tells whether requests may go through. limit is the number of failures in a row that opens the circuit.
func (c *circuit) closed(now time.Time, limit int) bool {
	if c.failures.Load() < int64(limit) {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures.Load() < int64(limit) || (!c.trying && !now.Before(c.openTill))
}

// take asks to send a request through. ok tells whether it may, and trial that it is the one that tries: then it must
// tell of a success or a failure, or give up.
func (c *circuit) take(now time.Time, limit int) (ok, trial bool) {
	if c.failures.Load() < int64(limit) {
		return true, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failures.Load() < int64(limit):
		return true, false
	case c.trying || now.Before(c.openTill):
		return false, false
	}
	c.trying = true
	return true, true
}

// succeed tells that the endpoint has answered.
func (c *circuit) succeed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures.Store(0)
	c.trying = false
}

// fail tells that the endpoint has not answered as it should.
func (c *circuit) fail(now time.Time, limit int, openFor time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying = false
	if c.failures.Load()+1 >= int64(limit) {
		c.openTill = now.Add(openFor) // before anybody can see that it counts
	}
	c.failures.Add(1)
}

// giveUp tells that the request that tries has ended without a verdict on the endpoint.
func (c *circuit) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying = false
}
