package vllmsim

import (
	"encoding/json"
	"net/http"
)

// serveResponses answers /v1/responses. Answers are not stored: a request that continues another one is refused.
func (e *Engine) serveResponses(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req struct {
		Model        string            `json:"model"`
		Input        json.RawMessage   `json:"input"`
		Instructions string            `json:"instructions"`
		MaxTokens    *number           `json:"max_output_tokens"`
		Stream       bool              `json:"stream"`
		Tools        []json.RawMessage `json:"tools"`
		Previous     string            `json:"previous_response_id"`
		Background   bool              `json:"background"`
		CacheSalt    json.RawMessage   `json:"cache_salt"`
		Messages     bool              `json:"enable_response_messages"`
	}
	if err := decode(body, &req); err != nil {
		return err
	}
	if req.Previous != "" || req.Background {
		return badRequest("previous_response_id", "responses are not stored by the simulator")
	}
	var messages []message
	switch {
	case len(req.Input) == 0 || string(req.Input) == "null":
		return invalid("body.input", "input is missing")
	case req.Input[0] == '"':
		var text content
		if err := decode(req.Input, &text); err != nil {
			return err
		}
		messages = []message{{Role: "user", Content: text}}
	default:
		if err := decodeInput(req.Input, &messages); err != nil {
			return err
		}
	}
	chat, prompt, err := e.chatOf(req.Model, req.Instructions, messages, req.Tools, req.MaxTokens, req.Stream, req.CacheSalt)
	if err != nil {
		return err
	}
	return e.serveConverted(w, r, chat, prompt, "resp_", func(t *convertedAnswer) answerWriter {
		t.numbered = true
		return responseTeller{t, req.Messages}
	})
}

// decodeInput reads a list of messages, whose parts are called input_text and output_text here.
func decodeInput(raw json.RawMessage, into *[]message) error {
	var list []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return invalid("body.input", err.Error())
	}
	for _, m := range list {
		one := message{Role: m.Role}
		var parts []map[string]any
		if json.Unmarshal(m.Content, &parts) == nil {
			for _, p := range parts {
				if p["type"] == "input_text" || p["type"] == "output_text" {
					p["type"] = "text"
				}
			}
			again, err := json.Marshal(parts)
			if err != nil {
				return err
			}
			m.Content = again
		}
		if len(m.Content) > 0 {
			if err := one.Content.UnmarshalJSON(m.Content); err != nil {
				return invalid("body.input", err.Error())
			}
		}
		*into = append(*into, one)
	}
	return nil
}

// responseTeller writes an answer as the Responses API does.
type responseTeller struct {
	*convertedAnswer
	// messages: the answer has the tokens of the prompt and its own.
	messages bool
}

// response is the object, with what is known of the answer so far.
func (t responseTeller) response(status string, output []any, usage any) map[string]any {
	return map[string]any{
		"id": t.id, "object": "response", "created_at": t.created, "status": status, "model": t.model, "output": output, "usage": usage,
		"error": nil, "tools": []any{}, "tool_choice": "auto", "parallel_tool_calls": true, "metadata": nil, "incomplete_details": nil,
	}
}

func (t responseTeller) item(text, status string) map[string]any {
	return map[string]any{
		"id": "msg_" + t.id, "type": "message", "role": "assistant", "status": status,
		"content": []any{map[string]any{"type": "output_text", "text": text, "annotations": []any{}}},
	}
}

func (t responseTeller) plain(v view) any {
	status := "completed"
	switch v.finish {
	case finishLength:
		status = "incomplete"
	case finishAbort:
		status = "cancelled"
	}
	out := t.response(status, []any{t.item(t.e.cfg.Text.Decode(v.tokens), "completed")}, map[string]any{
		"input_tokens": len(t.prompt), "input_tokens_details": map[string]any{"cached_tokens": v.cached}, "output_tokens": len(v.tokens),
		"output_tokens_details": map[string]any{"reasoning_tokens": 0}, "total_tokens": len(t.prompt) + len(v.tokens),
	})
	if t.messages {
		out["input_messages"], out["output_messages"] = []any{t.raw(t.prompt)}, []any{t.raw(v.tokens)}
	}
	if status == "incomplete" {
		out["incomplete_details"] = map[string]any{"reason": "max_output_tokens"}
	}
	return out
}

// raw is one of input_messages or output_messages.
func (t responseTeller) raw(ids []uint32) map[string]any {
	return map[string]any{"type": "raw_message_tokens", "message": t.e.cfg.Text.Decode(ids), "tokens": ids}
}

func (t responseTeller) begin(send func(string, map[string]any)) {
	started := t.response("in_progress", []any{}, nil)
	send("response.created", map[string]any{"response": started})
	send("response.in_progress", map[string]any{"response": started})
	item := t.item("", "in_progress")
	item["content"] = []any{}
	send("response.output_item.added", map[string]any{"item": item, "output_index": 0})
	send("response.content_part.added", map[string]any{
		"item_id": item["id"], "output_index": 0, "content_index": 0,
		"part": map[string]any{"type": "output_text", "text": "", "annotations": []any{}},
	})
}

func (t responseTeller) news(send func(string, map[string]any), text string) {
	send("response.output_text.delta", map[string]any{
		"item_id": "msg_" + t.id, "output_index": 0, "content_index": 0, "delta": text, "logprobs": []any{},
	})
}

func (t responseTeller) end(send func(string, map[string]any), v view) {
	text := t.e.cfg.Text.Decode(v.tokens)
	send("response.output_text.done", map[string]any{
		"item_id": "msg_" + t.id, "output_index": 0, "content_index": 0, "text": text, "logprobs": []any{},
	})
	send("response.output_item.done", map[string]any{"item": t.item(text, "completed"), "output_index": 0})
	send("response.completed", map[string]any{"response": t.plain(v)})
}
