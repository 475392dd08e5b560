package openai

import (
	"math"
	"strconv"
)

// Parse reads body, a request for route, into r, which is reset first and keeps parts of body. It returns a
// *SyntaxError when body is not JSON (RFC 8259, strictly: UTF-8, no trailing bytes, at most MaxDepth levels) and a
// *FieldError when a field that routing needs is missing or of a wrong type. Time and memory are linear in the body,
// with no allocation once r's buffers have grown.
func Parse(route Route, body []byte, r *Request) error {
	r.Reset()
	r.Route, r.body, r.N = route, body, 1
	p := parser{scanner: scanner{b: body}, r: r}
	if !p.document() {
		return p.err
	}
	if !p.isObject {
		return &FieldError{Msg: "the body must be a JSON object"}
	}
	return p.finish()
}

// parser fills a Request. Whether a field's value is usable is judged at the end of the body, because a later value
// of the same key replaces it.
type parser struct {
	scanner
	r        *Request
	isObject bool

	model, salt, user                                span
	haveModel, haveSalt, haveUser                    bool
	modelBad, promptBad, messagesBad                 string // why the last value cannot be used
	maxTokens, maxCompletion                         int
	haveMaxCompletion, havePromptLP, haveLP, haveTop bool
	messagesSeen                                     bool

	name [maxName]byte
}

func (p *parser) document() bool {
	if p.space() == '{' {
		p.isObject = true
		if !p.object(0, p.field) {
			return false
		}
	} else if !p.skip(0) {
		return false
	}
	p.space()
	if p.i < len(p.b) {
		return p.fail(p.i, "unexpected bytes after the end")
	}
	return true
}

// field reads one top-level field.
func (p *parser) field(key span) bool {
	c := p.space()
	at := p.i
	f := fieldSpan{key: key}
	var ok bool
	switch name := nameOf(p.b, key, &p.name); string(name) {
	case "prompt":
		if p.r.Route == Completions {
			ok = p.prompt(c)
			break
		}
		ok = p.other(c, &f)
	case "messages":
		if p.r.Route == ChatCompletions {
			ok = p.messages(c)
			break
		}
		ok = p.other(c, &f)
	case "stream_options":
		p.r.IncludeUsage = false
		if c == '{' {
			ok = p.streamOptions()
			break
		}
		ok = p.other(c, &f)
	default:
		ok = p.other(c, &f) && p.simple(name, c, at, &f)
	}
	if !ok {
		return false
	}
	if len(p.r.fields) < maxFields {
		p.r.fields = append(p.r.fields, f)
	} else {
		p.r.overflow = true
	}
	return true
}

// other passes over a value and notes it in f when it is a string.
func (p *parser) other(c byte, f *fieldSpan) bool {
	if c != '"' {
		return p.skip(1)
	}
	f.isString = true
	var ok bool
	f.value, ok = p.str()
	return ok
}

// simple takes over the value that begins at at with the byte c, ends at p.i and is f.value where it is a string.
func (p *parser) simple(name []byte, c byte, at int, f *fieldSpan) bool {
	r := p.r
	raw := p.b[at:p.i]
	switch string(name) {
	case "model":
		p.model, p.haveModel, p.modelBad = f.value, f.isString, ""
		r.ModelAt, r.ModelEnd = at, p.i
		if !f.isString && c != 'n' {
			p.modelBad = "must be a string"
		}
	case "cache_salt":
		p.salt, p.haveSalt = f.value, f.isString
	case "user":
		p.user, p.haveUser = f.value, f.isString
	case "stream":
		r.Stream = c == 't'
	case "echo":
		r.Echo = c == 't'
	case "add_special_tokens":
		r.AddSpecialTokens = nil
		if c == 't' || c == 'f' {
			r.special = c == 't'
			r.AddSpecialTokens = &r.special
		}
	case "tools":
		r.Tools = nil
		if c == '[' {
			r.Tools = raw
		}
	case "prompt_embeds":
		r.Embeds = c == '"' || c == '['
	case "prompt_logprobs":
		p.havePromptLP = c != 'n'
	case "logprobs":
		p.haveLP = c == '-' || c-'0' <= 9
	case "top_logprobs":
		p.haveTop = c == '-' || c-'0' <= 9
	case "n":
		r.N = max(integer(c, raw), 1)
	case "max_tokens":
		p.maxTokens = max(integer(c, raw), 0)
	case "max_completion_tokens":
		p.maxCompletion, p.haveMaxCompletion = max(integer(c, raw), 0), c != 'n'
	case "truncate_prompt_tokens":
		r.TruncatePrompt = max(integer(c, raw), -1)
	case "prefix_len":
		r.PrefixLen = max(integer(c, raw), 0)
	case "priority":
		r.Priority = integer(c, raw)
	}
	return true
}

// integer is the value of the JSON number raw, which begins with c: 0 where it is no number or not whole, the nearest
// 32-bit value where it is too large.
func integer(c byte, raw []byte) int {
	if c != '-' && c-'0' > 9 {
		return 0
	}
	v, err := strconv.ParseInt(view(raw), 10, 32)
	if err == nil {
		return int(v)
	}
	x, err := strconv.ParseFloat(view(raw), 64)
	switch {
	case err == nil && x != math.Trunc(x):
		return 0
	case x >= math.MaxInt32:
		return math.MaxInt32
	case x <= math.MinInt32:
		return math.MinInt32
	}
	return int(x)
}

func (p *parser) streamOptions() bool {
	return p.object(1, func(key span) bool {
		c := p.space()
		if string(nameOf(p.b, key, &p.name)) == "include_usage" {
			p.r.IncludeUsage = c == 't'
		}
		return p.skip(2)
	})
}

// finish judges the fields and fills in what depends on several of them.
func (p *parser) finish() error {
	r := p.r
	switch {
	case p.modelBad != "":
		return &FieldError{Field: "model", Msg: p.modelBad}
	case !p.haveModel:
		return &FieldError{Field: "model", Msg: "is missing"}
	}
	r.Model = p.owned(p.model, &r.last.model)
	if r.Model == "" {
		return &FieldError{Field: "model", Msg: "is empty"}
	}
	if p.haveSalt {
		r.CacheSalt = p.owned(p.salt, &r.last.salt)
	}
	if p.haveUser {
		r.User = p.owned(p.user, &r.last.user)
	}
	r.MaxTokens = p.maxTokens
	logprobs := p.haveLP
	if r.Route == ChatCompletions {
		logprobs = p.haveTop
		if p.haveMaxCompletion {
			r.MaxTokens = p.maxCompletion
		}
	}
	r.PromptLogprobs = p.havePromptLP || r.Echo && logprobs
	if r.Route == ChatCompletions {
		switch {
		case p.messagesBad != "":
			return &FieldError{Field: "messages", Msg: p.messagesBad}
		case !p.messagesSeen:
			return &FieldError{Field: "messages", Msg: "is missing"}
		}
		return nil
	}
	switch {
	case p.promptBad != "":
		return &FieldError{Field: "prompt", Msg: p.promptBad}
	case len(r.parts) == 0 && !r.Embeds:
		return &FieldError{Field: "prompt", Msg: "is missing"}
	}
	r.fillPrompts()
	return nil
}

// owned is the decoded string s as a copy: last, where that is the same, and last is set to it.
func (p *parser) owned(s span, last *string) string {
	raw := s.of(p.b)
	switch {
	case s.escaped:
		*last = string(appendString(nil, raw, -1))
	case string(raw) != *last:
		*last = string(raw)
	}
	return *last
}
