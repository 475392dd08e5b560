package render

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// chatFields of a chat request are what /tokenize knows, too, with the same defaults.
var chatFields = []string{"model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
	"continue_final_message", "add_special_tokens"}

// chatBeyond are fields that change the prompt and that /tokenize does not know.
var chatBeyond = []string{"reasoning_effort", "documents", "truncate_prompt_tokens"}

// tokenize asks /tokenize.
func (c *Client) tokenize(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (ids []uint32, err error) {
	question, keepLast, err := tokenizeRequest(route, body)
	if err != nil {
		return nil, err
	}
	err = c.post(ctx, ep, "/tokenize", question, apiKey, func(status int, answer []byte) error {
		if status != http.StatusOK {
			return &StatusError{status, messageOf(answer)}
		}
		var a answerScan
		if err := a.scan(answer, "tokens"); err != nil {
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		if a.objects != 1 {
			return fmt.Errorf("%w: not one object", ErrAnswer)
		}
		ids = a.ids
		return nil
	})
	if keepLast > 0 && len(ids) > keepLast {
		ids = ids[len(ids)-keepLast:]
	}
	return ids, err
}

// tokenizeRequest makes the question of the request. keepLast is how many ids the request wants kept, 0 for all.
func tokenizeRequest(route openai.Route, body []byte) (question []byte, keepLast int, err error) {
	var parsed openai.Request
	if err := openai.Parse(route, body, &parsed); err != nil {
		return nil, 0, fmt.Errorf("reading the request: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, 0, fmt.Errorf("reading the request: %w", err)
	}
	ask := map[string]any{}
	if route == openai.ChatCompletions {
		if parsed.Multimodal {
			return nil, 0, ErrMultimodal
		}
		for _, name := range chatBeyond {
			if isSet(fields[name]) {
				return nil, 0, fmt.Errorf("%w: it has no render route, and the request has %s", ErrUnsupported, name)
			}
		}
		for _, name := range chatFields {
			if isSet(fields[name]) {
				ask[name] = fields[name]
			}
		}
	} else {
		if parsed.Embeds || len(parsed.Prompts) != 1 || parsed.Prompts[0].IsTokens {
			return nil, 0, ErrPrompts
		}
		if parsed.TruncatePrompt < 0 {
			return nil, 0, fmt.Errorf("%w: it has no render route, and the request has truncate_prompt_tokens", ErrUnsupported)
		}
		keepLast = parsed.TruncatePrompt
		ask["model"], ask["prompt"] = parsed.Model, parsed.Prompts[0].Text
		if parsed.AddSpecialTokens != nil {
			ask["add_special_tokens"] = *parsed.AddSpecialTokens
		}
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(ask); err != nil {
		return nil, 0, fmt.Errorf("writing the question: %w", err)
	}
	return buf.Bytes(), keepLast, nil
}

func isSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// failure is an engine's error in one of the forms there are.
type failure struct {
	Error   json.RawMessage `json:"error"`
	Detail  json.RawMessage `json:"detail"`
	Message string          `json:"message"`
	Type    string          `json:"type"`
}

// failureOf reads the error in an answer: {"error": {...}}, {"error": "..."}, {"detail": ...} or the error itself.
func failureOf(answer []byte) failure {
	var outer failure
	if json.Unmarshal(answer, &outer) != nil {
		return failure{Message: string(bytes.TrimSpace(answer))}
	}
	inner := outer
	for _, raw := range []json.RawMessage{outer.Detail, outer.Error} {
		var text string
		switch {
		case !isSet(raw):
		case json.Unmarshal(raw, &text) == nil:
			inner.Message = text
		case json.Unmarshal(raw, &inner) != nil:
			inner.Message = string(raw)
		}
	}
	return inner
}

// messageOf is the engine's message in an answer.
func messageOf(answer []byte) string {
	m := failureOf(answer).Message
	return strings.ToValidUTF8(m[:min(len(m), maxMessage)], "")
}

// aboutModel tells a 404 that means the model from one that means the route.
func aboutModel(answer []byte) bool { return failureOf(answer).Type == "NotFoundError" }
