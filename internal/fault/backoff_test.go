package fault_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/fault"
)

// TestPausesDoubleUpToABound: pauses are between half and all of 1, 2, 4, 5, 5 seconds, and begin again after a reset.
func TestPausesDoubleUpToABound(t *testing.T) {
	for range 100 {
		b := fault.Backoff{Min: time.Second, Max: 5 * time.Second}
		for range 2 {
			for i, want := range []time.Duration{1, 2, 4, 5, 5} {
				want *= time.Second
				if got := b.Next(); got < want/2 || got > want {
					t.Fatalf("pause %d is %s, want %s to %s", i, got, want/2, want)
				}
			}
			b.Reset()
		}
	}
}

func TestAPauseEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fault.Backoff{Min: time.Hour, Max: time.Hour}
		began := time.Now()
		if !b.Wait(t.Context()) || time.Since(began) < time.Hour/2 {
			t.Errorf("the pause has ended after %s", time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		began = time.Now()
		if b.Wait(ctx) || time.Since(began) != time.Minute {
			t.Errorf("the pause has not ended with its context, but after %s", time.Since(began))
		}
	})
}
