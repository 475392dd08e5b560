package sidecar

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

var errLate = errors.New("the engine has not prefilled in time")

// handOver serves a request by a hand-off. It reports false if the request must be served alone; nothing was answered then.
func (x *exchange) handOver(t *relay.Ticket) bool {
	route, ok := routeOf(x.r)
	if !ok || len(x.r.Header["Content-Encoding"]) > 0 {
		return false
	}
	body := x.secondLeg(t, route)
	if body == nil {
		return false
	}
	defer body.release()
	return x.decode(route, body)
}

// secondLeg has the prompt prefilled, and makes the body of the second leg; nil if the request must be served alone.
func (x *exchange) secondLeg(t *relay.Ticket, route openai.Route) *held {
	const size = relay.MaxPrefillAnswer // of the answer to the first leg, which is not needed for longer
	if x.rest != nil || x.body == nil || !x.server.take(size) {
		x.report.Outcome = relay.NoMemory
		return nil
	}
	defer x.server.give(size)
	var parsed openai.Request
	if openai.Parse(route, x.body.bytes, &parsed) != nil {
		return nil // the engine refuses it
	}
	parameters := x.prefill(t, route)
	if parameters == nil {
		return nil
	}
	return x.leg(len(parameters), func(dst, body []byte) []byte { return openai.AppendDecode(dst, body, parameters) })
}

// leg makes the body of a leg, which has more bytes than the request; nil if there is no room for it.
func (x *exchange) leg(more int, appendTo func(dst, body []byte) []byte) *held {
	body := x.server.newHeld(len(x.body.bytes) + more + openai.HandoffBytes)
	if body == nil {
		x.report.Outcome = relay.NoMemory
		return nil
	}
	body.bytes = appendTo(body.bytes, x.body.bytes)
	return body
}

// prefill sends the first leg. It returns the parameters for the second, nil if there are none.
func (x *exchange) prefill(t *relay.Ticket, route openai.Route) (parameters []byte) {
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	if t.Within > 0 {
		timer := time.AfterFunc(t.Within, func() { cancel(errLate) })
		defer timer.Stop()
	}
	leg := x.leg(0, func(dst, body []byte) []byte { return openai.AppendPrefill(dst, route, body, openai.AsksPrefill) })
	if leg == nil {
		return nil
	}
	defer leg.release()
	header := maps.Clone(x.r.Header)
	header["Accept-Encoding"] = []string{"identity"}
	_, peer := x.server.ends()
	peer.Address = t.Address
	answer, err := x.send(ctx, &peer, header, t.Address, leg)
	var body []byte
	if err == nil {
		defer func() { _ = answer.Body.Close() }()
		body, err = io.ReadAll(io.LimitReader(answer.Body, relay.MaxPrefillAnswer+1))
	}
	if err != nil {
		x.prefillFailed(causeOf(ctx, answer, err), t, err)
		return nil
	}
	return x.prefilled(answer, body, route, t)
}

// causeOf is why there is no complete answer to a first leg.
func causeOf(ctx context.Context, answer *http.Response, err error) relay.Cause {
	switch {
	case errors.Is(context.Cause(ctx), errLate):
		return relay.CauseLate
	case transport.LocalFault(err):
		return relay.CauseLocal
	case answer == nil && isDial(err):
		return relay.CauseConnect
	}
	return relay.CauseBroken
}

// prefilled takes the answer to a first leg.
func (x *exchange) prefilled(answer *http.Response, body []byte, route openai.Route, t *relay.Ticket) (parameters []byte) {
	var scanner openai.AnswerScanner
	scanner.Reset(route, false)
	scanner.Write(body)
	scanner.Close()
	switch scanner.Verdict(headOf(answer), true) {
	case openai.Refused:
		x.prefillFailed(relay.CauseFull, t, nil)
		return nil
	case openai.GaveUp, openai.Erred:
		x.prefillFailed(relay.CauseError, t, nil)
		return nil
	}
	if answer.StatusCode != http.StatusOK {
		x.prefillFailed(relay.CauseRequest, t, nil)
		return nil
	}
	if usage := &scanner.Usage; usage.Have {
		x.report.Prompt = usage.PromptTokens
		if usage.HaveCached && usage.CachedTokens <= usage.PromptTokens {
			x.report.Cached = usage.CachedTokens
		}
	}
	if len(body) > relay.MaxPrefillAnswer {
		x.report.Outcome = relay.NoMemory
		return nil
	}
	parameters, owed := openai.HandoffParameters(body)
	if parameters == nil {
		x.report.Outcome, x.report.Owed = relay.NoParameters, owed
	}
	return parameters
}

// prefillFailed notes that the first leg has failed.
func (x *exchange) prefillFailed(cause relay.Cause, t *relay.Ticket, err error) {
	x.report.Outcome, x.report.Cause = relay.PrefillFailed, cause
	if x.r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	x.server.options.Log.V(1).Info("Engine has not prefilled, request is served alone", "engine", t.Address, "reason", string(cause),
		"error", err)
}

// headOf is what the header of an answer says.
func headOf(answer *http.Response) openai.AnswerHead {
	kind, encoding := answer.Header.Get("Content-Type"), strings.Join(answer.Header["Content-Encoding"], ",")
	return openai.AnswerHead{
		Status: answer.StatusCode, Stream: openai.IsEventStream(kind), JSON: strings.HasPrefix(kind, "application/json"),
		Readable: encoding == "" || strings.EqualFold(encoding, "identity"), Erred: openai.ServerError(answer.StatusCode),
	}
}

// How much of an answer to a second leg is held until it is known to be one, in bytes: of a stream, and of JSON.
const (
	holdStream = 64 << 10
	holdJSON   = 1 << 20
)

// decode sends the second leg, and the answer to the client unless the request is better served alone.
func (x *exchange) decode(route openai.Route, body *held) bool {
	x.sent = x.server.options.Now()
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	engine, _ := x.server.ends()
	answer, err := x.send(ctx, &engine, maps.Clone(x.r.Header), x.r.Host, body)
	if err != nil {
		x.decodeFailed(err)
		return false
	}
	defer func() { _ = answer.Body.Close() }()
	head := headOf(answer)
	limit := holdJSON
	if head.Stream {
		limit = holdStream
	}
	var scanner openai.AnswerScanner
	scanner.Reset(route, head.Stream)
	begin, ended, err := x.holdBack(answer.Body, &scanner, head, limit)
	defer func() { begin.release() }()
	if err != nil {
		x.decodeFailed(err)
		return false
	}
	switch verdict := scanner.Verdict(head, ended); {
	case verdict == openai.GaveUp, verdict == openai.Erred, answer.StatusCode >= 400 && verdict != openai.Refused:
		x.decodeFailed(nil)
		return false
	}
	x.report.Outcome = relay.HandedOver
	x.begin(answer)
	left := int64(-1)
	if answer.ContentLength >= 0 {
		left = answer.ContentLength - int64(len(begin.bytes))
	}
	if len(begin.bytes) == 0 || x.write(begin.bytes, left != 0 && !ended) {
		x.copy(answer, left)
	}
	return true
}

// holdBack reads an answer until it is known whether it is one, or there is no room for more of it. What it returns must be released, also
// beside an error.
func (x *exchange) holdBack(
	from io.Reader, scanner *openai.AnswerScanner, head openai.AnswerHead, limit int,
) (begin *held, ended bool, err error) {
	begin = x.server.newHeld(smallest)
	if begin == nil {
		return &held{server: x.server, pooled: new([]byte)}, false, nil
	}
	for len(begin.bytes) < limit {
		if len(begin.bytes) == cap(begin.bytes) {
			more := begin.grown(2 * cap(begin.bytes))
			if more == nil {
				break
			}
			begin = more
		}
		b := begin.bytes
		n, err := from.Read(b[len(b):min(cap(b), limit)])
		scanner.Write(b[len(b) : len(b)+n])
		begin.bytes = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			scanner.Close()
			return begin, true, nil
		}
		if err != nil {
			return begin, false, err
		}
		if head.Status < 400 && scanner.Verdict(head, false) != openai.Undecided {
			break
		}
	}
	return begin, false, nil
}

// decodeFailed notes that the engine of the pod has not loaded the blocks.
func (x *exchange) decodeFailed(err error) {
	if x.r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	x.report.Outcome, x.sent = relay.DecodeFailed, time.Time{}
	x.server.options.Log.V(1).Info("Engine has not loaded the blocks of another one, request is served alone", "error", err)
}

// isDial reports whether a connection could not be made.
func isDial(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}
