package picker

import (
	"strings"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Answer parses the answer to a request as it streams past, in pieces of any size, and reports what it finds to the
// decision. It buffers nothing. The zero value is ready for Start; reuse an Answer to save allocations. It is for one
// goroutine.
type Answer struct {
	decision *Decision
	scanner  openai.AnswerScanner
	status   int
	// readable: the scanner understands the answer. first: the answer is not readable and its first byte has not arrived.
	readable, first, stream, json bool
	// pieces is the endpoint's count of what has arrived.
	pieces *atomic.Uint64
}

// Start takes the head of the answer: its status, and the values of the headers Content-Type and Content-Encoding.
func (a *Answer) Start(d *Decision, status int, contentType, encoding string) {
	stream := IsEventStream(contentType)
	a.decision, a.status, a.stream = d, status, stream
	a.json = strings.HasPrefix(contentType, "application/json")
	a.readable = (!d.unparsed || d.generates || status >= 400) && (encoding == "" || strings.EqualFold(encoding, "identity"))
	a.first = stream
	a.pieces = d.Target().member.load.Pieces()
	a.scanner.Reset(d.route, stream)
}

// Moved records that another target of the decision continues the answer, and computes its rest.
func (a *Answer) Moved() { a.pieces = a.decision.Target().member.load.Pieces() }

// OutcomeOf an answer, as far as its status determines it.
func OutcomeOf(status int) Outcome {
	switch {
	case status >= 500:
		return Failed
	case status >= 400:
		return Rejected
	}
	return Completed
}

// IsEventStream reports whether a Content-Type is that of server-sent events.
func IsEventStream(contentType string) bool { return openai.IsEventStream(contentType) }

// HTTP statuses with a meaning of their own here. The package does not reach net/http.
const (
	forbidden       = 403
	tooManyRequests = 429
)

// ServerError reports whether a status is the engine's fault, so that another one might do better. That it lacks a feature
// is not.
func ServerError(status int) bool { return openai.ServerError(status) }

// erred reports whether the status is not the fault of the request. Of hand-offs by llm-d's sidecar that can be 403: the sidecar has a list
// of endpoints, and the one that is to prefill is not on it. The sidecar writes it as text, and others write errors as JSON.
func (a *Answer) erred() bool {
	return ServerError(a.status) || a.status == forbidden && !a.json && a.decision.Prefiller() != ""
}

// Unread accounts for an answer whose body is not shown, or not to its end, so far as its header shows an error. It returns the outcome.
func (a *Answer) Unread() Outcome {
	if a.erred() {
		a.decision.failed(errored)
		return Failed
	}
	return OutcomeOf(a.status)
}

// Write looks at the next bytes of the answer and keeps none of them. It reports whether the first generated token is
// in them; the decision was then notified.
func (a *Answer) Write(p []byte) (firstToken bool) {
	a.decision.answered.Add(int64(len(p)))
	a.pieces.Add(1)
	switch {
	case len(p) == 0:
		return false
	case a.readable:
		firstToken = a.scanner.Write(p)
		a.decision.progress(a.scanner.Generated())
	default:
		a.decision.progress(int(a.decision.answered.Load() / bytesPerToken))
		firstToken, a.first = a.first, false
	}
	if firstToken {
		a.decision.FirstToken()
	}
	return firstToken
}

// Verdict is what an answer so far shows about the endpoint.
type Verdict = openai.Verdict

// The verdicts.
const (
	Undecided = openai.Undecided
	Answered  = openai.Answered
	GaveUp    = openai.GaveUp
	Erred     = openai.Erred
	Refused   = openai.Refused
)

// Verdict judges what has been written. ended: the answer is complete. Until then JSON that is not streamed is undecided,
// unless it reports that the engine gave up.
func (a *Answer) Verdict(ended bool) Verdict {
	head := openai.AnswerHead{Status: a.status, Readable: a.readable, Stream: a.stream, JSON: a.json}
	head.Erred = a.status >= 400 && a.erred()
	return a.scanner.Verdict(head, ended)
}

// Holds reports whether the answer might still turn out to be none, so that it is worth waiting for more of it before any of
// it is passed on.
func (a *Answer) Holds() bool {
	return a.readable && a.status < 300 && !a.decision.background
}

// Whole reports whether an answer that has ended is complete, and no error: a stream with a reason to finish and its end mark, or JSON.
func (a *Answer) Whole() bool {
	s := &a.scanner
	if !a.readable || s.Failed || s.Aborted || s.Skipped > 0 {
		return false
	}
	return s.Finished && (!a.stream || s.Done)
}

// Counted are the tokens that the answer reports; -1 without.
func (a *Answer) Counted() (prompt, generated int) {
	if !a.scanner.Usage.Have {
		return -1, -1
	}
	return a.scanner.Usage.PromptTokens, a.scanner.Usage.CompletionTokens
}

// Close notes that the answer has passed to its end. The decision receives what the answer reported, and
// the outcome is returned, for Decision.End; and whether the first generated token has shown only now.
func (a *Answer) Close() (outcome Outcome, firstToken bool) {
	s, d := &a.scanner, a.decision
	if a.readable && s.Close() {
		d.FirstToken()
		firstToken = true
	}
	verdict := a.Verdict(true)
	if verdict == Answered {
		a.learnUsage()
	}
	switch {
	case verdict == Refused:
		d.Full(a.limit())
		if a.status == tooManyRequests {
			return Rejected, firstToken
		}
		return Failed, firstToken
	case verdict == Erred:
		d.failed(errored)
		return Failed, firstToken
	case verdict == GaveUp:
		d.failed(gaveUp)
		return Failed, firstToken
	case OutcomeOf(a.status) != Completed:
		return OutcomeOf(a.status), firstToken
	case a.readable && s.Failed:
		return Rejected, firstToken
	case a.readable && s.Usage.Have:
		cached := -1
		if s.Usage.HaveCached {
			cached = s.Usage.CachedTokens
		}
		d.Usage(s.Usage.PromptTokens, cached)
		d.Generated(s.Usage.CompletionTokens)
	}
	return Completed, firstToken
}

// limit is the one that has refused the request.
func (a *Answer) limit() openai.QueueLimit {
	if full := a.scanner.Error.Full; full != openai.NoLimit {
		return full
	}
	return openai.RequestLimit
}
