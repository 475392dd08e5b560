package httpproxy

import (
	"context"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// rename puts the name of a backend in place of the model in the body.
func (e *exchange) rename(r *openai.Request, model string) (body []byte, room bool) {
	if !e.ownBody() {
		return nil, false
	}
	if !e.changed {
		e.mark, e.changed = e.marked(), true
	}
	if !e.body.Rename(e.body.account.Take, r, model) {
		return nil, false
	}
	e.pick.Body = e.body.Bytes
	return e.body.Bytes, true
}

// ownBody makes the body one that can be changed. A connection whose attempt was given up can still read it; only then it is copied. It
// fails if there is no room for that.
func (e *exchange) ownBody() bool {
	if e.body.refs.Load() == 1 {
		return true
	}
	own := e.legBody(len(e.body.Bytes), func(dst []byte) []byte { return append(dst, e.body.Bytes...) })
	if own == nil {
		return false
	}
	e.mark, e.changed = e.marked(), true
	e.body.release()
	e.body, e.pick.Body = own, own.Bytes
	return true
}

// fallBack ends the decision if the request can go to a fallback of its route, after a failure of the last target. A request on which
// engines have aborted goes nowhere else.
func (e *exchange) fallBack(r result) bool {
	if e.brokeOff || r == failedLocal || r == failedLeg || !e.again(r) || !e.proxy.picker.FallsBack(&e.pick, e.full) {
		return false
	}
	if r.costs() && (e.unretried || !e.mayRetry()) {
		return false
	}
	if e.fallen = e.proxy.picker.FallBack(&e.pick, e.full); e.fallen { // its time can have ended just now
		e.leave()
	}
	return e.fallen
}

// leave ends the decision of a request that goes to a fallback of its route. A pick that has gone there can have ended it before.
func (e *exchange) leave() {
	e.dropHandedOver()
	e.decision.End(picker.Failed)
	after := e.since()
	e.client.usage.Ended(e.decision, picker.Failed, after)
	e.proxy.options.Observer.Ended(e.decision, picker.Failed, after)
}

// pickAgain chooses other targets for the request, after it waited until there is room, if none is free now. The pick can go to a
// fallback of the request's route by itself.
func (e *exchange) pickAgain(ctx context.Context, in picker.Request) error {
	before, handedOver := e.decision, in.HandedOver
	if !handedOver { // of a second leg or a pull that has failed
		e.dropHandedOver()
	}
	in.Again, in.Steps, in.Streams, in.Headers = before, nil, nil, nil // what comes after a failure is not looked up
	if e.fallen {
		in.Again = nil
	}
	d, err := e.proxy.picker.Pick(ctx, &in)
	left := in.Again == nil
	if handedOver && (err != nil || left) {
		before.Handoff(picker.NoDecoder(ctx))
	}
	if err != nil {
		return err
	}
	if left && !e.fallen {
		e.leave()
	}
	if left {
		e.pick.Recording.Drop(respcache.Incomplete)
	}
	if left || !e.last.isOfBefore() {
		e.last = nil
	}
	e.decision, e.attempt, e.fallen = d, 0, false
	if left {
		e.tried, e.room = nil, 0
		return e.moved()
	}
	if handedOver && d.Leg() != picker.DecodeLeg { // only the endpoint that has prefilled is left
		e.dropHandedOver()
		e.pick.Splits = false
	}
	return nil
}

// moved prepares the request for a backend of its route that is another one than before.
func (e *exchange) moved() error {
	e.client.span.Picked(e.decision)
	e.proxy.options.Observer.Picked(e.decision)
	e.rewritten = false
	if !e.ownBody() || !e.rewrite() {
		e.decision.End(picker.Failed)
		return &request.Memory.Error
	}
	return nil
}

// within is the context for the attempts of a request, which ends with the time that its route sets.
func (e *exchange) within(ctx context.Context) (context.Context, context.CancelFunc) {
	left, limited := e.proxy.picker.TimeLeft(&e.pick)
	if !limited {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, left, errOverdue)
}
