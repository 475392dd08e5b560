package openai

// messagesEvent looks at an event of a Messages stream: its type, and what that has.
func (a *AnswerScanner) messagesEvent(s *scanner) {
	var failed, tool bool
	var err AnswerError
	var d messageDelta
	var start, usage messageUsage
	var name [maxName]byte
	var typ []byte // decoded, in name or in the event
	if !s.whole(func(key span) bool {
		c := s.space()
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "type":
			typ = nil
			if c == '"' {
				v, ok := s.str()
				typ = nameOf(s.b, v, &name)
				return ok
			}
		case "message":
			start = messageUsage{}
			if c == '{' {
				return s.field(1, "usage", '{', func() bool { return start.read(s, 2) }, func() { start = messageUsage{} })
			}
		case "delta":
			d = messageDelta{}
			if c == '{' {
				return d.read(s)
			}
		case "content_block":
			tool = false
			if c == '{' {
				return s.field(1, "type", '"', func() bool {
					v, ok := s.str()
					tool = string(nameOf(s.b, v, &buf)) == "tool_use"
					return ok
				}, func() { tool = false })
			}
		case "usage":
			usage = messageUsage{}
			if c == '{' {
				return usage.read(s, 1)
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
	e := sign{failed: failed, err: err}
	switch string(typ) {
	case "message_start":
		a.messages.add(&start)
	case "content_block_start":
		e.token = tool // its name has been generated
	case "content_block_delta":
		e.token = d.content
		if d.content {
			e.pieces, e.bytes = 1, d.bytes
		}
	case "message_delta":
		e.token, e.finished = d.stopped, d.stopped
		a.messages.add(&usage)
	case "message_stop":
		e.done, e.aborted = true, !a.Finished
	case "error":
		e.failed = true
	}
	a.take(e)
	a.Usage = a.messages.usage()
}

// field reads an object, and the value of the field name by each if it begins with first; else that field counts as
// absent, and no callback is called.
func (s *scanner) field(depth int, name string, first byte, each func() bool, none func()) bool {
	return s.object(depth, func(key span) bool {
		c := s.space()
		var buf [maxName]byte
		if string(nameOf(s.b, key, &buf)) == name {
			if c == first {
				return each()
			}
			none()
		}
		return s.skip(depth + 1)
	})
}

// messageDelta is what the delta of an event contains.
type messageDelta struct {
	content bool // something was generated
	bytes   int  // of it, as it is written
	stopped bool // there is a reason to stop
}

func (d *messageDelta) read(s *scanner) bool {
	var texts [3]bool
	ok := s.object(1, func(key span) bool {
		c := s.space()
		at := s.i
		var buf [maxName]byte
		name := nameOf(s.b, key, &buf)
		if string(name) == "stop_reason" {
			d.stopped = c != 'n'
		}
		i := keyIndex([]string{"text", "thinking", "partial_json"}, name)
		ok := s.skip(2)
		if i >= 0 {
			texts[i] = c == '"' && s.i-at > 2
			d.bytes += s.i - at
		}
		return ok
	})
	d.content = texts != [3]bool{}
	return ok
}
