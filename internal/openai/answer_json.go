package openai

// topError collects the error of JSON that is not streamed: the object, or the fields that vLLM before 0.10 has at the top.
type topError struct {
	object, old bool
	status      int
}

// topField takes one field of an answer that is not streamed: of the top level, or of one of its choices.
func (a *AnswerScanner) topField(name string, value []byte) {
	s := scanner{b: value}
	switch name {
	case "error":
		if value[0] == 'n' {
			return
		}
		a.Failed = true
		var e AnswerError
		if !a.topError.object && value[0] == '{' && e.read(&s, 0) {
			a.Error = e
		}
		a.topError.object = true
	case "object":
		if string(value) == `"error"` {
			a.Failed, a.topError.old = true, true
		}
	case "code":
		a.topError.status, _, _ = s.count(0)
	case "finish_reason":
		a.Aborted = a.Aborted || string(value) == `"abort"`
	case "type":
		a.message = a.route == Messages && string(value) == `"message"`
	case "stop_reason":
		a.stopped = value[0] != 'n'
	case "status":
		if a.route == Responses {
			a.Aborted = a.Aborted || string(value) == `"cancelled"`
			a.Failed = a.Failed || string(value) == `"failed"`
			a.response = string(value) == `"completed"`
		}
	case "usage":
		if value[0] == '{' {
			a.topUsage(&s)
		}
	}
}

func (a *AnswerScanner) topUsage(s *scanner) {
	if a.route == Messages {
		var u messageUsage
		if u.read(s, 0) {
			a.Usage = u.usage()
		}
		return
	}
	var u Usage
	if u.read(s, 0, a.route) {
		a.Usage = u
	}
}

// endJSON judges an answer that is not streamed and is complete, by fields that mean something together only.
func (a *AnswerScanner) endJSON() {
	if a.topError.old && !a.topError.object {
		a.Error.Status = a.topError.status
	}
	if a.Failed {
		return
	}
	switch a.route {
	case Messages: // vLLM leaves the reason out when it has aborted
		a.Aborted = a.Aborted || a.message && !a.stopped
	case Responses: // vLLM 0.32 completes what it has aborted before the first token; each other answer has a token
		a.Aborted = a.Aborted || a.response && a.Usage.Have && a.Usage.CompletionTokens == 0
	}
}
