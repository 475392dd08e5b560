package openai

// event looks at one event of a stream: an object with choices, usage or an error. One that is not JSON is ignored.
func (a *AnswerScanner) event(data []byte) {
	s := scanner{b: data}
	if s.space() != '{' {
		return
	}
	var token, finished, aborted, failed bool
	var usage Usage
	ok := s.object(0, func(key span) bool {
		c := s.space()
		var buf [maxName]byte
		switch string(nameOf(data, key, &buf)) {
		case "choices":
			token, finished, aborted = false, false, false
			if c == '[' {
				return s.array(1, func(c byte) bool {
					if c != '{' {
						return s.skip(2)
					}
					var ch choice
					ok := ch.read(&s, a.route)
					token = token || ch.token()
					finished = finished || ch.finished
					aborted = aborted || ch.aborted
					return ok
				})
			}
		case "usage":
			usage = Usage{}
			if c == '{' {
				return usage.read(&s, 1)
			}
		case "error":
			failed = c != 'n'
		case "object": // vLLM before v0.10 sends the error's fields at the top
			if c == '"' {
				v, ok := s.str()
				failed = failed || string(v.of(data)) == "error"
				return ok
			}
		}
		return s.skip(1)
	})
	if !ok {
		return
	}
	if s.space(); s.i < len(data) {
		return
	}
	a.FirstToken = a.FirstToken || token
	a.Finished = a.Finished || finished
	a.Aborted = a.Aborted || aborted
	a.Failed = a.Failed || failed
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
				c.aborted = string(v.of(s.b)) == "abort"
				return ok
			}
		case "delta":
			if first == '{' {
				return c.delta(s)
			}
		}
		return s.skip(3)
	})
}

func (c *choice) delta(s *scanner) bool {
	return s.object(3, func(key span) bool {
		first := s.space()
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call":
			at := s.i
			ok := s.skip(4)
			if (first == '"' || first == '[') && s.i-at > 2 || first == '{' {
				c.content = true
			}
			return ok
		}
		return s.skip(4)
	})
}

// read reads a usage object, depth levels inside others.
func (u *Usage) read(s *scanner, depth int) bool {
	u.Have = true
	return s.object(depth, func(key span) bool {
		first := s.space()
		at := s.i
		var buf [maxName]byte
		switch name := nameOf(s.b, key, &buf); string(name) {
		case "prompt_tokens", "completion_tokens":
			prompt := name[0] == 'p'
			ok := s.skip(depth + 1)
			v := max(integer(first, s.b[at:s.i]), 0)
			if prompt {
				u.PromptTokens = v
			} else {
				u.CompletionTokens = v
			}
			return ok
		case "prompt_tokens_details":
			u.CachedTokens, u.HaveCached = 0, false
			if first == '{' {
				return u.details(s, depth+1)
			}
		}
		return s.skip(depth + 1)
	})
}

func (u *Usage) details(s *scanner, depth int) bool {
	return s.object(depth, func(key span) bool {
		first := s.space()
		at := s.i
		var buf [maxName]byte
		name := nameOf(s.b, key, &buf)
		ok := s.skip(depth + 1)
		if ok && string(name) == "cached_tokens" {
			u.HaveCached = first == '-' || first-'0' <= 9
			u.CachedTokens = max(integer(first, s.b[at:s.i]), 0)
		}
		return ok
	})
}

// topField takes one top-level field of an answer that is not streamed.
func (a *AnswerScanner) topField(name string, value []byte) {
	switch name {
	case "error":
		a.Failed = a.Failed || value[0] != 'n'
	case "object":
		a.Failed = a.Failed || string(value) == `"error"`
	case "usage":
		if value[0] != '{' {
			return
		}
		var u Usage
		s := scanner{b: value}
		if u.read(&s, 0) {
			a.Usage = u
		}
	}
}
