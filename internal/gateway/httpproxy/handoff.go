package httpproxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// decodeAttempts is how many engines are tried with the same parameters. At most one of them takes the connection.
const decodeAttempts = 2

// handedOver is a request whose first leg has ended: the body of the second.
type handedOver struct {
	body *body
	at   time.Time
}

// replan prepares the next pick after the targets of a decision: for the second leg, for the request alone if a leg has failed, or
// for other targets. It reports false if no pick can help. That a leg has failed is no failure of the request, whatever
// the policy retries: without the hand-off, it would not have happened.
func (e *exchange) replan(r result, in *picker.Request) bool {
	switch leg := e.decision.Leg(); {
	case r == passedOn:
		in.HandedOver = true
		return true
	case leg == picker.Whole:
		return e.pickableAgain() || e.toOthers(r, in)
	case leg == picker.PrefillLeg:
		if r != failedLeg {
			e.decision.Handoff(picker.HandoffPrefillFailed)
		}
		if e.brokeOff {
			return false
		}
	case e.forgetFirst(), e.brokeOff:
		return false
	case r.costs() && !r.answered() && (e.unretried || !e.decision.MayRetry()): // an engine that answers has computed nothing
		return false
	}
	e.dropHandedOver()
	e.pick.Splits, in.Splits = false, false
	return true
}

// resends reports whether the present leg can be sent to another target after a failure. Parameters that have reached one endpoint are
// of no use to another one: once the blocks are read, or the request is refused, they are free, and an engine that reads them then
// answers with whatever has taken their place, without an error. A second time-out of a leg would double the client's wait.
func (e *exchange) resends(r result) bool {
	switch e.decision.Leg() {
	case picker.DecodeLeg:
		return r == failedConnect && e.decision.FirstLeg() == nil && e.attempt+1 < decodeAttempts && e.blocksLast()
	case picker.PrefillLeg:
		return r != failedFirstByte && e.again(r)
	}
	return e.again(r)
}

// blocksLast reports whether the engine that has prefilled can be counted on to hold the blocks.
func (e *exchange) blocksLast() bool {
	return e.proxy.options.Now().Sub(e.handed.at) < picker.BlocksLast
}

// prefill sends the first leg to the present target, and prepares the second.
func (e *exchange) prefill(ctx context.Context) result {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errOver)
	if wait := e.decision.Spec().Policy.FirstByte; wait > 0 {
		timer := time.AfterFunc(wait, func() { cancel(errFirstByte) })
		defer timer.Stop()
	}
	watch := e.watchStall(cancel)
	defer watch.stop()
	asked := e.legBody(len(e.body.Bytes)+openai.HandoffBytes, func(dst []byte) []byte {
		return openai.AppendPrefill(dst, e.route, e.body.Bytes, openai.AsksPrefill)
	})
	if asked == nil {
		return e.noMemory()
	}
	response, err := e.sendBody(ctx, asked)
	asked.release()
	if err != nil {
		return e.failed(ctx, err)
	}
	defer func() { _ = response.Body.Close() }()
	account := e.proxy.account(budget.Answers, e.client, e.request, nil)
	defer account.Close()
	if !account.Take(relay.MaxPrefillAnswer) {
		return e.noMemory()
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, relay.MaxPrefillAnswer+1))
	if err != nil {
		return e.failed(ctx, err)
	}
	return e.prefilled(response, answer)
}

// prefilled takes the answer to the first leg.
func (e *exchange) prefilled(response *http.Response, answer []byte) result {
	var a picker.Answer
	a.Start(e.decision, response.StatusCode, response.Header.Get("Content-Type"), strings.Join(response.Header["Content-Encoding"], ","))
	a.Write(answer)
	verdict := a.Verdict(true)
	a.Close()
	switch {
	case verdict == picker.Refused:
		return failedFull
	case verdict == picker.GaveUp, verdict == picker.Erred:
		e.log("Attempt failed", statusError(response.StatusCode))
		e.client.span.Failed("prefill")
		return failedGaveUp
	case len(answer) > relay.MaxPrefillAnswer:
		return e.noMemory()
	}
	if response.StatusCode != http.StatusOK { // an error that is the request's fault, which the request alone gets as well
		e.decision.Handoff(picker.HandoffPrefillFailed)
		return failedLeg
	}
	parameters, owed := openai.HandoffParameters(answer)
	if parameters == nil {
		e.decision.Handoff(picker.HandoffNoParameters)
		e.decision.Unconnected(owed)
		return failedLeg
	}
	body := e.legBody(len(e.body.Bytes)+len(parameters)+openai.HandoffBytes, func(dst []byte) []byte {
		return openai.AppendDecode(dst, e.body.Bytes, parameters)
	})
	if body == nil {
		return e.noMemory()
	}
	e.handed = &handedOver{body: body, at: e.proxy.options.Now()}
	return passedOn
}

// noMemory ends a leg for which there is no room.
func (e *exchange) noMemory() result {
	e.decision.Handoff(picker.HandoffNoMemory)
	return failedLeg
}

// legBody makes the body of a leg, of at most size bytes; nil if there is no room for it.
func (e *exchange) legBody(size int, appendTo func(dst []byte) []byte) *body {
	b := &body{proxy: e.proxy}
	b.refs.Store(1)
	b.account = e.proxy.account(budget.Bodies, e.client, e.request, nil)
	if !b.Grow(b.account.Take, size) {
		b.release()
		return nil
	}
	b.Bytes = appendTo(b.Bytes)
	return b
}

// dropHandedOver releases the body of the second leg.
func (e *exchange) dropHandedOver() {
	if e.handed != nil {
		e.handed.body.release()
		e.handed = nil
	}
}
