package httpproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// What is kept of an engine's error answer while the fallbacks are tried.
const (
	keepError     = 64 << 10        // bytes of its body
	keepErrorWait = 2 * time.Second // for them to come
)

var (
	errFirstByte = errors.New("no answer within the policy's time")
	errOver      = errors.New("the attempt is over")
)

// exchange is one request that was picked for.
type exchange struct {
	proxy    *Proxy
	client   *client
	request  *http.Request
	route    openai.Route
	body     *body
	decision *picker.Decision
	start    time.Time
	// attempt is the index of the target that is tried.
	attempt int
	// last is the last server error that an engine has answered with, if it was small enough to keep.
	last *savedAnswer
	// broken: the answer did not go through to its end.
	broken bool
	// timedOut: the last failure was a time-out.
	timedOut bool
	// taken: a connection has taken some of the request's body, in the present attempt.
	taken *atomic.Bool
	// mark of the request, once its body is gone; brokeOff tells that too many engines have broken off on it.
	mark     uint64
	brokeOff bool
}

// savedAnswer is an answer held back.
type savedAnswer struct {
	header  http.Header
	status  int
	body    []byte
	attempt int
}

// run tries the targets in order and passes the answer on. It panics with http.ErrAbortHandler when the answer cannot
// be finished.
func (e *exchange) run(ctx context.Context) {
	outcome := picker.Failed
	observer := e.proxy.options.Observer
	observer.Picked(e.decision)
	e.client.span.Picked(e.decision)
	defer func() {
		e.decision.End(outcome)
		e.client.span.Ended(outcome)
		observer.Ended(e.decision, outcome, e.since())
	}()
	for i := range e.decision.Targets {
		if !e.decision.Begin(i) {
			continue // it drains, or fails, since the pick
		}
		e.attempt = i
		e.client.span.Attempt(e.attempt)
		result := e.try(ctx, &outcome)
		if result == passed {
			return
		}
		if ctx.Err() != nil {
			outcome = picker.ClientGone
			panic(http.ErrAbortHandler) // a client that only half closed must not take silence for an answer
		}
		if e.brokeOff || !e.again(result) {
			break
		}
	}
	e.giveUp()
}

// result is what has become of an attempt.
type result uint8

const (
	passed result = iota // the answer went to the client
	failedConnect
	failedStatus
	failedFirstByte
)

// again tells whether the policy tries another endpoint after a failure.
func (e *exchange) again(r result) bool {
	p := &e.decision.Spec().Policy
	switch r {
	case failedConnect:
		return p.RetryConnect
	case failedStatus:
		return p.RetryServerError
	case failedFirstByte:
		return p.RetryFirstByte
	}
	return false
}

// giveUp answers when no endpoint has.
func (e *exchange) giveUp() {
	if s := e.last; s != nil {
		copyHeader(e.client.Header(), s.header)
		e.attempt = s.attempt
		e.explain()
		e.client.WriteHeader(s.status)
		_ = e.client.write(s.body, false)
		return
	}
	e.explain()
	if e.timedOut {
		e.client.fail(http.StatusBadGateway, "bad_gateway", "upstream_timeout", "The engine did not answer in time.")
		return
	}
	if e.brokeOff {
		e.client.fail(http.StatusBadGateway, "bad_gateway", "engines_broke_off", "Engines have broken off on this request.")
		return
	}
	e.client.fail(http.StatusBadGateway, "bad_gateway", "upstream_failed", "No engine could be reached.")
}

// try sends the request to the present target and passes the answer on, unless it is one to be tried elsewhere.
func (e *exchange) try(ctx context.Context, outcome *picker.Outcome) result {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errOver)
	wait := e.decision.Spec().Policy.FirstByte
	var timer *time.Timer
	if wait > 0 {
		timer = time.AfterFunc(wait, func() { cancel(errFirstByte) })
		defer timer.Stop()
	}
	response, err := e.send(ctx)
	if err == nil && timer != nil && !timer.Stop() {
		err = errFirstByte // it has just come, but its body can be read no more
		_ = response.Body.Close()
	}
	if err != nil {
		return e.failed(ctx, err)
	}
	e.client.span.FirstByte(response.StatusCode)
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < 200 { // 101: nobody asked for another protocol
		return e.failed(ctx, statusError(response.StatusCode))
	}
	if serverError(response.StatusCode) {
		e.decision.Fail()
		if e.attempt+1 < len(e.decision.Targets) && e.again(failedStatus) {
			e.client.span.Failed(strconv.Itoa(response.StatusCode))
			e.save(response, cancel)
			return failedStatus
		}
	}
	e.mark = e.proxy.suspects.mark(e.request, e.body.bytes)
	e.dropBody() // nothing is sent again
	*outcome = e.pass(response)
	if *outcome == picker.Completed {
		e.proxy.suspects.answered(e.mark)
	}
	if *outcome == picker.ClientGone || e.broken {
		panic(http.ErrAbortHandler)
	}
	return passed
}

// serverError tells whether a status is the engine's fault, so that another one may do better. That a feature is not
// there is not.
func serverError(status int) bool {
	return status >= 500 && status != http.StatusNotImplemented && status != http.StatusHTTPVersionNotSupported
}

// send sends the request to the present target.
func (e *exchange) send(ctx context.Context) (*http.Response, error) {
	ep, body, taken := e.decision.Targets[e.attempt].Endpoint, e.body, new(atomic.Bool)
	e.taken = taken
	header := requestHeader(e.request, ep, e.client.id, e.decision.Spec())
	if span := e.client.span; span != nil {
		delete(header, "Tracestate") // of a context that cannot be read
		span.Inject(func(name, value string) { header[http.CanonicalHeaderKey(name)] = []string{value} })
	}
	r := &http.Request{
		Method: e.request.Method, URL: upstreamURL(e.request.URL), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        header,
		Body:          body.reader(taken),
		GetBody:       func() (io.ReadCloser, error) { return body.reader(taken), nil },
		ContentLength: int64(len(body.bytes)),
	}
	return e.proxy.engines.RoundTrip(r.WithContext(ctx), ep)
}

// failed accounts for an attempt without an answer.
func (e *exchange) failed(ctx context.Context, err error) result {
	if e.request.Context().Err() != nil {
		return failedConnect // the client's doing; the caller looks
	}
	e.decision.Fail()
	e.timedOut = errors.Is(err, errFirstByte) || errors.Is(context.Cause(ctx), errFirstByte)
	e.log("Attempt failed", err)
	if e.timedOut {
		e.client.span.Failed("timeout")
		return failedFirstByte
	}
	if status := statusError(0); e.taken.Load() && !errors.As(err, &status) {
		e.broke(e.proxy.suspects.mark(e.request, e.body.bytes))
	}
	e.client.span.Failed("connection")
	return failedConnect
}

// broke tells that the engine has broken off on the request.
func (e *exchange) broke(mark uint64) {
	e.brokeOff = e.proxy.suspects.broke(mark, e.decision.Targets[e.attempt].Endpoint.ID.Pod, e.proxy.options.Now())
	if e.brokeOff {
		e.proxy.options.Log.Info("Engines break off on a request: it is tried on no other", "pool", e.decision.Pool, "for", suspicion.String())
	}
}

// save keeps an error answer in case no other endpoint answers. What is too large or does not come is not kept.
func (e *exchange) save(response *http.Response, cancel context.CancelCauseFunc) {
	e.log("Attempt failed", statusError(response.StatusCode))
	timer := time.AfterFunc(keepErrorWait, func() { cancel(errOver) })
	defer timer.Stop()
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(response.Body, keepError+1))
	if err != nil || n > keepError {
		return
	}
	e.last = &savedAnswer{header: response.Header, status: response.StatusCode, body: buf.Bytes(), attempt: e.attempt}
}

// dropBody gives the request's body back; connections that still send it hold on to it themselves.
func (e *exchange) dropBody() {
	if e.body != nil {
		e.body.release()
		e.body = nil
	}
}

func (e *exchange) since() time.Duration { return e.proxy.options.Now().Sub(e.start) }

func (e *exchange) log(message string, err error) {
	if log := e.proxy.options.Log; log.Enabled() {
		log.Info(message, "pool", e.decision.Pool, "endpoint", e.decision.Targets[e.attempt].Endpoint.ID.String(),
			"attempt", e.attempt+1, "reason", reasonOf(err))
	}
}
