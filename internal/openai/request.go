// Package openai reads what routing needs from requests and answers of the OpenAI API, as vLLM implements it. It scans the
// bytes once and builds no tree; it never changes them, so that they can be forwarded unchanged.
package openai

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Route is an API operation.
type Route uint8

// The operations.
const (
	// Completions is POST /v1/completions.
	Completions Route = iota
	// ChatCompletions is POST /v1/chat/completions.
	ChatCompletions
	// Responses is POST /v1/responses.
	Responses
	// Embeddings is POST /v1/embeddings.
	Embeddings
	// Messages is POST /v1/messages, of the Anthropic API.
	Messages

	numRoutes int = iota
)

var routeNames = [numRoutes]string{"completions", "chat/completions", "responses", "embeddings", "messages"}

// String is the URL path behind /v1/.
func (r Route) String() string {
	if int(r) < numRoutes {
		return routeNames[r]
	}
	return fmt.Sprintf("Route(%d)", uint8(r))
}

// in reports whether r is one of the operations.
func (r Route) in(list ...Route) bool { return slices.Contains(list, r) }

// RouteOf is the operation that a URL path asks for.
func RouteOf(path string) (Route, bool) {
	if name, ok := strings.CutPrefix(path, "/v1/"); ok {
		for r, n := range routeNames {
			if n == name {
				return Route(r), true
			}
		}
	}
	return 0, false
}

// CountTokens is the path below that of Messages that counts the tokens of such a request and generates nothing.
const CountTokens = "/v1/messages/count_tokens"

// FieldError reports valid JSON that routing cannot use.
type FieldError struct {
	// Field is the name of the top-level field; empty for the body itself.
	Field string
	// Msg describes the error, without any value of the body.
	Msg string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Msg
	}
	return e.Field + ": " + e.Msg
}

// Prompt is one prompt of a completion or embeddings request.
type Prompt struct {
	// Text is the prompt, unless IsTokens.
	Text string
	// Tokens are the prompt's ids, if IsTokens.
	Tokens []uint32
	// IsTokens reports which of the two was sent, an empty one included.
	IsTokens bool
}

// Request is what Parse finds in a body. The zero value is ready for Parse, and a Request is best used again: its
// buffers grow to what is common and stay.
//
// Everything of slice type, Prompt.Text and Item.UUID lie in the body or in the buffers of the Request: they hold
// until the body is changed or the Request is parsed or reset. Model, CacheSalt, User and what Field returns are
// copies and can be kept.
//
// Only the fields that routing must understand can make Parse fail: model, and prompt, messages or input. Any other
// field of a wrong type reads as absent, and the engine is left to refuse it. A field that is null is absent, and so
// is one that the engine does not know on the route: Messages has no cache_salt, for example. Of a key given twice
// the last one counts, as in the engine's parser.
//
// It has many fields because the routes together have that many which routing must know.
type Request struct {
	Route Route
	// Model as sent; never empty after a successful Parse.
	Model string
	// ModelAt and ModelEnd delimit the model's JSON string in the body, its quotes included.
	ModelAt, ModelEnd int
	// Stream asks for server-sent events; IncludeUsage for usage at their end: stream_options.include_usage, or any
	// stream of Responses and Messages.
	Stream, IncludeUsage bool
	// TakesUsage: PutStreamUsage can make the stream report its usage, and the answer differs by one event only. This is a
	// stream of Completions or ChatCompletions with one answer, whose stream_options are absent or contain nothing else than
	// include_usage. Where there are several answers, vLLM changes the last event of each.
	TakesUsage bool
	// TakesReport: PutReport can make the engine announce again what it finds of the prompt in its cache. This is a request of
	// Completions or ChatCompletions without arguments for the engine.
	TakesReport bool

	// Prompts of a completion request: at least one, unless Embeds. Those of an embeddings request: at least one,
	// unless it holds chats, in messages or in input.
	Prompts []Prompt
	// Embeds: the prompt is given as prompt_embeds, perhaps beside Prompts; it has no token ids.
	Embeds bool

	// Messages is the JSON list of messages, or the input of a Responses request, which can be a string too.
	Messages []byte
	// NumMessages is the length of that list, 1 for a string.
	NumMessages int
	// System is the JSON of the system prompt beside the messages: system of a Messages request (a string or a list),
	// instructions of a Responses request (a string). nil without.
	System []byte
	// Tools is the JSON list of tools; nil without.
	Tools []byte
	// Multimodal: some content part is neither text nor a tool's.
	Multimodal bool
	// Items are these parts in their order, the first MaxItems of them.
	Items []Item
	// Stateful: the prompt begins with what is not in Messages, and perhaps only in one engine's memory
	// (previous_response_id and its kin).
	Stateful bool
	// Background: the answer is sent at once, and the work continues after it.
	Background bool

	// AddSpecialTokens as sent; nil leaves the route's default.
	AddSpecialTokens *bool
	// NoCacheRead: the engine computes the entire prompt and looks nothing up in its prefix cache, although it stores the
	// blocks. This holds for requests that ask for log-probabilities of the prompt: by prompt_logprobs with any value, by
	// echo of completions with logprobs, and by echo of chats, which asks for top_logprobs of the prompt, 0 by default
	// (vLLM 0.11 to 0.33; where a chat sets top_logprobs to null, releases from 0.31 on read no cache, older ones do).
	NoCacheRead bool
	// SetsSalt: the request has a cache_salt, valid or not. OtherFields: it has another field that can change what the engine
	// looks up or caches, or that is not known.
	SetsSalt, OtherFields bool
	// Steering is what fields of the request control in the engine besides its answer, in any of their spellings.
	Steering Steering
	// CacheUnreported: the answer does not report how much of the prompt was found in the cache (use_beam_search).
	CacheUnreported bool
	// ForcesTool: the answer has to call a tool (tool_choice).
	ForcesTool bool
	// Echo asks for the prompt in the answer.
	Echo bool
	// N is the number of answers per prompt, at least 1.
	N int
	// MaxTokens is the most tokens to generate (max_completion_tokens before max_tokens, max_output_tokens of
	// Responses); 0 when not said.
	MaxTokens int
	// TruncatePrompt (truncate_prompt_tokens, truncation of Responses) keeps only some tokens of the prompt: a number
	// of them, -1 for the model's limit, 0 for all. They are the last ones, unless KeepFirst (truncation_side, if SideGiven).
	TruncatePrompt       int
	KeepFirst, SideGiven bool
	// PrefixLen (prefix_len, an extension of Kvasir) is the number of leading tokens that decide for the strategy
	// StickyLeastLoaded; 0 when not set.
	PrefixLen int
	// CacheSalt keeps the request's blocks apart from those of other salts.
	CacheSalt string
	// User is the end user's name from the client: user, or metadata.user_id of Messages.
	User string
	// Priority as the engine understands it: lower is earlier.
	Priority int

	body      []byte
	fields    []fieldSpan
	overflow  bool      // more fields than fields can hold
	top       textSpans // the text of System
	system    textSpans
	firstUser textSpans
	seen      Kinds    // kinds that messages of a chat have
	arguments uint8    // a bit for each of argumentFields that a chat has
	special   bool     // what AddSpecialTokens points to
	tokens    []uint32 // all ids of all prompts
	text      []byte   // decoded prompts that are written with escapes
	parts     []part   // one per prompt
	texts     []textAt // of the messages of a chat
	last      struct{ model, salt, user string }
}

// fieldSpan is a top-level field: its key, and the position of its value in the body.
type fieldSpan struct {
	key     span
	at, end int
	// isString: the value is a string, and not the prompt; escaped: with escapes.
	isString, escaped bool
}

// textAt is a string of a message's content: the body from at to end, quotes included, and its decoded value, which is in
// text if the string has escapes, else in the body.
type textAt struct {
	at, end int
	span
}

// At most maxTexts are kept, of those with minText bytes in the body or more: others are as soon read again.
const (
	maxTexts = 4096
	minText  = 64
)

// TextAt returns the decoded value of the string whose opening quote is at the offset at of the body, and its end. It is
// for callers that read the body of a chat a second time, and knows the long texts of messages: not ok for other strings,
// and for some that are unusual. The text is valid as long as the body and the Request are.
func (r *Request) TextAt(at int) (text string, end int, ok bool) {
	i, ok := slices.BinarySearchFunc(r.texts, at, func(t textAt, at int) int { return t.at - at })
	if !ok {
		return "", 0, false
	}
	t := &r.texts[i]
	if t.escaped {
		return view(t.of(r.text)), t.end, true
	}
	return view(t.of(r.body)), t.end, true
}

// maxFields is the most top-level fields that a body can have for Field and Raw to work.
const maxFields = 256

// Field is the value of the top-level field name, if it is a string; not of the prompt. It serves session keys. A
// body with more than 256 top-level fields has none, and neither have names of more than 63 bytes.
func (r *Request) Field(name string) (string, bool) {
	f := r.field(name)
	if f == nil || !f.isString {
		return "", false
	}
	return string(appendString(nil, r.body[f.at+1:f.end-1], -1)), true
}

// Raw is the JSON of the top-level field name, nil where that is absent or null. The limits of Field hold here too:
// ok is false for a body with so many unknown fields.
func (r *Request) Raw(name string) (value []byte, ok bool) {
	if f := r.field(name); f != nil && r.body[f.at] != 'n' {
		value = r.body[f.at:f.end]
	}
	return value, !r.overflow
}

// Span returns the position in the body of the value of the top-level field name, the last one of that name; found is false
// if there is none. ok is false for a body with more fields than are kept.
func (r *Request) Span(name string) (at, end int, found, ok bool) {
	if f := r.field(name); f != nil {
		return f.at, f.end, true, true
	}
	return 0, 0, false, !r.overflow
}

// field finds a top-level field, the last one of that name.
func (r *Request) field(name string) *fieldSpan {
	if r.overflow {
		return nil
	}
	for i := len(r.fields) - 1; i >= 0; i-- {
		var buf [maxName]byte
		if string(nameOf(r.body, r.fields[i].key, &buf)) == name {
			return &r.fields[i]
		}
	}
	return nil
}

// The stable text holds at most this many bytes of the system prompt and of the first user message, or this many
// token ids.
const (
	stableText   = 256
	stableTokens = 128
)

// AppendStable appends what stays the same through all turns of a conversation, for a session key where the client
// sends none: the model, and the beginnings of the system prompt and of the first user message (at most 256 bytes
// each, of the decoded text), or the beginning of the first prompt (512 bytes or 128 ids). ok is false when the
// request has no text.
func (r *Request) AppendStable(dst []byte) (out []byte, ok bool) {
	dst = append(dst, r.Model...)
	dst = append(dst, 0)
	start := len(dst)
	if r.Route == Completions || len(r.Prompts) > 0 {
		if len(r.Prompts) == 0 {
			return dst, false
		}
		p := r.Prompts[0]
		for _, id := range p.Tokens[:min(len(p.Tokens), stableTokens)] {
			dst = binary.LittleEndian.AppendUint32(dst, id)
		}
		dst = append(dst, p.Text[:min(len(p.Text), 2*stableText)]...)
		return dst, len(dst) > start
	}
	dst = r.top.appendText(dst, r.body, stableText)
	dst = r.system.appendText(dst, r.body, stableText-(len(dst)-start))
	dst = append(dst, 0)
	dst = r.firstUser.appendText(dst, r.body, stableText)
	return dst, len(dst) > start+1
}

// textSpans are the leading pieces of one message's text: one, or one per content part.
type textSpans struct {
	n  int
	at [8]span
}

func (t *textSpans) add(s span) {
	if t.n < len(t.at) {
		t.at[t.n] = s
		t.n++
	}
}

// changing begins the texts of system prompts that are new with every request; engines take them out.
const changing = "x-anthropic-billing-header"

func (t *textSpans) appendText(dst, body []byte, limit int) []byte {
	end := len(dst) + limit
	for _, s := range t.at[:t.n] {
		if bytes.HasPrefix(s.of(body), []byte(changing)) {
			continue
		}
		dst = appendString(dst, s.of(body), end-len(dst))
	}
	return dst
}

// Buffers above these sizes are given back when a Request is reset.
const (
	keepTokens  = 1 << 20
	keepText    = 1 << 20
	keepPrompts = 1 << 10
	keepItems   = 1 << 8
)

// Reset forgets the last body, and buffers that one unusual request made huge.
func (r *Request) Reset() {
	clear(r.Prompts)
	clear(r.Items)
	keep := Request{
		last:    r.last, // compared with the next ones, to copy only what is new
		Prompts: r.Prompts[:0], fields: r.fields[:0], tokens: r.tokens[:0], text: r.text[:0], parts: r.parts[:0],
		Items: r.Items[:0], texts: r.texts[:0],
	}
	if cap(keep.Items) > keepItems {
		keep.Items = nil
	}
	if cap(keep.tokens) > keepTokens {
		keep.tokens = nil
	}
	if cap(keep.text) > keepText {
		keep.text = nil
	}
	if cap(keep.Prompts) > keepPrompts {
		keep.Prompts, keep.parts = nil, nil
	}
	*r = keep
}
