package openai

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// Parse reads body, a request for route, into r, which is reset first and keeps parts of body. It returns a
// *SyntaxError when body is not JSON (RFC 8259, strictly: UTF-8, no trailing bytes, at most MaxDepth levels) and a
// *FieldError when a field that routing needs is missing or of a wrong type. A byte order mark at the beginning is passed
// over, as the engine's parser does. Time and memory are linear in the body, with no allocation once r's buffers have
// grown.
func Parse(route Route, body []byte, r *Request) error {
	return ParseFor(route, body, "", r)
}

// ErrNoModel is Parse's answer to a request that names no model, if nothing else is wrong with that field.
var ErrNoModel error = &FieldError{Field: "model", Msg: "is missing"}

// ParseFor is Parse for a request that can leave its model out: it is for the given one then.
func ParseFor(route Route, body []byte, model string, r *Request) error {
	r.Reset()
	r.Route, r.body, r.N = route, body, 1
	p := parser{scanner: scanner{b: body}, r: r, absent: model}
	if !p.document() {
		return p.err
	}
	if !p.isObject {
		return &FieldError{Msg: "the body must be a JSON object"}
	}
	return p.finish()
}

// byteOrderMark is U+FEFF.
var byteOrderMark = []byte("\ufeff")

// parser fills a Request. Whether a field's value is usable is judged at the end of the body, because a later value
// of the same key replaces it. It has many fields because one pass over the body collects what all routes need.
type parser struct {
	scanner
	r        *Request
	isObject bool
	absent   string // the model of a request that names none

	model, salt, user                       span
	haveModel, haveSalt, haveUser           bool
	modelBad, promptBad, messagesBad        string // why the last value cannot be used
	maxTokens, maxCompletion                int
	haveMaxCompletion, havePromptLP, haveLP bool
	haveEngineArguments                     bool // even if they are null
	otherOptions                            bool // stream_options are not an object of include_usage alone
	promptSeen, messagesSeen                bool
	// Fields that make a Responses request Stateful.
	previousID, previousResponse, previousMessages bool

	name [maxName]byte
}

func (p *parser) document() bool {
	if bytes.HasPrefix(p.b, byteOrderMark) {
		p.i = len(byteOrderMark)
	}
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
	f := fieldSpan{key: key, at: p.i}
	name := nameOf(p.b, key, &p.name)
	if c != 'n' && !usualField(name) {
		if string(name) == "cache_salt" {
			p.r.SetsSalt = true
		} else {
			p.r.OtherFields = true
		}
		p.r.Steering |= steeringOf(name)
	}
	ok, done := p.prose(name, c)
	if !done {
		f.isString = c == '"'
		var value span
		if f.isString {
			value, ok = p.str()
			f.escaped = value.escaped
		} else {
			ok = p.skip(1)
		}
		if ok {
			p.setting(name, c, value, f.at)
			p.r.Steering |= repeats(name, p.i-f.at)
		}
	}
	if !ok {
		return false
	}
	f.end = p.i
	if len(p.r.fields) < maxFields {
		p.r.fields = append(p.r.fields, f)
	} else {
		p.r.overflow = true
	}
	return true
}

// prose reads the value of a field that holds a prompt, a part of one, or other fields, on the routes that have it.
// done reports that it is one.
func (p *parser) prose(name []byte, c byte) (ok, done bool) {
	r := p.r
	switch string(name) {
	case "prompt":
		if r.Route == Completions {
			return p.prompt(c), true
		}
	case "input":
		switch r.Route {
		case Embeddings:
			return p.prompt(c), true
		case Responses:
			return p.input(c), true
		}
	case "messages":
		if r.Route.in(ChatCompletions, Messages, Embeddings) {
			return p.messages(c), true
		}
	case "system":
		if r.Route == Messages {
			return p.systemPrompt(c), true
		}
	case engineArguments, "sampling_params", "extra_args": // those that holdsArguments
		p.haveEngineArguments = p.haveEngineArguments || string(name) == engineArguments
		if c == '{' {
			return p.arguments(1, &r.Steering), true
		}
	case streamOptions:
		if r.Route.in(Completions, ChatCompletions) {
			r.IncludeUsage, p.otherOptions = false, c != 'n'
			if c == '{' {
				return p.streamOptions(), true
			}
		}
	case "metadata":
		if r.Route == Messages {
			p.haveUser = false
			if c == '{' {
				return p.metadata(), true
			}
		}
	}
	return false, false
}

// setting takes over the value that begins at at with the byte c, ends at p.i and is str where it is a string.
func (p *parser) setting(name []byte, c byte, str span, at int) {
	r := p.r
	isString := c == '"'
	switch string(name) {
	case "model":
		p.model, p.haveModel, p.modelBad = str, isString, ""
		r.ModelAt, r.ModelEnd = at, p.i
		if !isString && c != 'n' {
			p.modelBad = "must be a string"
		}
	case "stream":
		r.Stream = p.truth(c, str, at) && r.Route != Embeddings
	case "prefix_len":
		r.PrefixLen = max(p.integer(c, str, at), 0)
	case "tools":
		r.Tools = nil
		if c == '[' && r.Route.in(ChatCompletions, Responses, Messages) {
			r.Tools = p.b[at:p.i]
		}
	case "max_tokens":
		p.maxTokens = max(p.integer(c, str, at), 0)
	case "user":
		if r.Route != Messages {
			p.user, p.haveUser = str, isString
		}
	case saltField:
		p.salt, p.haveSalt = str, isString
	case "priority":
		r.Priority = 0
		if r.Route != Messages {
			r.Priority = p.integer(c, str, at)
		}
	default:
		switch r.Route {
		case Responses:
			p.responsesSetting(name, c, str, at)
		case Completions, ChatCompletions, Embeddings:
			p.argument(name, c)
			p.openSetting(name, c, str, at)
		}
	}
}

// argument notes which arguments of its template a chat has.
func (p *parser) argument(name []byte, c byte) {
	i := keyIndex(argumentFields[:], name)
	if i < 0 || p.r.Route == Completions {
		return
	}
	p.r.arguments &^= 1 << i
	if c != 'n' {
		p.r.arguments |= 1 << i
	}
}

// openSetting is setting for what only the older routes have.
func (p *parser) openSetting(name []byte, c byte, str span, at int) {
	r := p.r
	switch string(name) {
	case "add_special_tokens":
		r.AddSpecialTokens = nil
		if c != 'n' {
			r.special = p.truth(c, str, at)
			r.AddSpecialTokens = &r.special
		}
	case "truncate_prompt_tokens":
		r.TruncatePrompt = max(p.integer(c, str, at), -1)
	case "truncation_side":
		r.SideGiven = c == '"'
		r.KeepFirst = r.SideGiven && string(nameOf(p.b, str, &p.name)) == "right"
	default:
		if r.Route != Embeddings {
			p.generateSetting(name, c, str, at)
		}
	}
}

// generateSetting is setting for what completions and chats have.
func (p *parser) generateSetting(name []byte, c byte, str span, at int) {
	r := p.r
	switch string(name) {
	case "echo":
		r.Echo = p.truth(c, str, at)
	case "prompt_embeds":
		r.Embeds = c == '"' || c == '['
	case "prompt_logprobs":
		p.havePromptLP = c != 'n'
	case "logprobs":
		p.haveLP = c != 'n'
	case "use_beam_search":
		r.CacheUnreported = p.truth(c, str, at)
	case "tool_choice":
		r.ForcesTool = c == '{' || c == '"' && string(nameOf(p.b, str, &p.name)) == "required"
	case "n":
		r.N = max(p.integer(c, str, at), 1)
	case "max_completion_tokens":
		p.maxCompletion, p.haveMaxCompletion = max(p.integer(c, str, at), 0), c != 'n'
	}
}

// responsesSetting is setting for what only Responses has.
func (p *parser) responsesSetting(name []byte, c byte, str span, at int) {
	r := p.r
	switch string(name) {
	case "instructions":
		r.System, r.top.n = nil, 0
		if c == '"' {
			r.System = p.b[at:p.i]
			r.top.add(str)
		}
	case "max_output_tokens":
		p.maxCompletion = max(p.integer(c, str, at), 0)
	case "truncation":
		r.TruncatePrompt = -1 // null too: only one word keeps it off
		if c == '"' && string(nameOf(p.b, str, &p.name)) == "disabled" {
			r.TruncatePrompt = 0
		}
	case "background":
		r.Background = p.truth(c, str, at)
	case "previous_response_id":
		p.previousID = c == '"'
	case "previous_response":
		p.previousResponse = c == '{'
	case "previous_input_messages":
		p.previousMessages = c == '['
	}
}

// truth is the value of a flag as the engine's parser reads it: besides true it takes the number 1 and some words, in
// any case. A value that it refuses reads as false.
func (p *parser) truth(c byte, str span, at int) bool {
	if c != '"' {
		return c == 't' || integer(c, p.b[at:p.i]) == 1
	}
	switch strings.ToLower(string(nameOf(p.b, str, &p.name))) {
	case "1", "t", "true", "y", "yes", "on":
		return true
	}
	return false
}

// integer is the value of a whole number as the engine's parser reads it: besides numbers it takes true, false, and numbers as
// text. A value that it refuses reads as 0.
func (p *parser) integer(c byte, str span, at int) int {
	switch c {
	case 't':
		return 1
	case '"':
		return wordNumber(string(nameOf(p.b, str, &p.name)))
	}
	return integer(c, p.b[at:p.i])
}

// wordNumber is the value of a number that was sent as text: digits, with a sign, single underscores between them, a fraction of
// zeros, and spaces around, as pydantic reads it.
func wordNumber(text string) int {
	text = strings.TrimSpace(text)
	if whole, fraction, ok := strings.Cut(text, "."); ok && fraction != "" && strings.Trim(fraction, "0") == "" {
		text = whole
	}
	digits := strings.TrimLeft(text, "+-")
	if len(text)-len(digits) > 1 || strings.HasPrefix(digits, "_") || strings.HasSuffix(digits, "_") || strings.Contains(digits, "__") {
		return 0
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 32)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return int(v) // the nearest value where it is too large
}

// integer is the value of the JSON number raw, which begins with c: 0 where it is no integer, the nearest 32-bit value
// where it is too large.
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
	p.otherOptions = false
	return p.object(1, func(key span) bool {
		c := p.space()
		if string(nameOf(p.b, key, &p.name)) == "include_usage" {
			p.r.IncludeUsage = c == 't'
			p.otherOptions = p.otherOptions || c != 't' && c != 'f' && c != 'n' // what engines refuse, or read otherwise
		} else {
			p.otherOptions = true
		}
		return p.skip(2)
	})
}

// metadata reads the metadata of a Messages request.
func (p *parser) metadata() bool {
	return p.object(1, func(key span) bool {
		c := p.space()
		if string(nameOf(p.b, key, &p.name)) != "user_id" {
			return p.skip(2)
		}
		if p.haveUser = c == '"'; !p.haveUser {
			return p.skip(2)
		}
		var ok bool
		p.user, ok = p.str()
		return ok
	})
}

// finish judges the fields and fills in what depends on several of them.
func (p *parser) finish() error {
	r := p.r
	switch {
	case p.modelBad != "":
		return &FieldError{Field: "model", Msg: p.modelBad}
	case !p.haveModel && p.absent == "":
		return ErrNoModel
	case !p.haveModel:
		r.Model = p.absent
	default:
		r.Model = p.owned(p.model, &r.last.model)
	}
	if r.Model == "" {
		return &FieldError{Field: "model", Msg: "is empty"}
	}
	if p.haveSalt {
		r.CacheSalt = p.owned(p.salt, &r.last.salt)
	}
	if p.haveUser {
		r.User = p.owned(p.user, &r.last.user)
	}
	r.TakesUsage = r.Route.in(Completions, ChatCompletions) && r.Stream && !r.IncludeUsage && !p.otherOptions && !r.CacheUnreported &&
		r.N <= 1
	r.TakesReport = r.Route.in(Completions, ChatCompletions) && !p.haveEngineArguments
	switch r.Route {
	case Completions:
		r.MaxTokens = p.maxTokens
		r.NoCacheRead = p.havePromptLP || r.Echo && p.haveLP
		return p.finishPrompts("prompt")
	case ChatCompletions:
		r.MaxTokens = p.maxTokens
		if p.haveMaxCompletion {
			r.MaxTokens = p.maxCompletion
		}
		r.NoCacheRead = p.havePromptLP || r.Echo
		return p.finishMessages("messages")
	case Responses:
		r.MaxTokens, r.IncludeUsage = p.maxCompletion, r.Stream
		r.Stateful = p.previousID || p.previousResponse || p.previousMessages
		return p.finishMessages("input")
	case Messages:
		r.MaxTokens, r.IncludeUsage = p.maxTokens, r.Stream
		return p.finishMessages("messages")
	}
	if !p.promptSeen && p.messagesSeen {
		return p.finishMessages("messages")
	}
	return p.finishPrompts("input")
}

func (p *parser) finishMessages(field string) error {
	switch {
	case p.messagesBad != "":
		return &FieldError{Field: field, Msg: p.messagesBad}
	case !p.messagesSeen:
		return &FieldError{Field: field, Msg: "is missing"}
	}
	return nil
}

func (p *parser) finishPrompts(field string) error {
	r := p.r
	switch {
	case p.promptBad != "":
		return &FieldError{Field: field, Msg: p.promptBad}
	case !p.promptSeen && !r.Embeds:
		return &FieldError{Field: field, Msg: "is missing"}
	}
	r.fillPrompts()
	r.TakesUsage = r.TakesUsage && len(r.Prompts) <= 1
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
