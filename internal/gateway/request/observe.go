// Package request has what the picker's two entrances, extproc and httpproxy, do alike with a request: why it is refused and in which
// words, the memory of its body, and who observes it.
package request

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

// Unobserved is an Observer that does nothing.
type Unobserved struct{}

// Refused implements Observer.
func (Unobserved) Refused(string) {}

// Picked implements Observer.
func (Unobserved) Picked(*picker.Decision) {}

// FirstToken implements Observer.
func (Unobserved) FirstToken(*picker.Decision, time.Duration) {}

// Ended implements Observer.
func (Unobserved) Ended(*picker.Decision, picker.Outcome, time.Duration) {}
