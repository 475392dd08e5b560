package vllmsim

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// messagesRequest is a request of Anthropic's API as far as it is simulated.
type messagesRequest struct {
	Model       string            `json:"model"`
	Messages    *[]turn           `json:"messages"`
	System      json.RawMessage   `json:"system"`
	MaxTokens   *number           `json:"max_tokens"`
	Temperature *float64          `json:"temperature"`
	Stream      bool              `json:"stream"`
	Tools       []json.RawMessage `json:"tools"`
	CacheSalt   *string           `json:"cache_salt"`
	KVTransfer  json.RawMessage   `json:"kv_transfer_params"`
}

// messagesError is an error in the form of Anthropic's API. The engine's first check of a body, which is the same for all
// APIs, has errors in the form of all others.
type messagesError struct{ error }

func (e messagesError) Unwrap() error { return e.error }

// check is the engine's first check of a body.
func (r *messagesRequest) check(counting bool) error {
	switch {
	case r.Model == "":
		return invalid("body.model", "there is no model")
	case r.Messages == nil:
		return invalid("body.messages", "messages are missing")
	case !counting && r.MaxTokens == nil:
		return invalid("body.max_tokens", "max_tokens is missing")
	case !counting && *r.MaxTokens < 1:
		return invalid("body.max_tokens", "max_tokens must be positive")
	case r.CacheSalt != nil && *r.CacheSalt == "":
		return invalid("body.cache_salt", "cache_salt must be a non-empty string if it is given")
	}
	for i, m := range *r.Messages {
		at := "body.messages." + strconv.Itoa(i)
		if !slices.Contains([]string{"user", "assistant", "system"}, m.Role) {
			return invalid(at+".role", "unknown role "+m.Role)
		}
		if err := m.check(at+".content", "text", "tool_use", "tool_result", "thinking", "redacted_thinking"); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) messages(body []byte, counting bool) (*chatRequest, []uint32, error) {
	var req messagesRequest
	if err := decode(body, &req); err != nil {
		return nil, nil, err
	}
	if !e.cfg.Release.saltsMessages() {
		req.CacheSalt = nil
	}
	if err := req.check(counting); err != nil {
		return nil, nil, err
	}
	chat, prompt, err := e.chatOf(openai.Messages, body, &standIn{
		model: req.Model, system: plainText(req.System), turns: *req.Messages, tools: req.Tools, most: req.MaxTokens,
		temperature: req.Temperature, stream: req.Stream, salt: req.CacheSalt, transfer: req.KVTransfer,
	})
	if err != nil {
		return nil, nil, messagesError{err}
	}
	return chat, prompt, nil
}

// serveMessages answers /v1/messages.
func (e *Engine) serveMessages(w http.ResponseWriter, r *http.Request, body []byte) error {
	if err := e.admit(1); err != nil {
		return messagesError{err}
	}
	req, prompt, err := e.messages(body, false)
	if err != nil {
		return err
	}
	if err := e.serveConverted(w, r, req, prompt, "chatcmpl-", func(t *convertedAnswer) answerWriter { return messageTeller{t} }); err != nil {
		return messagesError{err}
	}
	return nil
}

// serveCount answers /v1/messages/count_tokens.
func (e *Engine) serveCount(w http.ResponseWriter, _ *http.Request, body []byte) error {
	_, prompt, err := e.messages(body, true)
	if err != nil {
		return err
	}
	e.writeJSON(w, map[string]any{"input_tokens": len(prompt), "context_management": map[string]int{"original_input_tokens": len(prompt)}})
	return nil
}

// renderMessages returns the request that a Messages request stands for. Its errors have the form of other APIs.
func (e *Engine) renderMessages(w http.ResponseWriter, r *http.Request, body []byte) error {
	req, prompt, err := e.messages(body, false)
	if own := (messagesError{}); errors.As(err, &own) {
		return own.error
	}
	if err != nil {
		return err
	}
	return e.render(w, r, "chatcmpl-", &req.common, prompt)
}

// messageTeller writes an answer as Anthropic's API does.
type messageTeller struct{ *convertedAnswer }

func (t messageTeller) reason(v view) any {
	switch v.finish {
	case finishStop:
		return "end_turn"
	case finishLength:
		return "max_tokens"
	}
	return nil
}

// counts are the usage: the prompt without what was cached and what was added to the cache, and these two.
func (t messageTeller) counts(v view) map[string]any {
	counts := map[string]any{"input_tokens": len(t.prompt), "output_tokens": len(v.tokens)}
	if d := t.e.details(t.prompt, v.cached, true); d != nil {
		counts["cache_read_input_tokens"] = d.Cached
		fresh := len(t.prompt) - d.Cached
		if d.Created != nil {
			counts["cache_creation_input_tokens"] = *d.Created
			fresh -= *d.Created
		}
		counts["input_tokens"] = fresh
	}
	return counts
}

func (t messageTeller) plain(v view) any {
	out := map[string]any{
		"id": t.id, "type": "message", "role": "assistant", "model": t.model,
		"content": []any{map[string]any{"type": "text", "text": t.e.cfg.Text.Decode(v.tokens)}}, "usage": t.counts(v),
	}
	if reason := t.reason(v); reason != nil {
		out["stop_reason"] = reason
	}
	if handed := t.handed(v); handed != nil {
		out["kv_transfer_params"] = handed
	}
	return out
}

func (t messageTeller) begin(send func(string, map[string]any)) {
	send("message_start", map[string]any{"message": map[string]any{
		"id": t.id, "type": "message", "role": "assistant", "content": []any{}, "model": t.model, "stop_reason": nil, "stop_sequence": nil,
		"usage": map[string]any{"input_tokens": len(t.prompt), "output_tokens": 0},
	}})
}

func (t messageTeller) news(send func(string, map[string]any), text string, first bool) {
	if first {
		send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
	}
	send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": text}})
}

func (t messageTeller) end(send func(string, map[string]any), v view) {
	if len(v.tokens) > 0 {
		send("content_block_stop", map[string]any{"index": 0})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": t.reason(v), "stop_sequence": nil}, "usage": t.counts(v)})
	send("message_stop", map[string]any{})
}

func (t messageTeller) fault() error { return messagesError{errLoad} }

func (t messageTeller) breakOff(send func(string, map[string]any)) {
	const message = "2 validation errors for ChatCompletionStreamResponse"
	send("error", map[string]any{"error": map[string]any{"type": "internal_error", "message": message}})
}
