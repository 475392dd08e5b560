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

// sign is what one event of a stream tells.
type sign struct {
	token, finished, aborted, failed, done bool
}

// take adds up the signs of events.
func (a *AnswerScanner) take(e sign) {
	a.FirstToken = a.FirstToken || e.token
	a.Finished = a.Finished || e.finished
	a.Aborted = a.Aborted || e.aborted
	a.Failed = a.Failed || e.failed
	a.Done = a.Done || e.done
}

// whole reads the object of an event, and tells whether there is nothing else.
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
	var failed, old bool
	var usage Usage
	ok := s.whole(func(key span) bool {
		c := s.space()
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "choices":
			e = sign{}
			if c == '[' {
				return s.array(1, func(c byte) bool {
					if c != '{' {
						return s.skip(2)
					}
					var ch choice
					ok := ch.read(s, a.route)
					e.token = e.token || ch.token()
					e.finished = e.finished || ch.finished
					e.aborted = e.aborted || ch.aborted
					return ok
				})
			}
		case "usage":
			usage = Usage{}
			if c == '{' {
				return usage.read(s, 1, a.route)
			}
		case "error":
			failed = c != 'n'
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
	e.failed = failed || old
	a.take(e)
	if usage.Have {
		a.Usage = usage
	}
}

// choice is what one choice of one event tells.
type choice struct {
	chat              bool
	content           bool // something was generated
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
		}
		return s.skip(3)
	})
}

// deltaKeys are the fields of a delta that hold what was generated.
var deltaKeys = [...]string{"content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call"}

func (c *choice) delta(s *scanner) bool {
	var content [len(deltaKeys)]bool
	ok := s.object(3, func(key span) bool {
		first := s.space()
		at := s.i
		var buf [maxName]byte
		i := keyIndex(deltaKeys[:], nameOf(s.b, key, &buf))
		ok := s.skip(4)
		if i >= 0 {
			content[i] = first == '{' || first == '"' && s.i-at > 2 ||
				first == '[' && len(bytes.TrimSpace(s.b[at+1:s.i-1])) > 0
		}
		return ok
	})
	c.content = content != [len(deltaKeys)]bool{}
	return ok
}

// topField takes one top-level field of an answer that is not streamed.
func (a *AnswerScanner) topField(name string, value []byte) {
	switch name {
	case "error":
		a.Failed = a.Failed || value[0] != 'n'
	case "object":
		a.Failed = a.Failed || string(value) == `"error"`
	case "status":
		a.Aborted = a.Aborted || a.route == Responses && string(value) == `"cancelled"`
		a.Failed = a.Failed || a.route == Responses && string(value) == `"failed"`
	case "usage":
		if value[0] != '{' {
			return
		}
		s := scanner{b: value}
		if a.route == Messages {
			var u messageUsage
			if u.read(&s, 0) {
				a.Usage = u.usage()
			}
			return
		}
		var u Usage
		if u.read(&s, 0, a.route) {
			a.Usage = u
		}
	}
}
