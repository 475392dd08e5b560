package openai

import "bytes"

// What an AnswerScanner holds at most, in bytes.
const (
	// MaxEvent is the size of a server-sent event, and of each of its lines. Larger ones are skipped.
	MaxEvent = 1 << 20
	// MaxUsage is the size of the usage object of an answer that is not streamed. A larger one is skipped.
	MaxUsage = 1 << 14
	// keepEvent is the size of a buffer that Reset keeps.
	keepEvent = 1 << 16
)

// AnswerScanner watches an answer pass by, cut in any way. It sees what the engine did and never holds a byte back.
// What is not as it should be it ignores: the client is the one to judge. Its memory is bounded by MaxEvent. Call
// Reset before the first use.
//
// It has many fields because one value, which is used again, reads streams and JSON of all routes.
type AnswerScanner struct {
	// Usage is the last one seen.
	Usage Usage
	// pieces of text that were generated, and the bytes of them as they are written: of each choice of each event of a
	// stream one piece. See Generated.
	pieces, pieceBytes int
	// FirstToken: a generated token has been seen. Only in streams.
	FirstToken bool
	// Finished: a stream has given the reason why the generation ended (of some choice, where there are several), or the
	// JSON of another answer is complete.
	Finished bool
	// Aborted: the engine gave up a request, as it does when it is shut down, paused or put to sleep. Completions and
	// chats say "abort" as the reason of a choice, in streams and in JSON. Messages end without a reason, and JSON of
	// Responses is "cancelled", or complete without one generated token.
	Aborted bool
	// Failed: the answer is or ends in an error, which Error describes. In a stream the status has been sent before, so
	// that this event is the only sign.
	Failed bool
	// Error is the first error of the answer.
	Error AnswerError
	// Done: the stream's end mark has been seen.
	Done bool
	// Skipped counts events that were too large to be looked at.
	Skipped int

	route  Route
	stream bool

	line         []byte // the line so far
	lineTooLong  bool   // the line is over MaxEvent; line is only its beginning
	afterCR      bool   // the last byte was a carriage return, which might have a line feed behind it
	data         []byte // the event's data so far
	haveData     bool
	eventTooLong bool // some line of the event, or its data, is over MaxEvent
	cut          usageCut

	json     topFields
	messages messageUsage // of Messages, so far
	// Of the JSON of an answer that is not streamed:
	topError          topError
	message, stopped  bool // of Messages: it is a message, and has a reason to stop
	response, started bool // of Responses: it is complete; of all: there is a byte of it
}

// Empty reports whether an answer that has ended is none: a stream without a generated token, a reason to finish or an
// error, or no byte of JSON. vLLM ends streams like that when it gives up requests before their first token.
func (a *AnswerScanner) Empty() bool {
	if !a.stream {
		return !a.started
	}
	return !a.FirstToken && !a.Finished && !a.Failed && !a.Aborted && a.Skipped == 0
}

// bytesPerToken is how long the text of a token is at most, on an average: the longest texts per token are English prose.
const bytesPerToken = 6

// Generated is about how many tokens a stream has brought so far, for streams without usage; 0 for other answers without.
// Engines send at least one token with each piece, and several when they send at intervals.
func (a *AnswerScanner) Generated() int {
	return max(a.pieces, a.pieceBytes/bytesPerToken, a.Usage.CompletionTokens)
}

// Reset makes a ready for an answer to a request for route. stream reports that the answer is text/event-stream, which
// answers to streaming requests are unless they failed early; anything else is taken for one JSON object.
func (a *AnswerScanner) Reset(route Route, stream bool) {
	line, data, value := a.line[:0], a.data[:0], a.json.value[:0]
	if cap(line) > keepEvent {
		line = nil
	}
	if cap(data) > keepEvent {
		data = nil
	}
	*a = AnswerScanner{route: route, stream: stream, line: line, data: data, json: topFields{value: value, level: topLevel}}
}

// Write looks at the next bytes of the answer, and keeps none of them. first reports that the first generated token is
// in them: true for exactly one Write of a stream that has one. For completions that is the first event with a
// choice; for chats and the other routes the first one with content, reasoning or a tool call, or else one that
// finishes (engines begin with events that have nothing of that, before anything is computed). An aborted request has
// none.
func (a *AnswerScanner) Write(p []byte) (first bool) { return a.write(p, 0) }

// write is Write of p[from:].
func (a *AnswerScanner) write(p []byte, from int) (first bool) {
	before := a.FirstToken
	if !a.stream {
		p = p[from:]
		a.started = a.started || len(bytes.TrimSpace(p)) > 0
		a.json.write(p, a.topField)
		if a.json.complete && !a.Finished {
			a.Finished = true
			a.endJSON()
		}
		return false
	}
	for i, lf := from, -1; i < len(p); {
		if a.afterCR {
			a.afterCR = false
			if p[i] == '\n' {
				i++
				a.cut.lineFeed(p, i)
				continue
			}
		}
		if lf < i { // looked for once per line feed, however many carriage returns precede it
			lf = len(p)
			if n := bytes.IndexByte(p[i:], '\n'); n >= 0 {
				lf = i + n
			}
		}
		end := lf
		if n := bytes.IndexByte(p[i:lf], '\r'); n >= 0 {
			end = i + n
			a.afterCR = true
		}
		if end == len(p) {
			a.hold(p[i:])
			break
		}
		line := p[i:end]
		if len(a.line) > 0 || a.lineTooLong {
			a.hold(line)
			line = a.line
		}
		a.endLine(line)
		i = end + 1
		if a.cut.ended {
			a.cut.event(p, i)
		}
	}
	return a.FirstToken && !before
}

// Close reports that the answer has ended, if only to look at an event that lacks its last line feeds.
func (a *AnswerScanner) Close() (first bool) {
	if !a.stream {
		return false
	}
	return a.Write([]byte("\n\n"))
}

// hold appends p to the line so far.
func (a *AnswerScanner) hold(p []byte) {
	if len(a.line)+len(p) > MaxEvent {
		a.lineTooLong = true
	}
	if !a.lineTooLong {
		a.line = append(a.line, p...)
	}
}

// endLine takes one line of the stream, without its end.
func (a *AnswerScanner) endLine(line []byte) {
	if a.lineTooLong {
		a.eventTooLong = true
		line = nil
	} else if len(line) == 0 {
		a.endEvent()
	}
	a.line, a.lineTooLong = a.line[:0], false
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		a.cut.other = a.cut.other || len(line) > 0
		return
	}
	if len(data) > 0 && data[0] == ' ' {
		data = data[1:]
	}
	if len(a.data)+len(data) > MaxEvent {
		a.eventTooLong = true
		return
	}
	if a.haveData {
		a.cut.other = true
		a.data = append(a.data, '\n')
	}
	a.data = append(a.data, data...)
	a.haveData = true
}

// endEvent looks at the event that a blank line ends.
func (a *AnswerScanner) endEvent() {
	switch {
	case a.eventTooLong:
		a.Skipped++
	case !a.haveData:
	case string(a.data) == "[DONE]":
		a.Done = true
	default:
		a.event(a.data)
	}
	a.data, a.haveData, a.eventTooLong = a.data[:0], false, false
	a.cut.ended = a.cut.on
}
