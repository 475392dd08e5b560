package picker

import (
	"context"
	"errors"
)

// Outcome is how a request ended.
type Outcome uint8

// The outcomes.
const (
	// Completed: the answer went through to its end.
	Completed Outcome = iota
	// ClientGone: the client left before.
	ClientGone
	// Failed: no endpoint has answered, or the answer was aborted.
	Failed
	// Rejected: the engine has answered with an error that is the request's fault.
	Rejected
	// Unreported: the outcome of the request is not reported.
	Unreported
	numOutcomes int = iota
)

// String is the value of the metric label.
func (o Outcome) String() string {
	return [...]string{"completed", "client_gone", "failed", "rejected", "unreported"}[o]
}

// release ends what a request for which no endpoint was found has held.
func (v *view) release(ctx context.Context, in *Request, c *caller) {
	c.pass.Release()
	if in.Again != nil {
		in.Again.handoff.lease.release()
		if in.HandedOver {
			in.Again.handoff.trial.giveUp(in.Again.now())
		}
		v.stats.outcomes[endOf(ctx)].Add(1)
	}
}

// endOf is how a request has ended that was picked for before, and now found no endpoint.
func endOf(ctx context.Context) Outcome {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrRouteTime) { // a gateway's deadline is one of the client
		return ClientGone
	}
	return Failed
}
