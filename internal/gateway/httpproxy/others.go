package httpproxy

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// wasTried reports whether the request was sent to an endpoint of its pool.
func (e *exchange) wasTried(id endpoint.ID) bool { return slices.Contains(e.tried, id) }

// usable is how many targets of the decision can be tried, within the policy's attempts.
func (e *exchange) usable() int {
	if n := len(e.decision.Targets); e.room == 0 || n < e.room {
		return n
	}
	return e.room
}

// others reports whether the pool has an endpoint that the request was not sent to, within the policy's attempts: at the pick it was out of
// service, or not there. Only those that work count if works is set: a request that has not failed is not given up for others.
func (e *exchange) others(works bool) bool {
	return e.decision.Leg() == picker.Whole && len(e.tried) < e.decision.Spec().Policy.Attempts && e.decision.Others(works, e.wasTried)
}

// toOthers reports whether the request is picked for again after the targets of the decision have failed, among the others.
func (e *exchange) toOthers(r result, in *picker.Request) bool {
	if e.brokeOff || e.unretried || !e.again(r) || !e.others(false) || r.costs() && !e.mayRetry() {
		return false
	}
	if e.last != nil { // the client gets it if the others fail without an answer
		e.last.attempt = ofBefore
	}
	e.room = e.decision.Spec().Policy.Attempts - len(e.tried)
	tried, allow := slices.Clone(e.tried), in.Allow
	in.Allow = func(ep *endpoint.Endpoint) bool { return !slices.Contains(tried, ep.ID) && (allow == nil || allow(ep)) }
	return true
}
