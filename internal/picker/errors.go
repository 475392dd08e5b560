package picker

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Error is why a request was not picked for, with its HTTP status. Its message is for the client and never contains request
// content.
type Error struct {
	// Status is 400 (cannot be read), 401 (unknown tenant), 403 (not this model), 404 (no such model), 413 (too large for the
	// pool), 429 (too much), 503 (no endpoint can serve it now), or that of a step of the policy.
	Status int
	// Type and Code are those of the OpenAI API's error objects.
	Type, Code string
	Message    string
	// RetryAfter is when to retry; 0 where that is not known.
	RetryAfter time.Duration
	// Rates of the tenant, if it has exceeded them.
	Rates tenant.Rates
}

func (e *Error) Error() string { return e.Message }

func badRequest(err error) *Error {
	return &Error{Status: 400, Type: "invalid_request_error", Code: "invalid_request", Message: err.Error()}
}

// UnknownModel is the error for a model that does not exist, or that the client is not allowed to see.
func UnknownModel(model string) *Error {
	const longest = 256
	if len(model) > longest {
		model = model[:longest] + "..."
	}
	return &Error{Status: 404, Type: "invalid_request_error", Code: codeModelUnknown,
		Message: fmt.Sprintf("The model %q does not exist.", model)}
}

func tooLarge(limit int64) *Error {
	return &Error{Status: 413, Type: "invalid_request_error", Code: "request_too_large",
		Message: fmt.Sprintf("The request body is larger than the %d bytes that this model's pool takes.", limit)}
}

// CodeOverloaded is the code of errors that have no other cause than a shortage of the picker's own.
const CodeOverloaded = "overloaded"

func lowPriority() *Error {
	return &Error{Status: 503, Type: "service_unavailable", Code: CodeOverloaded, RetryAfter: time.Second,
		Message: "The picker takes no requests of low priority at the moment."}
}

func noEndpoint(pool string) *Error {
	return &Error{Status: 503, Type: "service_unavailable", Code: codeNoEndpoint,
		Message: fmt.Sprintf("No endpoint of pool %s can take requests at the moment.", pool)}
}

func noPool() *Error {
	return &Error{Status: 503, Type: "service_unavailable", Code: codeNoPool, Message: "There is no pool to serve the request."}
}

func queueFull(pool string, after time.Duration) *Error {
	return &Error{Status: 429, Type: "rate_limit_error", Code: codeQueueFull, RetryAfter: after,
		Message: fmt.Sprintf("Pool %s is full, and too many requests wait for it already.", pool)}
}

func tooLate(pool string, after time.Duration) *Error {
	return &Error{Status: 429, Type: "rate_limit_error", Code: codeQueueTimeout, RetryAfter: after,
		Message: fmt.Sprintf("Pool %s is full, and the request has waited for the longest time allowed.", pool)}
}

// Codes of errors about models, and of refusals of tenants' requests besides those of tenant.Reason.
const (
	codeUnknownTenant  = "invalid_api_key"
	codeModelUnknown   = "model_not_found"
	codeModelForbidden = "model_not_allowed"
	codeUnsalted       = "cache_salt_unsupported"
	codeNoPool         = "no_pool"
	codeNoEndpoint     = "no_endpoint"
	codeQueueFull      = "queue_full"
	codeQueueTimeout   = "queue_timeout"
)

// Codes of refusals by the limits of a route.
const (
	codeRouteRate       = "route_requests_per_minute"
	codeRouteConcurrent = "route_max_concurrent"
)

// CodeHook and CodeHookFailed are the codes of refusals by a step of the policy, and by its failure.
const (
	CodeHook       = "refused_by_policy"
	CodeHookFailed = "policy_step_failed"
)

func hookRefused(by hooks.Refusal) *Error {
	kind := "invalid_request_error"
	switch by.Status {
	case 429:
		kind = "rate_limit_error"
	case 503:
		kind = "service_unavailable"
	}
	return &Error{Status: by.Status, Type: kind, Code: CodeHook, Message: by.Message}
}

func hookFailed() *Error {
	return &Error{Status: 403, Type: "invalid_request_error", Code: CodeHookFailed,
		Message: "A step of the policy could not be taken for this request, and the policy refuses such requests."}
}

// unknown is the error for a client that is no tenant.
func (t *TenantsSpec) unknown() *Error {
	switch {
	case t.Certificate:
		return unknownTenant("The client's certificate is missing or not known.")
	case t.byToken():
		return unknownTenant("The token is missing or not valid here.")
	case t.Header != "":
		return unknownTenant("The request names no tenant that is known.")
	}
	return unknownTenant("The API key is missing or not known.")
}

func unknownTenant(message string) *Error {
	return &Error{Status: 401, Type: "invalid_request_error", Code: codeUnknownTenant, Message: message}
}

func modelForbidden(model string) *Error {
	message := fmt.Sprintf("This API key is not allowed to use the model %q.", model)
	if model == "" {
		message = "This API key is allowed to use some models only, and the request names none that can be read."
	}
	return &Error{Status: 403, Type: "invalid_request_error", Code: codeModelForbidden, Message: message}
}

func transferForbidden() *Error {
	return &Error{Status: 400, Type: "invalid_request_error", Code: "field_not_allowed",
		Message: "Requests must not set fields that control the engines' KV transfers, such as kv_transfer_params."}
}

func reportForbidden() *Error {
	return &Error{Status: 400, Type: "invalid_request_error", Code: "field_not_allowed",
		Message: "Requests must not ask engines for reports of cached blocks (kv_cache_report_mode), nor have a cache_salt, session_id or " +
			"uuid of more than 1024 bytes: engines repeat these in their events."}
}

// unsalted is the error for a request that cannot get its tenant's cache salt.
func unsalted(why string) *Error {
	return &Error{Status: 400, Type: "invalid_request_error", Code: codeUnsalted,
		Message: "The policy separates the caches of tenants, which is not possible for this request: " + why}
}

func priorityForbidden() *Error {
	return &Error{Status: 400, Type: "invalid_request_error", Code: "field_not_allowed",
		Message: "Forms may not set priority."}
}

func originForbidden() *Error {
	return &Error{Status: 403, Type: "invalid_request_error", Code: "origin_not_allowed",
		Message: "Pages of this origin are not allowed to send requests here."}
}

func overLimit(reason tenant.Reason, after time.Duration, rates tenant.Rates) *Error {
	message := map[tenant.Reason]string{
		tenant.TooManyRequests: "The tenant's requests per minute are used up.",
		tenant.TooManyTokens:   "The tenant's tokens per minute are used up.",
		tenant.TooManyAtOnce:   "Too many of the tenant's requests are under way.",
	}[reason]
	return &Error{Status: 429, Type: "rate_limit_error", Code: reason.String(), RetryAfter: after, Rates: rates, Message: message}
}

// PoolError is why a pool was not applied.
type PoolError struct {
	Namespace, Pool string
	Err             error
}

func (e *PoolError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *PoolError) Unwrap() error { return e.Err }

// PoolErrors are those that an error of Apply joins.
func PoolErrors(err error) []*PoolError {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var all []*PoolError
	for _, err := range joined.Unwrap() {
		if e := (*PoolError)(nil); errors.As(err, &e) {
			all = append(all, e)
		}
	}
	return all
}
