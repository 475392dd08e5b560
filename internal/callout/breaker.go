package callout

import (
	"sync"
	"time"
)

const (
	// EnoughFailures in a row are why a service is left alone for Pause. Then one call finds out whether it answers again.
	EnoughFailures = 5
	// Pause is how long a service that fails is left alone.
	Pause = time.Second
)

// Breaker keeps calls away from a service that fails. The zero value lets calls through. It is safe for concurrent use.
type Breaker struct {
	mu       sync.Mutex // guards what follows
	failures int        // in a row
	until    time.Time  // before that no call is let through, if there were enough failures
}

// Allow reports whether a call is let through. After a pause it is one call: others are let through once it has an answer, or after
// another pause.
func (b *Breaker) Allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < EnoughFailures {
		return true
	}
	if now.Before(b.until) {
		return false
	}
	b.until = now.Add(Pause)
	return true
}

// Succeed records an answer, and reports whether it is the first one after enough failures.
func (b *Breaker) Succeed() (again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	again = b.failures >= EnoughFailures
	b.failures = 0
	return again
}

// Fail records a failure, and reports whether it is the one with which the pauses begin.
func (b *Breaker) Fail(now time.Time) (enough bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures++; b.failures >= EnoughFailures {
		b.until = now.Add(Pause)
	}
	return b.failures == EnoughFailures
}
