package picker

import (
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Answer watches the answer to a request pass by, cut in any way, and tells the decision what it sees. It holds nothing
// back. The zero value is ready for Start, and an Answer is best used again. It is for one goroutine.
type Answer struct {
	decision *Decision
	scanner  openai.AnswerScanner
	status   int
	// readable: the scanner understands the answer. first: of one that it does not, the first byte is still to come.
	readable, first bool
}

// Start tells the head of the answer: its status, and the values of the headers Content-Type and Content-Encoding.
func (a *Answer) Start(d *Decision, status int, contentType, encoding string) {
	stream := IsEventStream(contentType)
	a.decision, a.status = d, status
	a.readable = !d.unparsed && (encoding == "" || strings.EqualFold(encoding, "identity"))
	a.first = stream
	a.scanner.Reset(d.route, stream)
}

// IsEventStream tells whether a Content-Type is that of server-sent events.
func IsEventStream(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

// Write looks at the next bytes of the answer and keeps none of them. It tells whether the first generated token is in
// them, which the decision has then been told.
func (a *Answer) Write(p []byte) (firstToken bool) {
	a.decision.answered.Add(int64(len(p)))
	switch {
	case len(p) == 0:
		return false
	case a.readable:
		firstToken = a.scanner.Write(p)
	default:
		firstToken, a.first = a.first, false
	}
	if firstToken {
		a.decision.FirstToken()
	}
	return firstToken
}

// Close tells that the answer has gone through to its end. The decision is told what the answer has said, and how it
// has ended is returned, for Decision.End; and whether the first generated token has shown only now.
func (a *Answer) Close() (outcome Outcome, firstToken bool) {
	s, d := &a.scanner, a.decision
	if a.readable && s.Close() {
		d.FirstToken()
		firstToken = true
	}
	switch {
	case a.status >= 500:
		return Failed, firstToken
	case a.status >= 400:
		return Rejected, firstToken
	case !a.readable:
	case s.Failed || s.Aborted:
		// The status was sent before the engine failed, or was shut down.
		d.Fail()
		return Failed, firstToken
	case s.Usage.Have:
		cached := -1
		if s.Usage.HaveCached {
			cached = s.Usage.CachedTokens
		}
		d.Usage(s.Usage.PromptTokens, cached)
		d.Generated(s.Usage.CompletionTokens)
	}
	return Completed, firstToken
}
