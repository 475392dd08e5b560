package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// pipe is what copying one answer needs.
type pipe struct {
	buf    [8 << 10]byte // one per open stream
	answer picker.Answer
}

var pipes = sync.Pool{New: func() any { return new(pipe) }}

// pass copies an answer to the client as it comes and tells how that ended. Each piece is passed on before it is
// looked at.
func (e *exchange) pass(response *http.Response) picker.Outcome {
	p := pipes.Get().(*pipe)
	defer pipes.Put(p)
	contentType := response.Header.Get("Content-Type")
	p.answer.Start(e.decision, response.StatusCode, contentType, strings.Join(response.Header["Content-Encoding"], ","))

	e.startAnswer(response)
	if picker.IsEventStream(contentType) && e.client.flush() != nil {
		return picker.ClientGone
	}
	left := response.ContentLength // -1 when it is not known
	for {
		n, err := response.Body.Read(p.buf[:])
		if n > 0 {
			left -= int64(n)
			if e.client.write(p.buf[:n], left != 0) != nil {
				return picker.ClientGone
			}
			if p.answer.Write(p.buf[:n]) {
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
	outcome, first := p.answer.Close()
	if first {
		e.firstToken()
	}
	return outcome
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
	e.client.span.FirstToken()
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
	e.broke(e.mark)
	return picker.Failed
}
