package httpproxy

import (
	"net/http"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// giveUp answers when no endpoint has.
func (e *exchange) giveUp() {
	if e.overdue {
		e.client.fail(picker.RequestTimeout())
		return
	}
	if commented := e.client.comments.stop(); commented && e.last != nil {
		e.client.failAs(e.last)
		return
	}
	if s := e.last; s != nil {
		copyHeader(e.client.Header(), s.header)
		if !s.isOfBefore() {
			e.attempt = s.attempt
			e.explain()
		}
		if s.status == http.StatusServiceUnavailable && e.client.Header().Get("Retry-After") == "" {
			e.client.put("Retry-After", "1")
		}
		e.client.WriteHeader(s.status)
		_ = e.client.write(s.body, false)
		return
	}
	e.explain()
	switch {
	case e.local:
		e.client.fail(unavailable("overloaded", "The picker has no connection left for an engine."))
	case e.full:
		e.client.fail(unavailable("engines_full", "The queues of the engines are full."))
	case e.gaveUp:
		e.client.fail(unavailable("engine_gave_up", "The engine has given the request up."))
	case e.timedOut:
		e.client.fail(badGateway("upstream_timeout", "The engine did not answer in time."))
	case e.brokeOff:
		e.client.fail(badGateway("engines_broke_off", "Engines aborted while serving this request."))
	default:
		e.client.fail(badGateway("upstream_failed", "No engine could be reached."))
	}
}

func unavailable(code, message string) *picker.Error {
	return &picker.Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Code: code, Message: message}
}

func badGateway(code, message string) *picker.Error {
	return &picker.Error{Status: http.StatusBadGateway, Type: "bad_gateway", Code: code, Message: message}
}
