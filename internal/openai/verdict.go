package openai

import "strings"

// HTTP statuses with a meaning of their own here. The package does not reach net/http.
const (
	tooManyRequests     = 429
	notImplemented      = 501
	versionNotSupported = 505
)

// ServerError reports whether a status is the engine's fault, so that another one might do better. That it lacks a feature
// is not.
func ServerError(status int) bool {
	return status >= 500 && status != notImplemented && status != versionNotSupported
}

// IsEventStream reports whether a Content-Type is that of server-sent events.
func IsEventStream(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

// Verdict is what an answer so far shows about the endpoint.
type Verdict uint8

// The verdicts.
const (
	// Undecided: nothing was generated yet.
	Undecided Verdict = iota
	// Answered: the endpoint serves the request, or the request is at fault.
	Answered
	// GaveUp: the engine has given the request up, or has ended the answer without generating anything.
	GaveUp
	// Erred: the answer is an error of the engine.
	Erred
	// Refused: a limit of the engine's queue has refused the request.
	Refused
)

// AnswerHead is what the header of an answer says.
type AnswerHead struct {
	Status int
	// Readable: the scanner understands the answer. Stream: it is an event stream. JSON: it is JSON.
	Readable, Stream, JSON bool
	// Erred: the status is not the request's fault.
	Erred bool
}

// Verdict judges what has been written. ended: the answer is complete. Until then JSON that is not streamed is undecided,
// unless it reports that the engine gave up.
func (a *AnswerScanner) Verdict(h AnswerHead, ended bool) Verdict {
	switch {
	case h.Status == tooManyRequests, h.Readable && a.Failed && a.Error.Full != NoLimit && !a.FirstToken:
		return Refused
	case h.Status >= 400:
		if h.Erred {
			return Erred
		}
		return Answered
	case !h.Readable:
		return Answered
	case a.Failed:
		if status := a.Error.Status; status >= 400 && !ServerError(status) {
			return Answered
		}
		return Erred
	case a.Aborted, ended && (h.Stream || h.JSON) && a.Empty():
		return GaveUp
	case ended, a.FirstToken, h.Stream && a.Finished, a.Skipped > 0:
		return Answered
	}
	return Undecided
}
