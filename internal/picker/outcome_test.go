package picker

import (
	"context"
	"testing"
	"time"
)

// TestOnlyTheTimeOfARouteIsNoEndOfTheClient: a gateway that sets a deadline (grpc-timeout) and does not wait any longer is a client that has
// gone.
func TestOnlyTheTimeOfARouteIsNoEndOfTheClient(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	late, done := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer done()
	over, end := context.WithTimeoutCause(t.Context(), -1, ErrRouteTime)
	defer end()
	for name, tc := range map[string]struct {
		ctx  context.Context
		want Outcome
	}{
		"the client has gone":            {left, ClientGone},
		"its deadline is over":           {late, ClientGone},
		"the time of its route is over":  {over, Failed},
		"there is no endpoint, it waits": {t.Context(), Failed},
	} {
		if got := endOf(tc.ctx); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
