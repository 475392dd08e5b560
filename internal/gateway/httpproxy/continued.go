package httpproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// errAborted is the reason of an answer that its engine has ended before its end.
var errAborted = errors.New("the engine has aborted the answer")

// continued is the body of a stream that another engine continues when its own aborts it. It gives out whole events, so that
// the client never has a part of one:
//
//	events of an engine --> complete
//	   ^        | connection ends, abort, error
//	   |        v
//	   '-- next target begins the rest          none is left, or the rest could differ --> the break is passed on
type continued struct {
	exchange *exchange
	ctx      context.Context
	answer   *picker.Answer
	state    *openai.Continuation
	body     *body // of the request for all of the answer
	source   io.ReadCloser
	cancel   context.CancelFunc // of the present attempt, if it is not the first

	in  []byte // the beginning of an event
	out []byte // whole events for the client
	// broken is why the present engine's answer has ended early; withheld is its last event, which the client gets if no
	// other engine continues.
	broken   error
	withheld []byte
	// tried: another engine was asked for the rest. begins: its first token has not arrived yet.
	tried, begins bool
	end           error // what Read returns once out is empty
}

// follow makes an answer one that can be continued, if the policy and the request let it.
func (e *exchange) follow(ctx context.Context, response *http.Response, answer *picker.Answer) {
	if !e.decision.Spec().Policy.ContinueStreams || e.route != openai.Completions || e.pick.Unparsed || e.body == nil ||
		!isPlainStream(response) || response.ContentLength >= 0 || e.attempt+1 >= len(e.decision.Targets) {
		return
	}
	state := openai.Continuable(e.body.Bytes, e.asksUsage)
	if state == nil || !e.body.account.Take(4*int64(state.Most())) { // the tokens of the answer
		return
	}
	e.body.refs.Add(1)
	response.Body = &continued{exchange: e, ctx: ctx, answer: answer, state: state, body: e.body, source: response.Body}
}

// Read implements io.Reader.
func (c *continued) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if c.end != nil {
			return 0, c.end
		}
		if c.broken != nil {
			c.goOn()
			continue
		}
		n, err := c.source.Read(p)
		c.in = append(c.in, p[:n]...)
		c.events()
		switch {
		case err == nil || c.broken != nil:
		case !c.state.Ready():
			c.giveRest()
			if c.end = err; c.tried && !c.state.Ended() && errors.Is(err, io.EOF) {
				c.end = io.ErrUnexpectedEOF
			}
		default:
			c.in, c.broken = nil, err
			if errors.Is(err, io.EOF) {
				c.broken = io.ErrUnexpectedEOF
			}
		}
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	if len(c.out) == 0 {
		c.out = nil
	}
	return n, nil
}

// events moves the whole events from in to out, until one says that the engine has given up.
func (c *continued) events() {
	for c.broken == nil {
		at, length := eventEnd(c.in)
		if at < 0 {
			break
		}
		event := c.in[:at+length]
		c.take(event, c.in[:at])
		c.in = c.in[at+length:]
	}
	if len(c.in) > openai.MaxEvent {
		c.unknown()
		c.giveRest()
	}
}

// unknown takes what is not an event that can be followed: the client gets it of the first engine only.
func (c *continued) unknown() {
	c.state.Lose()
	if c.tried {
		c.broken = openai.ErrContinue
	}
}

// giveRest gives the client what is no whole event, if it is of the first engine.
func (c *continued) giveRest() {
	if !c.tried {
		c.out = append(c.out, c.in...)
	}
	c.in = nil
}

// eventEnd finds the blank line behind an event.
func eventEnd(b []byte) (at, length int) {
	at = -1
	for _, blank := range []string{"\n\n", "\r\n\r\n", "\r\r"} {
		if i := bytes.Index(b, []byte(blank)); i >= 0 && (at < 0 || i < at) {
			at, length = i, len(blank)
		}
	}
	return at, length
}

// take takes one event. lines are its own, without the blank one.
func (c *continued) take(event, lines []byte) {
	data, ok := bytes.CutPrefix(lines, []byte("data:"))
	if !ok || bytes.ContainsAny(data, "\r\n") {
		if len(lines) > 0 && lines[0] != ':' { // comments are no part of the answer
			c.unknown()
		}
		if c.broken == nil {
			c.out = append(c.out, event...)
		}
		return
	}
	data = bytes.TrimPrefix(data, []byte(" "))
	before := c.state.Sent()
	got, gaveUp, err := c.state.Event(data)
	if c.begins && c.state.Sent() > before {
		c.begins = false
		c.exchange.decision.FirstToken()
	}
	switch {
	case err != nil:
		c.broken = err
	case gaveUp && c.state.Ready():
		c.broken, c.withheld = errAborted, bytes.Clone(event)
	case len(got) == len(data) && bytes.Equal(got, data):
		c.out = append(c.out, event...)
	default:
		c.out = append(append(append(c.out, "data: "...), got...), "\n\n"...)
	}
}

// goOn continues at the next target that takes the request, or passes the break on.
func (c *continued) goOn() {
	e, cause := c.exchange, c.broken
	c.broken = nil
	first, accounted := !c.tried, false
	for i := e.attempt + 1; i < len(e.decision.Targets) && c.state.Ready() && c.ctx.Err() == nil; i++ {
		if !accounted {
			e.aborted(cause)
			accounted = true
		}
		if e.brokeOff || !e.decision.MayRetry() {
			break
		}
		if !e.decision.Begin(i) {
			continue
		}
		e.attempt, e.accounted = i, false
		err := c.try()
		if err == nil {
			e.pick.Recording.Drop(respcache.Incomplete)
			e.log("Answer continued from the tokens that the client has", cause)
			c.answer.Moved()
			c.in, c.withheld, c.begins = nil, nil, true
			return
		}
		c.failed(err)
	}
	c.state.Lose()
	c.end = cause
	if first && errors.Is(cause, errAborted) { // the client sees how the engine has ended the answer
		c.out, c.end = append(c.out, c.withheld...), nil
		if c.tried {
			c.end = io.EOF
		}
	} else {
		c.in = nil
	}
	c.withheld = nil
}

// failed accounts for an attempt at the rest that has no answer.
func (c *continued) failed(err error) {
	e := c.exchange
	if e.request.Context().Err() != nil {
		return // the client's doing
	}
	e.accounted = true
	e.log("Attempt failed", err)
	e.client.span.Failed("continued")
	var status statusError
	if c.ctx.Err() != nil || transport.LocalFault(err) || errors.As(err, &status) && !picker.ServerError(int(status)) {
		e.decision.Abandon()
		return
	}
	e.decision.Fail()
}

// try asks the present target for the rest of the answer.
func (c *continued) try() error {
	e := c.exchange
	text, err := c.state.Body(c.body.Bytes)
	if err != nil {
		return fmt.Errorf("making the request for the rest: %w", err)
	}
	rest := &body{proxy: e.proxy}
	rest.refs.Store(1)
	rest.account = e.proxy.account(budget.Bodies, e.client, e.request, nil)
	defer rest.release()
	if !rest.Replace(rest.account.Take, text) {
		return errors.New("there is no memory for the request for the rest")
	}
	c.close()
	c.tried = true
	ctx, cancel := context.WithCancelCause(c.ctx)
	c.cancel = func() { cancel(errOver) }
	if wait := e.decision.Spec().Policy.FirstByte; wait > 0 {
		timer := time.AfterFunc(wait, func() { cancel(errFirstByte) })
		defer timer.Stop()
	}
	e.client.span.Attempt(e.attempt)
	response, err := e.sendBody(ctx, rest) //nolint:bodyclose // close closes it as the source
	if err != nil {
		return err
	}
	c.source = response.Body
	if !isPlainStream(response) {
		return statusError(response.StatusCode)
	}
	return nil
}

// close ends the present attempt.
func (c *continued) close() {
	_ = c.source.Close()
	if c.cancel != nil {
		c.cancel()
		c.cancel = nil
	}
}

// Close implements io.Closer.
func (c *continued) Close() error {
	c.close()
	if c.body != nil {
		c.body.release()
		c.body = nil
	}
	return nil
}
