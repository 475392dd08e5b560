package picker

import (
	"sync"
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
	mu       sync.Mutex
	failures int
	openTill time.Time
	trying   bool
}

// closed tells whether requests may go through. limit is the number of failures in a row that opens the circuit.
func (c *circuit) closed(now time.Time, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures < limit || (!c.trying && !now.Before(c.openTill))
}

// take tells that a request goes through.
func (c *circuit) take(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures >= limit {
		c.trying = true
	}
}

// succeed tells that the endpoint has answered.
func (c *circuit) succeed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.trying = 0, false
}

// fail tells that the endpoint has not answered as it should.
func (c *circuit) fail(now time.Time, limit int, openFor time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures++
	c.trying = false
	if c.failures >= limit {
		c.openTill = now.Add(openFor)
	}
}

// giveUp tells that a request has ended without a verdict on the endpoint.
func (c *circuit) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying = false
}
