package httpproxy

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Observer is told what becomes of requests. Its methods are called on the path of the request and must be quick.
type Observer interface {
	// Refused tells of a request that was not sent to any engine, for one of the Refused reasons.
	Refused(reason string)
	// Picked tells of a decision.
	Picked(d *picker.Decision)
	// FirstToken tells that the first generated token has come, so long after the request.
	FirstToken(d *picker.Decision, after time.Duration)
	// Ended tells how a request that was picked for has ended, so long after it came.
	Ended(d *picker.Decision, outcome picker.Outcome, after time.Duration)
}

// Why a request got no decision: the values of a metric label.
const (
	RefusedPath       = "path"        // nothing is at the path
	RefusedMethod     = "method"      // the path does not take the method
	RefusedEncoding   = "encoding"    // the body is compressed
	RefusedTooLarge   = "too_large"   // the body is over the limit
	RefusedSlowBody   = "slow_body"   // the body did not come in time
	RefusedBrokenBody = "broken_body" // the body broke off, or was framed wrongly
	RefusedMemory     = "memory"      // too many bytes of bodies are held
	RefusedRequests   = "requests"    // too many requests are under way
	RefusedUnreadable = "unreadable"  // the body cannot be read as a request
	RefusedModel      = "model"       // nobody serves the model
	RefusedNoEndpoint = "no_endpoint" // no endpoint can take the request now
	RefusedTenant     = "tenant"      // nobody's that is known, or not for this model
	RefusedTooMuch    = "too_much"    // over the tenant's limits, or no place in the queue
	RefusedClientGone = "client_gone" // the client left before the pick
	RefusedSuspect    = "suspect"     // engines have broken off on the same request
	RefusedPick       = "pick"        // the pick failed otherwise
	RefusedPanic      = "panic"       // a fault of ours, before the pick or after it
)

// RefusedReasons are all reasons for which Refused is called.
var RefusedReasons = []string{
	RefusedPath, RefusedMethod, RefusedEncoding, RefusedTooLarge, RefusedSlowBody, RefusedBrokenBody, RefusedMemory,
	RefusedRequests, RefusedUnreadable, RefusedModel, RefusedNoEndpoint, RefusedTenant, RefusedTooMuch, RefusedClientGone, RefusedSuspect, RefusedPick, RefusedPanic,
}

type nobody struct{}

func (nobody) Refused(string)                                        {}
func (nobody) Picked(*picker.Decision)                               {}
func (nobody) FirstToken(*picker.Decision, time.Duration)            {}
func (nobody) Ended(*picker.Decision, picker.Outcome, time.Duration) {}
