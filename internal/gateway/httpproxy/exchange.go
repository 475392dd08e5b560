package httpproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/picker/circuit"
)

// What is kept of an engine's error answer while the fallbacks are tried.
const (
	keepError     = 64 << 10        // bytes of its body
	keepErrorWait = 2 * time.Second // for them to arrive
)

// maxRounds bounds how often a request is picked for, after all its endpoints have refused it because their queues are
// full, or could not be connected to. Its time in the queue mostly ends before.
const maxRounds = 1000

var (
	errFirstByte = errors.New("no answer within the policy's time")
	errOver      = errors.New("the attempt is over")
	errGaveUp    = errors.New("the engine gave the request up")
	errFull      = errors.New("the engine's queue is full")
	errEvent     = errors.New("the answer begins with an error")
	errOverdue   = picker.ErrRouteTime
	errStalled   = errors.New("the engine shows no progress")
)

// exchange is one request that was picked for. It has many fields because how an attempt has failed decides, together with what
// earlier ones did, about the next one.
type exchange struct {
	proxy    *Proxy
	client   *client
	request  *http.Request
	route    openai.Route
	body     *body
	decision *picker.Decision
	start    time.Time
	// attempt is the index of the target that is tried. tried are all endpoints of the pool that were.
	attempt int
	tried   []endpoint.ID
	// room is how many targets of a decision among the others can be tried; 0 in other decisions, for all.
	room int
	// last is the last server error that an engine has answered with, if it was small enough to keep.
	last *savedAnswer
	// broken: the answer did not go through to its end. accounted: the failure of the present target is accounted for.
	broken, accounted bool
	// pick is what was picked for.
	pick picker.Request
	// full: some target of the decision has refused the request because its queue is full. gaveUp: some has given it up.
	full, gaveUp bool
	// unretried: the retry budget has refused to send the request elsewhere.
	unretried bool
	// local: the last failure was one of this process.
	local bool
	// unconnected are the targets of the decision that could not be connected to; connected: another one could.
	unconnected []*endpoint.Endpoint
	connected   bool
	// timedOut: the last failure was a time-out.
	timedOut bool
	// taken: a connection has taken some of the request's body, in the present attempt.
	taken *atomic.Bool
	// mark of the request, once its body was released; brokeOff reports that too many engines have aborted on it.
	mark     uint64
	brokeOff bool
	// changed: the body is not as received: for another model, without its priority, with another cache salt, or asking for usage. mark
	// is that of the body as received, which the client would send again. rewritten: rewrite has changed it.
	changed, rewritten bool
	// overdue: the time that the request's route sets is over.
	overdue bool
	// fallen: the decision was ended, and the request goes to a fallback of its route.
	fallen bool
	// handed is what the second leg of a request is sent with; nil in other legs.
	handed *handedOver
	// asksUsage: the body was made to ask for the usage of the stream; cuts: the usage is taken out of the present answer.
	asksUsage, cuts bool
}

// savedAnswer is an answer held back.
type savedAnswer struct {
	header  http.Header
	status  int
	body    []byte
	attempt int // ofBefore if it was of an earlier decision
}

const ofBefore = -1

func (s *savedAnswer) isOfBefore() bool { return s != nil && s.attempt == ofBefore }

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
		after := e.since()
		if e.fallen { // no other decision has followed
			e.client.usage.Over(outcome, after)
			return
		}
		e.client.usage.Ended(e.decision, outcome, after)
		observer.Ended(e.decision, outcome, after)
	}()
	for range maxRounds {
		result, in := e.targets(ctx, &outcome), e.pick
		if result == passed {
			return
		}
		e.room = 0
		switch {
		case e.overdue:
			e.giveUp()
			return
		case e.replan(result, &in):
		case e.fallBack(result):
			in = e.pick
		default:
			e.giveUp()
			return
		}
		if err := e.pickAgain(ctx, in); err != nil {
			e.refused(ctx, &outcome, err)
			return
		}
	}
	e.giveUp()
}

// targets tries the targets of the present decision.
func (e *exchange) targets(ctx context.Context, outcome *picker.Outcome) result {
	e.full, e.connected, e.unconnected, e.unretried = false, false, nil, false
	last := failedStatus
	for i := range e.usable() {
		if !e.decision.Begin(i) {
			continue // it drains, or fails, since the pick
		}
		e.attempt = i
		if id := e.decision.Targets[i].Endpoint.ID; !e.wasTried(id) {
			e.tried = append(e.tried, id)
		}
		e.client.span.Attempt(e.attempt)
		result := e.try(ctx, outcome)
		if result == passed || result == passedOn {
			return result
		}
		last = result
		if e.overdue = ctx.Err() != nil && e.request.Context().Err() == nil; e.overdue {
			return last
		}
		if ctx.Err() != nil {
			*outcome = picker.ClientGone
			panic(http.ErrAbortHandler) // a client that only half closed must not take silence for an answer
		}
		e.full = e.full || result == failedFull
		if result == failedConnect {
			e.unconnected = append(e.unconnected, e.decision.Targets[i].Endpoint)
		} else {
			e.connected = true
		}
		e.local = result == failedLocal
		if e.brokeOff || !e.resends(result) || result.costs() && i+1 < e.usable() && !e.mayRetry() {
			break
		}
	}
	return last
}

// mayRetry asks the retry budget after a failure.
func (e *exchange) mayRetry() bool {
	e.unretried = !e.decision.MayRetry()
	return !e.unretried
}

// pickableAgain reports whether the request can be picked for again, after the targets of the decision have failed: their
// queues are full, and the policy lets requests wait; or none could be connected to, and the pool has others.
func (e *exchange) pickableAgain() bool {
	if e.full && !e.brokeOff && e.again(failedFull) && e.decision.WaitsForRoom() {
		return true
	}
	return !e.connected && len(e.unconnected) > 0 && e.again(failedConnect) &&
		e.proxy.options.Unreachable(e.decision.Spec().Namespace+"/"+e.decision.Pool, e.unconnected)
}

// refused answers a request for which there was no room in time.
func (e *exchange) refused(ctx context.Context, outcome *picker.Outcome, err error) {
	if e.request.Context().Err() != nil {
		*outcome = picker.ClientGone
		panic(http.ErrAbortHandler)
	}
	e.overdue = ctx.Err() != nil
	e.client.comments.stop()
	refusal := (*picker.Error)(nil)
	if !errors.As(err, &refusal) || e.room > 0 { // that no other endpoint takes it is no answer to why it has failed
		e.giveUp()
		return
	}
	later := *refusal
	later.RetryAfter = max(later.RetryAfter, time.Second)
	e.client.fail(&later)
}

// result is how an attempt has ended.
type result uint8

const (
	passed        result = iota // the answer went to the client
	failedConnect               // the engine has received nothing
	failedReset                 // it has received some of the request, and closed the connection
	failedLocal                 // a lack of file descriptors or the like here; this does not concern the engine
	failedStatus
	failedFirstByte
	failedGaveUp // the engine has ended the answer before its first token, or aborted it
	failedFull   // a limit of the engine's queue has refused the request
	// failedStalled: the engine shows no progress; the retry budget was asked.
	failedStalled
	// passedOn: the first leg has ended, and the second is to be sent. failedLeg: the hand-off cannot go on.
	passedOn
	failedLeg
)

// costs reports whether an engine can have worked for a request that failed so. Sending it to another one then draws on the retry
// budget, but for what an engine has answered to a DecodeLeg.
func (r result) costs() bool {
	return r == failedReset || r == failedStatus || r == failedFirstByte || r == failedGaveUp
}

// answered reports whether an engine has answered that it does not serve the request.
func (r result) answered() bool { return r == failedStatus || r == failedGaveUp }

// again reports whether another endpoint can be tried after a failure: by the policy, or because it is one of a leg.
func (e *exchange) again(r result) bool {
	p := &e.decision.Spec().Policy
	if e.decision.Leg() != picker.Whole {
		return r != failedLeg && r != failedLocal
	}
	switch r {
	case failedConnect:
		return p.RetryConnect
	case failedReset:
		return p.RetryReset
	case failedStatus, failedGaveUp, failedFull:
		return p.RetryServerError
	case failedFirstByte:
		return p.RetryFirstByte
	case failedStalled:
		return p.RetryStall
	}
	return false
}

// more reports whether the request can be sent again after a failure: to another endpoint, or alone after a leg.
func (e *exchange) more(r result) bool {
	return (e.attempt+1 < e.usable() || e.decision.Leg() != picker.Whole || e.others(r == failedStalled) ||
		e.proxy.picker.FallsBack(&e.pick, r == failedFull)) && e.again(r)
}

// try sends the request to the present target and passes the answer on, unless it is one to be tried elsewhere.
func (e *exchange) try(ctx context.Context, outcome *picker.Outcome) result {
	if e.decision.Leg() == picker.PrefillLeg {
		return e.prefill(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errOver)
	wait := e.decision.Spec().Policy.FirstByte
	var timer *time.Timer
	if wait > 0 {
		timer = time.AfterFunc(wait, func() { cancel(errFirstByte) })
		defer timer.Stop()
	}
	watch := e.watchStall(cancel)
	defer watch.stop()
	if e.decision.FirstLeg() != nil {
		end, r := e.beginAtOnce(ctx, cancel)
		if r != passed {
			return r
		}
		defer end()
	}
	e.beginPull()
	response, err := e.send(ctx)
	if err == nil && timer != nil && !timer.Stop() {
		err = errFirstByte // it has just arrived, but its body cannot be read any more
		_ = response.Body.Close()
	}
	if err != nil {
		return e.failed(ctx, err)
	}
	e.client.span.FirstByte(response.StatusCode)
	defer func() { _ = response.Body.Close() }()
	status := response.StatusCode
	if status < 200 { // 101: no other protocol was requested
		return e.failed(ctx, statusError(status))
	}
	e.mark = e.marked()
	if mayBeFull := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable; mayBeFull ||
		picker.ServerError(status) && e.more(failedStatus) || status >= 400 && e.decision.Leg() == picker.DecodeLeg {
		if r := e.save(response, cancel); r != passed {
			return r
		}
	}
	if c := e.client.comments; c != nil && !isPlainStream(response) && c.stop() {
		*outcome = e.endStream(response, cancel)
		return passed
	}
	var r result
	if *outcome, r = e.pass(ctx, response, watch); r != passed {
		return r
	}
	if *outcome == picker.Completed {
		e.proxy.suspects.Answered(e.mark)
	}
	if *outcome == picker.ClientGone || e.broken {
		panic(http.ErrAbortHandler)
	}
	return passed
}

// failed accounts for an attempt without an answer.
func (e *exchange) failed(ctx context.Context, err error) result {
	if e.request.Context().Err() != nil {
		return failedConnect // the client has gone; targets checks that before it uses the result
	}
	if errors.Is(context.Cause(ctx), errOverdue) {
		e.decision.Abandon()
		e.log("Attempt failed", errOverdue)
		e.client.span.Failed("overdue")
		return failedFirstByte
	}
	if transport.LocalFault(err) {
		e.log("Attempt failed", err)
		e.client.span.Failed("local")
		return failedLocal
	}
	if errors.Is(context.Cause(ctx), errStalled) {
		e.decision.Abandon()
		e.log("Attempt failed", errStalled)
		e.client.span.Failed("stalled")
		return failedStalled
	}
	if errors.Is(context.Cause(ctx), errPrefill) {
		e.decision.Abandon()
		e.log("Attempt failed", errPrefill)
		e.client.span.Failed("prefill")
		return failedLeg
	}
	e.timedOut = errors.Is(err, errFirstByte) || errors.Is(context.Cause(ctx), errFirstByte)
	if e.timedOut {
		e.decision.FailLate()
	} else {
		e.decision.Fail()
	}
	e.log("Attempt failed", err)
	if e.timedOut {
		e.client.span.Failed("timeout")
		return failedFirstByte
	}
	if status := statusError(0); errors.As(err, &status) {
		e.client.span.Failed("status")
		return failedStatus
	}
	e.client.span.Failed("connection")
	if !e.taken.Load() {
		return failedConnect
	}
	e.broke(e.marked())
	return failedReset
}

// marked is the mark of the request while its body is there.
func (e *exchange) marked() uint64 {
	if e.changed {
		return e.mark
	}
	return markOf(e.proxy.suspects, e.request, e.body.Bytes)
}

// markOf is the mark of a request.
func markOf(s *circuit.Suspects, r *http.Request, body []byte) uint64 {
	return s.Mark(r.Method, r.URL.Path, r.URL.RawQuery, body)
}

// rewrite takes the priority out of the body if the engine must not get it, sets the tenant's cache salt, and makes the body ask
// for usage and for a report of the engine's cache. No attempt has begun. It fails if there is no room for the salt.
func (e *exchange) rewrite() bool {
	drops, salt, asks, report := e.decision.DropsPriority(), e.decision.CacheSalt(), e.decision.AsksUsage(), e.decision.AsksReport()
	if e.rewritten || !drops && salt == "" && !asks && !report {
		return true
	}
	e.mark, e.changed, e.rewritten = e.marked(), true, true
	if drops {
		openai.DropPriority(e.body.Bytes)
	}
	if salt != "" && !e.body.Salt(e.body.account.Take, salt) {
		return false
	}
	e.asksUsage = asks && e.body.askUsage() || e.asksUsage
	if report {
		e.body.askReport()
		e.pick.AsksReport = true // no client's: the first pick has refused those
	}
	e.pick.Body = e.body.Bytes
	return true
}

// broke notes that the engine has aborted on the request.
func (e *exchange) broke(mark uint64) {
	e.brokeOff = e.proxy.suspects.Broke(mark, e.decision.Targets[e.attempt].Endpoint.ID.Pod, e.proxy.options.Now())
	if e.brokeOff {
		logging.Warn(e.proxy.options.Log, "Request crashed two engines, not retrying", "request", e.client.id,
			"pool", e.decision.Pool, "for", circuit.Suspicion.String())
	}
}

// save reads an error answer, keeps it in case no other endpoint answers, and judges it. An answer that is too large, or
// does not arrive, is not kept: if no other endpoint is left, save returns passed, and the caller passes the answer on.
func (e *exchange) save(response *http.Response, cancel context.CancelCauseFunc) result {
	timer := time.AfterFunc(keepErrorWait, func() { cancel(errOver) })
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(response.Body, keepError+1))
	if timer.Stop() && (err != nil || n > keepError) && !e.more(failedStatus) {
		response.Body = rest{io.MultiReader(&buf, response.Body), response.Body}
		return passed
	}
	e.log("Attempt failed", statusError(response.StatusCode))
	e.client.span.Failed(strconv.Itoa(response.StatusCode))
	if err == nil && n <= keepError {
		e.last = &savedAnswer{header: response.Header, status: response.StatusCode, body: buf.Bytes(), attempt: e.attempt}
	}
	var a picker.Answer
	a.Start(e.decision, response.StatusCode, response.Header.Get("Content-Type"), strings.Join(response.Header["Content-Encoding"], ","))
	a.Write(buf.Bytes())
	full := a.Verdict(true) == picker.Refused
	a.Close()
	if full {
		return failedFull
	}
	return failedStatus
}

// rest is the unread part of a body.
type rest struct {
	io.Reader
	io.Closer
}

// dropBody releases the request's body; connections that still send it keep their own reference.
func (e *exchange) dropBody() {
	e.dropHandedOver()
	if e.body != nil {
		e.body.release()
		e.body, e.pick.Body = nil, nil
	}
}

func (e *exchange) since() time.Duration { return e.proxy.options.Now().Sub(e.start) }

func (e *exchange) log(message string, err error) {
	if log := e.proxy.options.Log; log.Enabled() {
		log.Info(message, "request", e.client.id, "pool", e.decision.Pool, "endpoint", e.decision.Targets[e.attempt].Endpoint.ID.String(),
			"attempt", e.attempt+1, "reason", reasonOf(err))
	}
}
