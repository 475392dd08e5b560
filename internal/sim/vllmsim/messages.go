package vllmsim

import (
	"encoding/json"
	"net/http"
)

// messagesRequest is a request of Anthropic's API as far as it is simulated.
type messagesRequest struct {
	Model     string            `json:"model"`
	Messages  []message         `json:"messages"`
	System    content           `json:"system"`
	MaxTokens *number           `json:"max_tokens"`
	Stream    bool              `json:"stream"`
	Tools     []json.RawMessage `json:"tools"`
	CacheSalt json.RawMessage   `json:"cache_salt"`
}

// chatMessage is a message of a chat that another API's request is made into.
type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatOf is the chat that a request of another API stands for, read as a chat of its own.
func (e *Engine) chatOf(
	model, system string, messages []message, tools []json.RawMessage, most *number, stream bool, salt json.RawMessage,
) (*chatRequest, []uint32, error) {
	turns := []chatMessage{}
	if system != "" {
		turns = append(turns, chatMessage{"system", system})
	}
	for _, m := range messages {
		turns = append(turns, chatMessage{m.Role, string(m.Content)})
	}
	chat := map[string]any{"model": model, "messages": turns, "stream": stream}
	if len(tools) > 0 {
		chat["tools"] = tools
	}
	if most != nil {
		chat["max_tokens"] = *most
	}
	if len(salt) > 0 {
		chat["cache_salt"] = salt
	}
	body, err := json.Marshal(chat)
	if err != nil {
		return nil, nil, err
	}
	return e.chat(body)
}

func (e *Engine) messages(body []byte) (*chatRequest, []uint32, error) {
	var req messagesRequest
	if err := decode(body, &req); err != nil {
		return nil, nil, err
	}
	if !e.cfg.Release.saltsMessages() {
		req.CacheSalt = nil
	}
	return e.chatOf(req.Model, string(req.System), req.Messages, req.Tools, req.MaxTokens, req.Stream, req.CacheSalt)
}

// serveMessages answers /v1/messages.
func (e *Engine) serveMessages(w http.ResponseWriter, r *http.Request, body []byte) error {
	req, prompt, err := e.messages(body)
	if err != nil {
		return err
	}
	return e.serveConverted(w, r, req, prompt, "msg_", func(t *convertedAnswer) answerWriter { return messageTeller{t} })
}

// serveCount answers /v1/messages/count_tokens.
func (e *Engine) serveCount(w http.ResponseWriter, _ *http.Request, body []byte) error {
	_, prompt, err := e.messages(body)
	if err != nil {
		return err
	}
	e.writeJSON(w, map[string]int{"input_tokens": len(prompt)})
	return nil
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

// counts are the usage: the prompt without what was cached, and that.
func (t messageTeller) counts(v view) map[string]any {
	return map[string]any{"input_tokens": len(t.prompt) - v.cached, "output_tokens": len(v.tokens), "cache_read_input_tokens": v.cached}
}

func (t messageTeller) plain(v view) any {
	return map[string]any{
		"id": t.id, "type": "message", "role": "assistant", "model": t.model, "stop_reason": t.reason(v), "stop_sequence": nil,
		"content": []any{map[string]any{"type": "text", "text": t.e.cfg.Text.Decode(v.tokens)}}, "usage": t.counts(v),
	}
}

func (t messageTeller) begin(send func(string, map[string]any)) {
	send("message_start", map[string]any{"message": map[string]any{
		"id": t.id, "type": "message", "role": "assistant", "content": []any{}, "model": t.model, "stop_reason": nil, "stop_sequence": nil,
		"usage": map[string]any{"input_tokens": len(t.prompt), "output_tokens": 0},
	}})
	send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
}

func (t messageTeller) news(send func(string, map[string]any), text string) {
	send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": text}})
}

func (t messageTeller) end(send func(string, map[string]any), v view) {
	send("content_block_stop", map[string]any{"index": 0})
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": t.reason(v), "stop_sequence": nil}, "usage": t.counts(v)})
	send("message_stop", map[string]any{})
}
