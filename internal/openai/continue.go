package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// MaxContinued is the longest answer, in tokens, that a Continuation follows.
const MaxContinued = 1 << 16

// ErrContinue means that an engine does not continue the stream that the client has: it begins with another prompt, or counts
// tokens otherwise.
var ErrContinue = errors.New("the engine does not continue the answer")

// independent are the fields of a completion request that mean the same for the rest of an answer as for all of it, or are
// read by name. Options that look back at the tokens of the answer (penalties, stop strings, bad words, structured output,
// a seed) or count them (min_tokens, logprobs) are not among them.
var independent = map[string]bool{
	"model": true, "prompt": true, "max_tokens": true, "stream": true, "stream_options": true, "return_token_ids": true, "n": true,
	"temperature": true, "top_p": true, "top_k": true, "min_p": true, "logit_bias": true, "allowed_token_ids": true,
	"ignore_eos": true, "stop_token_ids": true, "skip_special_tokens": true, "spaces_between_special_tokens": true,
	"add_special_tokens": true, "user": true, "metadata": true, saltField: true, "priority": true,
}

// Continuation follows a stream of completions, so that another engine can generate the rest from the tokens that the client
// has. It is for one goroutine.
type Continuation struct {
	prompt, most int      // tokens
	sent         []uint32 // that the client has
	id, created  json.RawMessage
	next         bool // the present engine is not the first
	// lost: the rest cannot be generated elsewhere any more. lags: the text of the last token might not be complete.
	lost, lags, ended bool
}

// completionFields are the fields of a request that are read.
type completionFields struct {
	Prompt    []uint32 `json:"prompt"`
	MaxTokens *int     `json:"max_tokens"`
	Stream    bool     `json:"stream"`
	Returns   bool     `json:"return_token_ids"`
	N         *int     `json:"n"`
	Options   *struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// Continuable returns a Continuation of the stream that a completion request asks for, or nil if its rest would be another one:
// the request must give its prompt as token ids and max_tokens, ask for return_token_ids, and have only options that do
// not depend on earlier tokens of the answer. asked: the picker requested the usage of the stream, not the client.
func Continuable(body []byte, asked bool) *Continuation {
	var all map[string]json.RawMessage
	var r completionFields
	if json.Unmarshal(body, &all) != nil || json.Unmarshal(body, &r) != nil {
		return nil
	}
	for name, value := range all {
		if !independent[name] && string(value) != "null" {
			return nil
		}
	}
	switch {
	case !r.Stream, !r.Returns, len(r.Prompt) == 0, r.MaxTokens == nil || *r.MaxTokens < 1 || *r.MaxTokens > MaxContinued,
		r.N != nil && *r.N != 1, r.Options != nil && r.Options.Usage && !asked:
		return nil
	}
	return &Continuation{prompt: len(r.Prompt), most: *r.MaxTokens}
}

// Most is how many tokens the answer can have.
func (c *Continuation) Most() int { return c.most }

// Sent is how many tokens the client has.
func (c *Continuation) Sent() int { return len(c.sent) }

// Ended reports whether the answer has given the reason why it ended.
func (c *Continuation) Ended() bool { return c.ended }

// Ready reports whether another engine can generate the rest: the client has some tokens with all of their text, and more are
// to come.
func (c *Continuation) Ready() bool {
	return !c.lost && !c.lags && !c.ended && len(c.sent) > 0 && len(c.sent) < c.most
}

// Lose makes Ready false for good: the client has got something that Event has not seen.
func (c *Continuation) Lose() { c.lost = true }

// Body is the request for the rest of the answer, made of that for all of it. From now on Event expects the rest.
func (c *Continuation) Body(body []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	prompt := bytes.TrimRight(bytes.TrimSpace(all["prompt"]), "]")
	tail, err := json.Marshal(c.sent)
	if err != nil {
		return nil, err
	}
	all["prompt"] = slices.Concat(prompt, []byte{','}, tail[1:])
	if all["max_tokens"], err = json.Marshal(c.most - len(c.sent)); err != nil {
		return nil, err
	}
	delete(all, streamOptions) // the usage would count the tokens sent as a part of the prompt
	c.next = true
	return marshal(all)
}

// completionEvent is what is read of an event.
type completionEvent struct {
	ID      json.RawMessage `json:"id"`
	Created json.RawMessage `json:"created"`
	Choices []struct {
		Text   string   `json:"text"`
		Tokens []uint32 `json:"token_ids"`
		Prompt []uint32 `json:"prompt_token_ids"`
		Finish *string  `json:"finish_reason"`
	} `json:"choices"`
	Error *struct {
		Code int `json:"code"`
	} `json:"error"`
}

// Event takes the data of the next event of the present engine, and returns what the client gets of it: of the first engine
// the data itself, of another one the same with the first one's id. gaveUp: the engine has ended the answer for a reason of its
// own; the client need not get the event if another engine continues. It fails with ErrContinue if the engine does not
// continue what the client has; then nothing of the event is for the client.
func (c *Continuation) Event(data []byte) (out []byte, gaveUp bool, err error) {
	var e completionEvent
	if string(data) == "[DONE]" {
		return data, !c.ended && c.Ready(), nil
	}
	if json.Unmarshal(data, &e) != nil || len(e.Choices) > 1 {
		return c.unknown(data)
	}
	if e.Error != nil {
		return data, e.Error.Code >= 500, nil
	}
	if len(e.Choices) == 0 {
		return data, false, nil // the usage, for the picker
	}
	choice := &e.Choices[0]
	if choice.Finish != nil && (*choice.Finish == "abort" || *choice.Finish == "error") && choice.Text == "" {
		return data, true, nil
	}
	if choice.Text != "" && len(choice.Tokens) == 0 || len(c.sent)+len(choice.Tokens) > c.most {
		return c.unknown(data) // an engine without token ids, or one that sends more than was asked for
	}
	if choice.Prompt != nil && len(choice.Prompt) != c.prompt+len(c.sent) {
		return c.unknown(data)
	}
	if c.next {
		if out, err = c.renamed(data); err != nil {
			return nil, false, err
		}
	} else {
		out = data
		if c.id == nil {
			c.id, c.created = e.ID, e.Created
		}
	}
	if len(choice.Tokens) > 0 {
		c.sent = append(c.sent, choice.Tokens...)
		c.lags = choice.Text == "" || strings.HasSuffix(choice.Text, "\uFFFD")
	}
	c.ended = choice.Finish != nil
	return out, false, nil
}

// unknown takes an event after which no other engine can continue.
func (c *Continuation) unknown(data []byte) ([]byte, bool, error) {
	c.lost = true
	if c.next {
		return nil, false, ErrContinue
	}
	return data, false, nil
}

// renamed is an event of another engine as the first one would have sent it.
func (c *Continuation) renamed(data []byte) ([]byte, error) {
	var event map[string]json.RawMessage
	var choices []map[string]json.RawMessage
	if json.Unmarshal(data, &event) != nil || json.Unmarshal(event["choices"], &choices) != nil {
		return nil, ErrContinue
	}
	delete(choices[0], "prompt_token_ids") // the client has it; this one has tokens of the answer in it
	list, err := marshal(choices)
	if err != nil {
		return nil, err
	}
	event["choices"] = list
	for name, value := range map[string]json.RawMessage{"id": c.id, "created": c.created} {
		if value != nil {
			event[name] = value
		}
	}
	return marshal(event)
}

// marshal is json.Marshal, which leaves the characters of HTML as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
