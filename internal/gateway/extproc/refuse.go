package extproc

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// droppedHeader carries the reason why a request was not served, for gateways' dashboards.
const droppedHeader = "x-llm-d-request-dropped-reason"

var (
	errTooLarge = &picker.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error",
		Code: "request_too_large", Message: "The request body is too large."}
	errMemory = &picker.Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable",
		Code: "overloaded", Message: "Too many large requests are under way."}
	errOverload = &picker.Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable",
		Code: picker.CodeOverloaded, Message: "The picker takes no large bodies of clients without a key at the moment."}
	errSuspect = &picker.Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable",
		Code: "engines_broke_off", Message: "Engines aborted while serving this request. It is not sent to others for some minutes."}
	errAdministrative = &picker.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found",
		Message: "There is nothing at this path."}
	errInternal = &picker.Error{Status: http.StatusInternalServerError, Type: "server_error",
		Code: "internal_error", Message: "The request could not be routed."}
)

func isFieldError(err error) bool {
	var field *openai.FieldError
	return errors.As(err, &field)
}

// refusal is what is answered, logged (code) and counted (reason) in place of a pick, in the words of the OpenAI API or of
// the Anthropic one (messages). This is the one place where errors become answers.
func refusal(err error, messages bool) (answer *pb.ImmediateResponse, code, reason string) {
	e := errInternal
	if !errors.As(err, &e) {
		e = errInternal
	}
	after, dropped := e.RetryAfter, ""
	switch {
	case e == errAdministrative:
		reason = RefusedPath
	case e.Code == errSuspect.Code:
		reason = RefusedSuspect
	case e == errMemory:
		reason, dropped = RefusedMemory, "rejected-saturated"
	case e.Code == picker.CodeOverloaded:
		reason, dropped = RefusedOverload, "rejected-saturated"
	case e.Status == http.StatusBadRequest:
		reason = RefusedUnreadable
	case e.Status == http.StatusNotFound:
		reason = RefusedModel
	case e.Status == http.StatusRequestEntityTooLarge:
		reason = RefusedTooLarge
	case e.Status == http.StatusTooManyRequests:
		reason, dropped = RefusedTooMuch, "rejected-saturated"
	case e.Status == http.StatusServiceUnavailable:
		reason, dropped = RefusedNoEndpoint, "rejected-no-endpoints"
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		reason = RefusedTenant
	default:
		reason = RefusedPick
	}
	m := &pb.HeaderMutation{}
	put(m, "content-type", "application/json")
	if after == 0 && (e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable) {
		after = time.Second
	}
	if after > 0 {
		put(m, "retry-after", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	if dropped != "" {
		put(m, droppedHeader, dropped)
	}
	picker.EachRateHeader(e.Rates, func(name, value string) { put(m, name, value) })
	body := openai.AppendError(nil, e.Status, e.Type, e.Code, e.Message)
	if messages {
		body = openai.AppendMessagesError(nil, e.Status, e.Message)
	}
	return &pb.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.Status)},
		Headers: m,
		Body:    body,
		Details: "kvasir_" + reason,
	}, e.Code, reason
}
