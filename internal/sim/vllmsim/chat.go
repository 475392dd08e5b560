package vllmsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// chatRequest is a chat request as far as it is simulated.
type chatRequest struct {
	common
	Messages            *[]message        `json:"messages"`
	Tools               []json.RawMessage `json:"tools"`
	MaxCompletionTokens *number           `json:"max_completion_tokens"`
	AddGenerationPrompt *bool             `json:"add_generation_prompt"`
	AddSpecialTokens    bool              `json:"add_special_tokens"`
}

type message struct {
	Role      string          `json:"role"`
	Content   content         `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// content is a message's text: a string, a list of text parts, or null.
type content string

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if b[0] != '[' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return fmt.Errorf("content: %w", err)
		}
		*c = content(s)
		return nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	var text strings.Builder
	for i, p := range parts {
		if p.Type != "text" {
			return fmt.Errorf("content part of type %q: only text is simulated", p.Type)
		}
		if i > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(p.Text)
	}
	*c = content(text.String())
	return nil
}

// chat reads and checks a chat request and tokenizes its messages.
func (e *Engine) chat(body []byte) (*chatRequest, []uint32, error) {
	return e.chatFor(openai.ChatCompletions, body, body)
}

// chatFor is chat for a request of a route, which body has been made of.
func (e *Engine) chatFor(route openai.Route, original, body []byte) (*chatRequest, []uint32, error) {
	req := &chatRequest{}
	if err := decode(body, req); err != nil {
		return nil, nil, err
	}
	if _, err := e.adapter(req.Model); err != nil {
		return nil, nil, err
	}
	switch {
	case req.Messages == nil:
		return nil, nil, invalid("body.messages", "messages are missing")
	case len(*req.Messages) == 0:
		return nil, nil, badRequest("", "messages must have at least one element")
	}
	req.maxTokensParam, req.text = "max_tokens", true
	if req.MaxCompletionTokens != nil {
		req.MaxTokens, req.maxTokensParam = req.MaxCompletionTokens, "max_completion_tokens"
	}
	if req.MaxTokens == nil {
		d := number(e.cfg.DefaultOutput)
		req.MaxTokens, req.maxTokensByPlan = &d, true
	}
	if err := req.check(); err != nil {
		return nil, nil, err
	}
	if err := e.renders(); err != nil {
		return nil, nil, err
	}
	if e.cfg.Chat != nil {
		ids, err := e.cfg.Chat(route, original)
		if route != openai.ChatCompletions && errors.Is(err, chatprompt.ErrUnsupported) { // as for older releases: then its texts alone
			ids, err = e.cfg.Chat(openai.ChatCompletions, body)
		}
		if err != nil {
			return nil, nil, badRequest("", "tokenizing: "+err.Error())
		}
		return req, req.truncated(ids), nil
	}
	ids, err := e.tokenize("messages", req.render(), req.AddSpecialTokens || route == openai.Responses)
	return req, req.truncated(ids), err
}

// render applies the one chat template there is, ChatML: <|im_start|>role, a line break, the content and <|im_end|> for
// each message, and the beginning of the assistant's turn. Tools are one JSON document each, a line for each, at the end
// of the system turn, which is made if there is none. An assistant's tool calls follow its content as they were given.
func (r *chatRequest) render() string {
	var b strings.Builder
	messages := *r.Messages
	if len(r.Tools) > 0 && messages[0].Role != "system" {
		messages = append([]message{{Role: "system"}}, messages...)
	}
	for i, m := range messages {
		b.WriteString(imStart + m.Role + "\n" + string(m.Content))
		if i == 0 {
			for _, tool := range r.Tools {
				b.WriteByte('\n')
				b.Write(tool)
			}
		}
		if len(m.ToolCalls) > 0 && string(m.ToolCalls) != "null" {
			b.WriteByte('\n')
			b.Write(m.ToolCalls)
		}
		b.WriteString(imEnd + "\n")
	}
	if r.AddGenerationPrompt == nil || *r.AddGenerationPrompt {
		b.WriteString(imStart + "assistant\n")
	}
	return b.String()
}
