package request

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Why a request got no decision: the values of a metric label.
const (
	RefusedPath       = "path"        // nothing is at the path, or it administers engines
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
	RefusedTenant     = "tenant"      // an unknown tenant, or one without the right
	RefusedPolicy     = "policy"      // a step of the policy refuses it, or has failed
	RefusedTooMuch    = "too_much"    // over the limits of the tenant, or no place in the pool's queue
	RefusedNoEndpoint = "no_endpoint" // no endpoint can take the request now
	RefusedClientGone = "client_gone" // the client left before the pick
	RefusedSuspect    = "suspect"     // engines have aborted on the same request
	RefusedPick       = "pick"        // the pick failed otherwise
	RefusedPanic      = "panic"       // a bug of the picker, before the pick or after it
)

var (
	// GatewayReasons are all reasons for which extproc calls Refused.
	GatewayReasons = []string{
		RefusedPath, RefusedTooLarge, RefusedSlowBody, RefusedMemory, RefusedOverload, RefusedUnreadable, RefusedModel, RefusedTenant,
		RefusedPolicy, RefusedTooMuch, RefusedNoEndpoint, RefusedClientGone, RefusedSuspect, RefusedPick, RefusedPanic,
	}
	// ProxyReasons are all reasons for which httpproxy does: it also reads the requests from the clients.
	ProxyReasons = append([]string{
		RefusedMethod, RefusedEncoding, RefusedBrokenBody, RefusedShed, RefusedRequests,
	}, GatewayReasons...)
)

// Refusal is why a request is not routed: the error for the client, and the reason that is counted.
type Refusal struct {
	picker.Error
	Reason string
	// Cause is what a client learns nothing of; nil where there is no more than the error.
	Cause error
}

// The refusals of requests for which the picker was not called.
var (
	NotFound = refusal(RefusedPath, http.StatusNotFound, "not_found", "There is nothing at this path.")
	TooLarge = refusal(RefusedTooLarge, http.StatusRequestEntityTooLarge, "request_too_large", "The request body is too large.")
	Memory   = refusal(RefusedMemory, http.StatusServiceUnavailable, picker.CodeOverloaded, "Too many large requests are under way.")
	Overload = refusal(RefusedOverload, http.StatusServiceUnavailable, picker.CodeOverloaded,
		"The picker takes no large bodies of clients without a key at the moment.")
	Encoding = refusal(RefusedEncoding, http.StatusUnsupportedMediaType, "unsupported_encoding",
		"Compressed request bodies are not supported.")
	SlowBody   = refusal(RefusedSlowBody, http.StatusRequestTimeout, "request_timeout", "The request body did not arrive in time.")
	BrokenBody = refusal(RefusedBrokenBody, http.StatusBadRequest, "invalid_request", "The request body could not be read to its end.")
	Shed       = refusal(RefusedShed, http.StatusServiceUnavailable, picker.CodeOverloaded,
		"The request body came too slowly while there was no room for others.")
	TooMany = refusal(RefusedRequests, http.StatusServiceUnavailable, picker.CodeOverloaded, tooMany)
	// NoMemory is for a request without its body, Memory for one with it.
	NoMemory = refusal(RefusedMemory, http.StatusServiceUnavailable, picker.CodeOverloaded, tooMany)
	Panic    = refusal(RefusedPanic, http.StatusInternalServerError, "internal_error", "The request could not be handled.")
)

const tooMany = "Too many requests are under way."

// WrongMethod refuses a request of a method that its path does not take.
func WrongMethod(allowed string) *Refusal {
	return refusal(RefusedMethod, http.StatusMethodNotAllowed, "method_not_allowed", "This path takes "+allowed+" only.")
}

// Suspect refuses a request on which engines have aborted, for a time.
func Suspect(after time.Duration) *Refusal {
	r := refusal(RefusedSuspect, http.StatusServiceUnavailable, "engines_broke_off",
		"Engines aborted while serving this request. It is not sent to others for some minutes.")
	r.RetryAfter = after
	return r
}

// Strayed is the answer in place of an engine of another pool than the one that a request is for.
func Strayed(pool string) *Refusal {
	return refusal(RefusedNoEndpoint, http.StatusServiceUnavailable, "no_endpoint",
		"The gateway has reached no endpoint of pool "+pool+", and has sent the request to another pool.")
}

func refusal(reason string, status int, code, message string) *Refusal {
	kind := "invalid_request_error"
	switch status {
	case http.StatusServiceUnavailable:
		kind = "service_unavailable"
	case http.StatusInternalServerError:
		kind = "server_error"
	}
	return &Refusal{Error: picker.Error{Status: status, Type: kind, Code: code, Message: message}, Reason: reason}
}

// RefusalOf is the refusal for an error of a pick.
func RefusalOf(err error) *Refusal {
	if e := (*picker.Error)(nil); errors.As(err, &e) {
		return &Refusal{Error: *e, Reason: reasonOf(e)}
	}
	r := refusal(RefusedPick, http.StatusInternalServerError, "internal_error", "The request could not be routed.")
	r.Cause = err
	return r
}

// reasonOf is the reason of an error of the picker.
func reasonOf(e *picker.Error) string {
	if e.Code == picker.CodeHook || e.Code == picker.CodeHookFailed {
		return RefusedPolicy
	}
	switch e.Status {
	case http.StatusBadRequest:
		return RefusedUnreadable
	case http.StatusNotFound:
		return RefusedModel
	case http.StatusRequestEntityTooLarge: // another pool takes as much
		return RefusedTooLarge
	case http.StatusTooManyRequests, http.StatusGatewayTimeout: // the time of a route is over while the request waits
		return RefusedTooMuch
	case http.StatusUnauthorized, http.StatusForbidden:
		return RefusedTenant
	case http.StatusServiceUnavailable:
		if e.Code == picker.CodeOverloaded {
			return RefusedOverload
		}
		return RefusedNoEndpoint
	}
	return RefusedPick
}

// RetryAfter is the value of the header Retry-After for an error, empty for none: whole seconds, one where it is not known when a
// shortage ends.
func RetryAfter(e *picker.Error) string {
	after := e.RetryAfter
	if after == 0 && (e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable) {
		after = time.Second
	}
	if after == 0 {
		return ""
	}
	return strconv.Itoa(int(math.Ceil(after.Seconds())))
}
