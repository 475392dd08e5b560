package fault

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the pause between attempts to reach a peer. It begins at Min, and doubles with each attempt up to Max. Half of
// each pause is random, so that clients of a server that restarts do not return at the same time.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration // 0 for Min
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	pause := max(b.next, b.Min)
	b.next = min(2*pause, b.Max)
	return pause/2 + rand.N(pause/2+1)
}

// Reset returns to Min, after an attempt that has succeeded.
func (b *Backoff) Reset() { b.next = 0 }

// Wait pauses, and reports whether the pause has passed before ctx has ended.
func (b *Backoff) Wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(b.Next()):
		return true
	}
}
