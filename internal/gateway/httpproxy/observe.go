package httpproxy

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Observer is notified of the progress of requests. Its methods are called on the path of the request and must be quick.
type Observer interface {
	// Refused is called for a request that was not sent to any engine, with one of the Refused reasons.
	Refused(reason string)
	// Picked is called for a decision.
	Picked(d *picker.Decision)
	// FirstToken reports that the first generated token has arrived, and how long after the request.
	FirstToken(d *picker.Decision, after time.Duration)
	// Ended reports how a picked request has ended, and how long after its arrival.
	Ended(d *picker.Decision, outcome picker.Outcome, after time.Duration)
}

// Why a request got no decision: the values of a metric label.
const (
	RefusedPath       = "path"        // nothing is at the path
	RefusedMethod     = "method"      // the path does not take the method
	RefusedEncoding   = "encoding"    // the body is compressed
	RefusedTooLarge   = "too_large"   // the body is over the limit
	RefusedSlowBody   = "slow_body"   // the body did not arrive in time
	RefusedBrokenBody = "broken_body" // the body was aborted, or framed wrongly
	RefusedMemory     = "memory"      // no room in the budget, or in the client's share of it
	RefusedShed       = "shed"        // the body arrived slowly, and its memory was needed
	RefusedOverload   = "overload"    // memory, goroutines or descriptors run short
	RefusedRequests   = "requests"    // too many requests are under way
	RefusedUnreadable = "unreadable"  // the body cannot be read as a request
	RefusedModel      = "model"       // no endpoint serves the model
	RefusedNoEndpoint = "no_endpoint" // no endpoint can take the request now
	RefusedTenant     = "tenant"      // an unknown tenant, or not allowed to use this model
	RefusedTooMuch    = "too_much"    // over the tenant's limits, or no place in the queue
	RefusedClientGone = "client_gone" // the client left before the pick
	RefusedSuspect    = "suspect"     // engines have aborted on the same request
	RefusedPick       = "pick"        // the pick failed otherwise
	RefusedPanic      = "panic"       // a bug of the picker, before the pick or after it
)

// RefusedReasons are all reasons for which Refused is called.
var RefusedReasons = []string{
	RefusedPath, RefusedMethod, RefusedEncoding, RefusedTooLarge, RefusedSlowBody, RefusedBrokenBody, RefusedMemory,
	RefusedShed, RefusedOverload, RefusedRequests, RefusedUnreadable, RefusedModel, RefusedNoEndpoint, RefusedTenant, RefusedTooMuch,
	RefusedClientGone, RefusedSuspect, RefusedPick, RefusedPanic,
}

type nobody struct{}

func (nobody) Refused(string)                                        {}
func (nobody) Picked(*picker.Decision)                               {}
func (nobody) FirstToken(*picker.Decision, time.Duration)            {}
func (nobody) Ended(*picker.Decision, picker.Outcome, time.Duration) {}
