package httpproxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Limits in bytes on how much of an answer is held back until it is known to be a real answer: of a stream, which begins
// with small events, and of JSON, which engines send in one piece. Longer answers are passed on.
const (
	holdStream = 64 << 10
	holdJSON   = 1 << 20
)

// held is an answer whose first byte has not been sent to the client yet. Engines that shut down, are paused or put to
// sleep, or whose queue is full, answer 200 and report in the body that there is no answer: until something was generated
// the request can still be tried elsewhere. Options.Hold bounds the wait, because clients wait for a header no longer than
// for a token; then the answer is sent to the client, whatever it contains. Where comments are sent, nothing bounds it.
type held struct {
	exchange *exchange
	response *http.Response
	limit    int

	mu        sync.Mutex // orders the copying goroutine and the timer
	bytes     []byte
	account   *budget.Account
	committed bool
	stalled   bool  // it is given up because the engine shows no progress
	err       error // of the client's connection, at the commit
}

// hold begins to hold an answer back if it can turn out to be none.
func (e *exchange) hold(response *http.Response, answer *picker.Answer) (h *held, stop func()) {
	h = &held{exchange: e, response: response, limit: holdJSON}
	e.record(response)
	stream := picker.IsEventStream(response.Header.Get("Content-Type"))
	if stream {
		h.limit = holdStream
	}
	if !answer.Holds() || response.ContentLength > int64(h.limit) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.commit(stream)
		return h, func() {}
	}
	stopTimer := func() bool { return true }
	if e.client.comments == nil || !stream { // comments keep the client
		stopTimer = time.AfterFunc(e.proxy.options.Hold, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.commit(true)
		}).Stop
	}
	return h, func() {
		stopTimer()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.abandon()
		h.drop()
	}
}

// add takes received bytes, and sends them on once the answer is committed. h.mu is held.
func (h *held) add(p []byte, flush bool) {
	e := h.exchange
	e.pick.Recording.Write(p)
	if h.committed {
		if h.err == nil {
			h.err = e.client.write(p, flush)
		}
		return
	}
	if h.account == nil {
		h.account = e.proxy.account(budget.Answers, e.client, e.request, nil)
	}
	h.bytes = append(h.bytes, p...)
	if !h.account.Take(int64(len(p))) || len(h.bytes) > h.limit {
		h.commit(flush)
	}
}

// commit sends the header and what is held. From now on nothing is tried elsewhere. h.mu is held.
func (h *held) commit(flush bool) {
	if h.committed {
		return
	}
	h.committed = true
	e := h.exchange
	e.dropBody()
	if !e.client.comments.stop() {
		e.startAnswer(h.response)
	}
	if len(h.bytes) > 0 {
		h.err = e.client.write(h.bytes, flush)
	} else if flush {
		h.err = e.client.flush()
	}
	h.drop()
}

// abandon ends the hold without sending anything: from now on the timer does nothing. It is called before the lock is
// released with the decision to try elsewhere, or the timer could begin the answer after that. h.mu is held.
func (h *held) abandon() { h.committed = true }

// drop gives back what is held. h.mu is held.
func (h *held) drop() {
	h.account.Close()
	h.bytes = nil
}

// pipe is what copying one answer needs.
type pipe struct {
	buf    [8 << 10]byte // one per open stream
	answer picker.Answer
}

var pipes = sync.Pool{New: func() any { return new(pipe) }}

// pass copies an answer to the client as it arrives, once it is known to be a real answer; from then on each piece is sent
// before it is parsed. It returns how the request has ended, or what another endpoint can do better; then nothing was sent.
func (e *exchange) pass(ctx context.Context, response *http.Response, watch *stallWatch) (picker.Outcome, result) {
	p := pipes.Get().(*pipe)
	defer pipes.Put(p)
	p.answer.Start(e.decision, response.StatusCode, response.Header.Get("Content-Type"),
		strings.Join(response.Header["Content-Encoding"], ","))
	e.cuts = e.asksUsage && p.answer.CutsUsage()
	e.follow(ctx, response, &p.answer)
	h, stop := e.hold(response, &p.answer)
	defer stop()
	if !watch.answers(h) {
		return picker.Failed, e.failed(ctx, errStalled)
	}
	left := response.ContentLength // -1 when it is not known
	rest := 0                      // bytes of an event that might be taken out, at the beginning of the buffer
	for {
		n, err := response.Body.Read(p.buf[rest:])
		h.mu.Lock()
		if h.stalled {
			h.abandon()
			h.mu.Unlock()
			return picker.Failed, e.failed(ctx, errStalled)
		}
		left -= int64(n)
		if e.cuts {
			rest = e.takeCut(h, p, rest, n, err)
		} else {
			e.take(h, p, n, left != 0)
		}
		if err == nil && !h.committed {
			if r := e.judge(&p.answer, h, false); r != passed {
				h.mu.Unlock()
				return picker.Failed, e.elsewhere(&p.answer, h, r)
			}
		}
		committed, gone := h.committed, h.err != nil
		if err != nil && err != io.EOF {
			h.abandon()
		}
		h.mu.Unlock()
		switch {
		case gone:
			return picker.ClientGone, passed
		case err == io.EOF:
			return e.finish(&p.answer, h)
		case err != nil && committed:
			return e.brokenOff(err), passed
		case err != nil:
			return picker.Failed, e.failed(ctx, err)
		}
	}
}

// take takes the next n bytes of an answer, which it sends on before they are parsed. h.mu is held.
func (e *exchange) take(h *held, p *pipe, n int, flush bool) {
	if n == 0 {
		return
	}
	h.add(p.buf[:n], flush)
	if h.err == nil && p.answer.Write(p.buf[:n]) {
		e.firstToken()
	}
}

// takeCut takes the next n bytes of a stream, behind the rest of those before, and sends on what is not of the usage event. It
// returns the new rest. h.mu is held.
func (e *exchange) takeCut(h *held, p *pipe, rest, n int, end error) int {
	first := false
	if n > 0 {
		var out, held []byte
		out, held, first = p.answer.WriteCut(p.buf[:rest+n], rest)
		if len(out) > 0 {
			h.add(out, true)
		}
		rest = copy(p.buf[:], held)
	}
	if end != nil {
		out := p.buf[:rest]
		if errors.Is(end, io.EOF) {
			var late bool
			out, late = p.answer.CloseCut(out)
			first = first || late
		}
		if len(out) > 0 {
			h.add(out, true)
		}
	}
	if first && h.err == nil {
		e.firstToken()
	}
	return rest
}

// judge looks at an answer that is held back: it is committed when it is valid, or when no other endpoint can do better.
// h.mu is held.
func (e *exchange) judge(a *picker.Answer, h *held, ended bool) result {
	r := passed
	switch a.Verdict(ended) {
	case picker.Undecided:
		return passed
	case picker.GaveUp:
		r = failedGaveUp
	case picker.Erred:
		r = failedStatus
	case picker.Refused:
		r = failedFull
	}
	if r == passed || r == failedStatus && !e.more(r) {
		h.commit(!ended)
		return passed
	}
	h.abandon()
	return r
}

// finish accounts for a complete answer.
func (e *exchange) finish(a *picker.Answer, h *held) (picker.Outcome, result) {
	h.mu.Lock()
	r := passed
	if !h.committed {
		r = e.judge(a, h, true)
	}
	gone := h.err != nil
	h.mu.Unlock()
	if gone {
		return picker.ClientGone, passed
	}
	if r != passed {
		return picker.Failed, e.elsewhere(a, h, r)
	}
	outcome, first := a.Close()
	if first {
		e.firstToken()
	}
	e.store(a, h.response, outcome)
	return outcome, passed
}

// elsewhere accounts for an answer that was not sent at all, when another endpoint can do better.
func (e *exchange) elsewhere(a *picker.Answer, h *held, r result) result {
	if e.request.Context().Err() != nil {
		return r // engines give up what clients have left; the caller looks
	}
	a.Close()
	var err error
	switch r {
	case failedGaveUp:
		e.gaveUp, err = true, errGaveUp
	case failedFull:
		err = errFull
	default:
		err = errEvent
		e.last = &savedAnswer{header: h.response.Header, status: h.response.StatusCode, body: h.bytes, attempt: e.attempt}
	}
	e.log("Attempt failed", err)
	e.client.span.Failed(err.Error())
	return r
}
