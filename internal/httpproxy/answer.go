package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// pipe is what copying one answer needs.
type pipe struct {
	buf     [8 << 10]byte // one per open stream
	scanner openai.AnswerScanner
}

var pipes = sync.Pool{New: func() any { return new(pipe) }}

// pass copies an answer to the client as it comes and tells how that ended. Each piece is passed on before it is
// looked at.
func (e *exchange) pass(response *http.Response) picker.Outcome {
	p := pipes.Get().(*pipe)
	defer pipes.Put(p)
	sse := isEventStream(response.Header)
	plain := len(response.Header["Content-Encoding"]) == 0
	p.scanner.Reset(e.route, sse)

	e.startAnswer(response)
	if sse && e.client.flush() != nil {
		return picker.ClientGone
	}
	left := response.ContentLength // -1 when it is not known
	first := sse
	for {
		n, err := response.Body.Read(p.buf[:])
		if n > 0 {
			left -= int64(n)
			if e.client.write(p.buf[:n], left != 0) != nil {
				return picker.ClientGone
			}
			if plain && p.scanner.Write(p.buf[:n]) || !plain && first {
				first = false
				e.firstToken()
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return e.brokenOff(err)
		}
	}
	return e.finished(&p.scanner, response.StatusCode)
}

// startAnswer sends the answer's header.
func (e *exchange) startAnswer(response *http.Response) {
	h := e.client.Header()
	copyHeader(h, response.Header)
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // else net/http would guess one
	}
	if _, ok := h["X-Request-Id"]; !ok {
		h["X-Request-Id"] = []string{e.client.id}
	}
	e.explain()
	e.client.WriteHeader(response.StatusCode)
}

func (e *exchange) firstToken() {
	e.decision.FirstToken()
	e.proxy.options.Observer.FirstToken(e.decision, e.since())
}

// brokenOff tells why an answer has stopped before its end.
func (e *exchange) brokenOff(err error) picker.Outcome {
	if e.request.Context().Err() != nil {
		return picker.ClientGone
	}
	e.broken = true
	e.decision.Fail()
	e.log("Answer broke off", err)
	return picker.Failed
}

// finished accounts for an answer that has gone through to its end.
func (e *exchange) finished(s *openai.AnswerScanner, status int) picker.Outcome {
	if s.Close() {
		e.firstToken()
	}
	switch {
	case status >= 500:
		return picker.Failed
	case status >= 400:
		return picker.Rejected
	case s.Failed || s.Aborted:
		// The status was sent before the engine failed, or was shut down.
		e.decision.Fail()
		return picker.Failed
	}
	if s.Usage.Have {
		cached := -1
		if s.Usage.HaveCached {
			cached = s.Usage.CachedTokens
		}
		e.decision.Usage(s.Usage.PromptTokens, cached)
	}
	return picker.Completed
}

func isEventStream(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}
