package extproc

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/gateway/h2stream"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// The response half of an exchange: what the gateway shows of the answer, and the account of the request's end.

func (x *exchange) responseHeaders(m *pb.ProcessingRequest, h *pb.HttpHeaders) {
	if x.response != begin {
		return
	}
	x.response = inBody
	x.server.gateways.learn(x.route())
	switch {
	case x.request == done:
	case x.silent && x.request == inBody: // no more of the request is shown
		x.off(func() {
			x.bodyComplete(&picker.Request{Unparsed: true, Hidden: x.hidden(false)}, nil)
			x.answerBegins(m, h)
		})
		return
	default: // the gateway has answered by itself
		x.request = done
		x.body.release(x.out)
	}
	x.answerBegins(m, h)
}

// answerBegins accounts for the headers of an answer.
func (x *exchange) answerBegins(m *pb.ProcessingRequest, h *pb.HttpHeaders) {
	d := x.decision
	if d == nil {
		x.send(responseHeadersAnswer(nil))
		return
	}
	if address := servedBy(m); address != "" && !x.silent {
		for _, passed := range d.Served(address, x.named, attemptsOf(m)) {
			x.server.probes.judge(passed, x.server.options.Now())
		}
		if x.server.picker.Strayed(d, address) {
			x.strayed()
			return
		}
	}
	head := headOf(h.GetHeaders())
	code, err := strconv.Atoi(head.get(":status"))
	if err != nil {
		code = 200
	}
	x.status = code
	x.made = x.made && head.get(picker.RequestIDHeader) == ""
	if report := head.get(relay.ReportHeader); report != "" || code < 400 {
		d.SidecarReport(report)
	}
	x.send(responseHeadersAnswer(x.explained(head)))
	x.span.FirstByte(code)
	x.answer.Start(d, code, head.get("content-type"), head.get("content-encoding"))
	if picker.IsEventStream(head.get("content-type")) {
		x.stream = streaming{watched: true, since: x.server.options.Now()}
	}
	x.own = ownAnswerOf(code, head)
	switch {
	case h.GetEndOfStream():
		x.shown = true
		x.responseDone()
	case x.bodyless:
		x.judgeByHeader(head.get("content-type"))
	}
}

// judgeByHeader ends the account of an answer whose body is not shown. Engines send the header of a streamed answer before
// its first token, so such a request stays counted on its endpoint for its expected duration. They send the header of other
// answers when they are done.
func (x *exchange) judgeByHeader(contentType string) {
	x.readOwn(nil)
	outcome := x.failByHeader()
	if outcome == picker.Completed && picker.IsEventStream(contentType) {
		x.leave(outcome)
		return
	}
	x.settle(outcome)
}

// explained is what is changed in the answer's header.
func (x *exchange) explained(answer head) *pb.CommonResponse {
	m := &pb.HeaderMutation{}
	set := func(name, value string) { put(m, name, value) }
	if x.made {
		set(picker.RequestIDHeader, x.id)
	}
	x.decision.EachRateHeader(set)
	if x.decision.Explains(x.explain) {
		x.decision.Explain(x.decision.Index(), set)
	}
	answer.each(func(name string) {
		if strings.HasPrefix(name, picker.LoadReport) || name == relay.ReportHeader {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	})
	if len(m.GetSetHeaders()) == 0 && len(m.GetRemoveHeaders()) == 0 {
		return nil
	}
	return &pb.CommonResponse{HeaderMutation: m}
}

// responseBody sends a piece of the answer back before it looks at it.
func (x *exchange) responseBody(p piece) {
	if x.response == done {
		return
	}
	if x.response == begin { // the gateway does not show the headers
		x.response = inBody
		x.server.gateways.learn(x.route())
		if x.decision != nil {
			x.answer.Start(x.decision, 200, "", "")
		}
	}
	x.shown = true
	if len(p.bytes) > 0 {
		x.readOwn(p.bytes)
	}
	if x.echo {
		x.echoBody(p)
	} else {
		x.send(responseBodyAnswer(nil))
	}
	if x.decision != nil && x.answer.Write(p.bytes) {
		x.firstToken()
	}
	x.watchStream(p)
	if p.end {
		x.responseDone()
	}
}

// An answer counts as held back by the gateway if at least heldEvents arrive in one message, heldFor after the headers or
// later. Shorter and faster answers can arrive in one piece without a gateway that holds them back.
const (
	heldEvents = 8
	heldFor    = 100 * time.Millisecond
)

// streaming is what is known of how a gateway shows the events of an answer.
type streaming struct {
	watched bool      // it is an event stream that is not judged yet
	begun   bool      // events have arrived
	held    bool      // the first message with events has as many as an answer that was held back
	since   time.Time // the headers arrived
}

// watchStream judges whether a gateway holds a streamed answer back until it is complete: all its events then arrive in one
// message.
func (x *exchange) watchStream(p piece) {
	s := &x.stream
	if !s.watched || x.decision == nil {
		return
	}
	switch {
	case len(p.bytes) == 0:
		return
	case s.begun:
		x.decision.Streamed(false)
		s.watched = false
		return
	}
	s.begun = true
	s.held = 1+bytes.Count(p.bytes, []byte("\ndata:")) >= heldEvents && x.server.options.Now().Sub(s.since) >= heldFor
	if p.end {
		x.streamEnds()
	}
}

// streamEnds judges a stream whose events have all arrived in one message, if any. It is called at the end of that
// message or, since gateways that buffer announce trailers, when these follow.
func (x *exchange) streamEnds() {
	if x.stream.watched && x.stream.held && x.decision != nil {
		x.decision.Streamed(true)
	}
	x.stream.watched = false
}

// echoBody sends a piece of the answer back as it is, and also if it is empty.
func (x *exchange) echoBody(p piece) {
	body := p.bytes
	if len(body) > h2stream.SmallMessage {
		body = bytes.Clone(body) // it is only valid during this call
	}
	send := func(bytes []byte, end bool) {
		head, tail := streamed(responseBodyField, len(bytes), end)
		x.sendParts(head, bytes, tail, len(bytes))
	}
	if len(body) == 0 {
		send(nil, p.end)
		return
	}
	chunks(body, p.end, send)
}

func (x *exchange) responseTrailers() {
	if x.response == done {
		return
	}
	x.send(responseTrailersAnswer())
	x.streamEnds()
	x.responseDone()
}

// responseDone accounts for a complete answer.
func (x *exchange) responseDone() {
	started := x.response == inBody
	x.response = done
	x.readOwn(nil)
	switch {
	case x.decision == nil, !started:
		x.settle(picker.Completed)
		return
	case !x.shown && x.status < 400: // a body that is not shown is not empty
		x.settle(picker.Completed)
		return
	case x.accountOwn():
		x.settle(picker.Failed)
		return
	}
	outcome, first := x.answer.Close()
	if first {
		x.firstToken()
	}
	if x.mark != 0 && outcome == picker.Completed {
		x.server.picker.Suspects().Answered(x.mark)
	}
	x.settle(outcome)
}

func (x *exchange) firstToken() {
	after := x.since()
	x.span.FirstToken()
	x.usage.FirstToken(after)
	x.server.options.Observer.FirstToken(x.decision, after)
}

// ended accounts for a stream that has ended.
func (x *exchange) ended() {
	outcome := picker.OutcomeOf(x.status)
	if x.response == inBody && !x.settled && x.decision != nil {
		outcome = x.failByHeader()
	}
	switch {
	case x.silent && x.response == inBody && !x.shown: // Envoy sends no modes to observers: bodies are not shown
		x.settle(outcome)
	case x.response != begin || x.server.gateways.showAnswers(x.route()):
		if x.response == inBody && !x.settled && x.decision != nil && x.mark != 0 {
			x.decision.CutOff(x.server.picker.Suspects(), x.mark)
		}
		x.settle(picker.ClientGone)
	default:
		x.leave(picker.Unreported)
	}
}

// route is what is remembered of a gateway: one can show answers on one route and not on another.
func (x *exchange) route() route { return route{x.gateway, x.bodyless} }

// settle ends the decision, if there is one and it has not been ended.
func (x *exchange) settle(outcome picker.Outcome) { x.settleBy(outcome, (*picker.Decision).End) }

// leave is settle for a request whose end will not be reported.
func (x *exchange) leave(outcome picker.Outcome) { x.settleBy(outcome, (*picker.Decision).Leave) }

func (x *exchange) settleBy(outcome picker.Outcome, end func(*picker.Decision, picker.Outcome)) {
	if x.settled || x.decision == nil {
		return
	}
	x.settled = true
	end(x.decision, outcome)
	x.span.Ended(outcome)
	after := x.since()
	x.usage.Ended(x.decision, outcome, after)
	x.server.options.Observer.Ended(x.decision, outcome, after)
}

func (x *exchange) since() time.Duration { return x.server.options.Now().Sub(x.start) }
