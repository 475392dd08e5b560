package extproc

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Observer is notified of the progress of requests. Its methods are called on the path of the request and must be quick.
type Observer interface {
	// Refused is called for a request that was not routed, with one of the Refused reasons.
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
	RefusedPath       = "path"        // the path administers engines
	RefusedTooLarge   = "too_large"   // the body is over the limit
	RefusedMemory     = "memory"      // too many bytes of bodies are held
	RefusedOverload   = "overload"    // memory, goroutines or descriptors run short
	RefusedUnreadable = "unreadable"  // the body cannot be read as a request
	RefusedModel      = "model"       // no endpoint serves the model
	RefusedTenant     = "tenant"      // an unknown tenant, or one without the right
	RefusedTooMuch    = "too_much"    // more than the pool or the tenant is allowed
	RefusedNoEndpoint = "no_endpoint" // no endpoint can take the request now
	RefusedClientGone = "client_gone" // the client left before the pick
	RefusedSuspect    = "suspect"     // engines have aborted on the same request
	RefusedPick       = "pick"        // the pick failed otherwise
	RefusedPanic      = "panic"       // a bug of the picker, before the pick or after it
)

// RefusedReasons are all reasons for which Refused is called.
var RefusedReasons = []string{
	RefusedPath, RefusedTooLarge, RefusedMemory, RefusedOverload, RefusedUnreadable, RefusedModel, RefusedTenant, RefusedTooMuch,
	RefusedNoEndpoint, RefusedClientGone, RefusedSuspect, RefusedPick, RefusedPanic,
}

type nobody struct{}

func (nobody) Refused(string)                                        {}
func (nobody) Picked(*picker.Decision)                               {}
func (nobody) FirstToken(*picker.Decision, time.Duration)            {}
func (nobody) Ended(*picker.Decision, picker.Outcome, time.Duration) {}
