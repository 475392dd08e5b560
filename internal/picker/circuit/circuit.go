// Package circuit keeps requests away from endpoints that fail (Circuit), and requests that engines abort on away from other
// engines (Suspects).
package circuit

import (
	"sync"
	"sync/atomic"
	"time"
)

// Circuit keeps requests away from an endpoint that fails.
//
//	closed --failures in a row--> open --openFor--> half open --success--> closed
//	                               ^                   |
//	                               +-----failure-------+
//
// Half open, one request at a time is let through to try.
type Circuit struct {
	// failures in a row. Picks read it without the lock, as long as it lets them all through.
	failures atomic.Int64
	// answered: the last failure was an answer, so that the endpoint is there.
	answered atomic.Bool
	mu       sync.Mutex
	openTill time.Time
	failed   time.Time // last
	trying   bool
}

// Closed reports whether requests can pass. limit is the number of failures in a row that opens the circuit.
func (c *Circuit) Closed(now time.Time, limit int) bool {
	if c.failures.Load() < int64(limit) {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures.Load() < int64(limit) || (!c.trying && !now.Before(c.openTill))
}

// Take asks to send a request through. ok reports whether it can be sent, and probe whether it is the probe request: its
// sender must then report success or failure, or give up.
func (c *Circuit) Take(now time.Time, limit int) (ok, probe bool) {
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

// Succeed reports an answer to a request that was sent at a time. Answers to requests from before the last failure do not
// count: an engine that shuts down finishes what it runs, while it refuses or aborts all new requests.
func (c *Circuit) Succeed(sent time.Time) {
	if c.failures.Load() == 0 {
		return // nearly always
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent.Before(c.failed) {
		return
	}
	c.failures.Store(0)
	c.trying = false
}

// Failures is the number of failures in a row.
func (c *Circuit) Failures() int { return int(c.failures.Load()) }

// Probed reports whether a probe request is under way.
func (c *Circuit) Probed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trying
}

// Answers reports whether the last failure was an answer of the endpoint.
func (c *Circuit) Answers() bool { return c.answered.Load() }

// FailsSince reports whether the endpoint has failed after a time, and has not answered since.
func (c *Circuit) FailsSince(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures.Load() > 0 && !c.failed.Before(t)
}

// Fail records a failure of the endpoint. limit is the number of failures in a row that opens the circuit, openFor for how
// long. answered: the failure was an answer.
func (c *Circuit) Fail(now time.Time, limit int, openFor time.Duration, answered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying, c.failed = false, now
	c.answered.Store(answered)
	if c.failures.Load()+1 >= int64(limit) {
		c.openTill = now.Add(openFor) // before others can see that it counts
	}
	c.failures.Add(1)
}

// GiveUp records that the probe request has ended without a verdict on the endpoint.
func (c *Circuit) GiveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying = false
}
