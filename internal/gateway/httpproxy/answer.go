package httpproxy

import (
	"context"
	"errors"
	"net/http"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// startAnswer sends the answer's header.
func (e *exchange) startAnswer(response *http.Response) {
	h := e.client.Header()
	copyHeader(h, response.Header)
	if e.cuts {
		delete(h, "Content-Length") // net/http frames the answer
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // else net/http would guess one
	}
	if _, ok := h["X-Request-Id"]; !ok {
		h["X-Request-Id"] = []string{e.client.id}
	}
	e.decision.EachRateHeader(e.client.put)
	e.explain()
	if e.pick.Recording != nil {
		e.client.put(picker.CacheHeader, "miss")
	}
	e.client.WriteHeader(response.StatusCode)
}

func (e *exchange) firstToken() {
	after := e.since()
	e.client.span.FirstToken()
	e.client.usage.FirstToken(after)
	e.proxy.options.Observer.FirstToken(e.decision, after)
}

// brokenOff reports why an answer has stopped before its end.
func (e *exchange) brokenOff(err error) picker.Outcome {
	if e.request.Context().Err() != nil {
		return picker.ClientGone
	}
	e.broken = true
	if errors.Is(err, errOverdue) || errors.Is(err, context.DeadlineExceeded) { // no fault of the engine
		e.decision.Abandon()
		e.accounted = true
	}
	if !e.accounted {
		e.aborted(err)
	}
	return picker.Failed
}

// aborted accounts for an answer that the present target has begun and not ended.
func (e *exchange) aborted(err error) {
	e.accounted = true
	e.decision.Fail()
	e.log("Answer aborted", err)
	e.client.span.Failed("aborted")
	if !errors.Is(err, errAborted) { // no crash
		e.broke(e.mark)
	}
}
