package openai

import "bytes"

// responsesWord is the type of an event of a Responses stream, as far as it matters.
type responsesWord uint8

const (
	responsesOther     responsesWord = iota
	responsesDelta                   // some text, reasoning or arguments of a call
	responsesEnd                     // some part is complete
	responsesCompleted               // all is, or as much as was allowed
	responsesFailed
	responsesCancelled
)

func responsesWordOf(name []byte) responsesWord {
	switch string(name) {
	case "response.completed", "response.incomplete":
		return responsesCompleted
	case "response.failed", "error":
		return responsesFailed
	case "response.cancelled":
		return responsesCancelled
	}
	if rest, ok := bytes.CutPrefix(name, []byte("response.")); ok {
		switch {
		case bytes.HasSuffix(rest, []byte(".delta")):
			return responsesDelta
		case bytes.HasSuffix(rest, []byte(".done")):
			return responsesEnd
		}
	}
	return responsesOther
}

// responsesEvent looks at an event of a Responses stream: its type, and a delta, the response or an error. Events about
// later steps of the engine precede the first token.
func (a *AnswerScanner) responsesEvent(s *scanner) {
	var word responsesWord
	var delta, failed bool
	var bytes int // of the delta
	var err AnswerError
	var r response
	if !s.whole(func(key span) bool {
		c := s.space()
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "type":
			word = responsesOther
			if c == '"' {
				v, ok := s.str()
				word = responsesWordOf(nameOf(s.b, v, &buf))
				return ok
			}
		case "delta":
			at := s.i
			ok := s.skip(1)
			bytes = s.i - at - len(`""`)
			delta = c == '"' && bytes > 0
			return ok
		case "response":
			r = response{}
			if c == '{' {
				return r.read(s)
			}
		case "error":
			failed, err = c != 'n', AnswerError{}
			if c == '{' {
				return err.read(s, 1)
			}
		}
		return s.skip(1)
	}) {
		return
	}
	e := sign{err: err, failed: failed || word == responsesFailed || r.failed, aborted: word == responsesCancelled || r.cancelled}
	switch word {
	case responsesDelta:
		e.token = delta
		if delta {
			e.pieces, e.bytes = 1, bytes
		}
	case responsesEnd:
		e.token = true
	case responsesCompleted:
		e.finished, e.done = true, true
		e.token = !e.aborted && !e.failed
	case responsesFailed, responsesCancelled:
		e.done = true
	}
	a.take(e)
	if r.usage.Have {
		a.Usage = r.usage
	}
}

// response is the state that some events carry.
type response struct {
	cancelled, failed bool
	usage             Usage
}

func (r *response) read(s *scanner) bool {
	var status, failed bool
	ok := s.object(1, func(key span) bool {
		c := s.space()
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "status":
			r.cancelled, status = false, false
			if c == '"' {
				v, ok := s.str()
				word := nameOf(s.b, v, &buf)
				r.cancelled, status = string(word) == "cancelled", string(word) == "failed"
				return ok
			}
		case "error":
			failed = c != 'n'
		case "usage":
			r.usage = Usage{}
			if c == '{' {
				return r.usage.read(s, 2, Responses)
			}
		}
		return s.skip(2)
	})
	r.failed = status || failed
	return ok
}
