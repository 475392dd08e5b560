package openai

import "bytes"

// event looks at one event of a stream, which is an object on every route. One that is not JSON is ignored.
func (a *AnswerScanner) event(data []byte) {
	s := scanner{b: data}
	if s.space() != '{' {
		return
	}
	switch a.route {
	case Responses:
		a.responsesEvent(&s)
	case Messages:
		a.messagesEvent(&s)
	default:
		a.choicesEvent(&s)
	}
}

// sign is what one event of a stream shows.
type sign struct {
	token, finished, aborted, failed, done bool
	err                                    AnswerError
	// pieces of generated text, and their length as they are written.
	pieces, bytes int
}

// take adds up the signs of events.
func (a *AnswerScanner) take(e sign) {
	a.FirstToken = a.FirstToken || e.token
	a.Finished = a.Finished || e.finished
	a.Aborted = a.Aborted || e.aborted
	a.pieces += e.pieces
	a.pieceBytes += e.bytes
	if e.failed && !a.Failed {
		a.Failed, a.Error = true, e.err
	}
	a.Done = a.Done || e.done
}

// whole reads the object of an event, and reports whether nothing follows it.
func (s *scanner) whole(each func(key span) bool) bool {
	if !s.object(0, each) {
		return false
	}
	s.space()
	return s.i == len(s.b)
}

// choicesEvent looks at an event of completions or chats: an object with choices, usage or an error.
func (a *AnswerScanner) choicesEvent(s *scanner) {
	var e sign
	var failed, old, none bool // none: the list of choices is empty
	var signed bool
	var fingerprint []byte
	var err, top AnswerError
	var usage Usage
	ok := s.whole(func(key span) bool {
		c := s.space()
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "choices":
			e, none = sign{}, c == '['
			if c == '[' {
				return s.array(1, func(c byte) bool {
					none = false
					if c != '{' {
						return s.skip(2)
					}
					var ch choice
					ok := ch.read(s, a.route)
					e.token = e.token || ch.token()
					e.finished = e.finished || ch.finished
					if ch.content {
						e.pieces++
						e.bytes += ch.bytes
					}
					e.aborted = e.aborted || ch.aborted
					return ok
				})
			}
		case "usage":
			usage = Usage{}
			if c == '{' {
				return usage.read(s, 1, a.route)
			}
		case "system_fingerprint":
			at := s.i
			ok := s.skip(1)
			if signed, fingerprint = true, nil; c == '"' {
				fingerprint = s.b[at:s.i]
			}
			return ok
		case "error":
			failed, err = c != 'n', AnswerError{}
			if c == '{' {
				return err.read(s, 1)
			}
		case "code":
			n, _, ok := s.count(1)
			top.Status = n
			return ok
		case "object": // vLLM before v0.10 sends the error's fields at the top
			old = false
			if c == '"' {
				v, ok := s.str()
				old = string(nameOf(s.b, v, &buf)) == "error"
				return ok
			}
		}
		return s.skip(1)
	})
	if !ok {
		return
	}
	e.failed, e.err = failed || old, err
	if old && !failed {
		e.err = top
	}
	a.take(e)
	a.cut.ends = e.finished && !e.failed && !signed
	a.cut.fingerprint = fingerprint
	if usage.Have {
		a.Usage = usage
		a.cut.usage = none && !e.failed
	}
}

// choice is what one choice of one event contains.
type choice struct {
	chat              bool
	content           bool // something was generated
	bytes             int  // of it, as it is written
	finished, aborted bool
}

func (c *choice) token() bool {
	return (c.content || c.finished || !c.chat) && !c.aborted
}

func (c *choice) read(s *scanner, route Route) bool {
	c.chat = route == ChatCompletions
	return s.object(2, func(key span) bool {
		first := s.space()
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "finish_reason":
			c.finished, c.aborted = first != 'n', false
			if first == '"' {
				v, ok := s.str()
				c.aborted = string(nameOf(s.b, v, &buf)) == "abort"
				return ok
			}
		case "delta":
			c.content = false
			if first == '{' {
				return c.delta(s)
			}
		case "text": // of completions
			at := s.i
			ok := s.skip(3)
			if c.bytes = s.i - at - len(`""`); !c.chat {
				c.content = first == '"' && c.bytes > 0
			}
			return ok
		}
		return s.skip(3)
	})
}

// deltaKeys are the fields of a delta that hold what was generated.
var deltaKeys = [...]string{"content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call"}

func (c *choice) delta(s *scanner) bool {
	var content [len(deltaKeys)]bool
	c.bytes = 0
	ok := s.object(3, func(key span) bool {
		first := s.space()
		at := s.i
		var buf [maxName]byte
		i := keyIndex(deltaKeys[:], nameOf(s.b, key, &buf))
		ok := s.skip(4)
		if i >= 0 {
			content[i] = first == '{' || first == '"' && s.i-at > 2 ||
				first == '[' && len(bytes.TrimSpace(s.b[at+1:s.i-1])) > 0
			if content[i] {
				c.bytes += s.i - at
			}
		}
		return ok
	})
	c.content = content != [len(deltaKeys)]bool{}
	return ok
}
