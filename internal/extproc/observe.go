package extproc

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Observer is told what becomes of requests. Its methods are called on the path of the request and must be quick.
type Observer interface {
	// Refused tells of a request that was not routed, for one of the Refused reasons.
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
	RefusedTooLarge   = "too_large"   // the body is over the limit
	RefusedMemory     = "memory"      // too many bytes of bodies are held
	RefusedUnreadable = "unreadable"  // the body cannot be read as a request
	RefusedModel      = "model"       // nobody serves the model
	RefusedTenant     = "tenant"      // nobody knows whose it is, or they may not
	RefusedTooMuch    = "too_much"    // more than the pool or the tenant may have
	RefusedNoEndpoint = "no_endpoint" // no endpoint can take the request now
	RefusedClientGone = "client_gone" // the client left before the pick
	RefusedPick       = "pick"        // the pick failed otherwise
	RefusedPanic      = "panic"       // a fault of ours, before the pick or after it
)

// RefusedReasons are all reasons for which Refused is called.
var RefusedReasons = []string{
	RefusedTooLarge, RefusedMemory, RefusedUnreadable, RefusedModel, RefusedTenant, RefusedTooMuch, RefusedNoEndpoint, RefusedClientGone,
	RefusedPick, RefusedPanic,
}

type nobody struct{}

func (nobody) Refused(string)                                        {}
func (nobody) Picked(*picker.Decision)                               {}
func (nobody) FirstToken(*picker.Decision, time.Duration)            {}
func (nobody) Ended(*picker.Decision, picker.Outcome, time.Duration) {}
