package vllmsim

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// turn is a message of another API.
type turn struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// check refuses content that is neither a text nor parts of certain types.
func (t *turn) check(at string, types ...string) error {
	var text string
	var parts []struct {
		Type string `json:"type"`
	}
	switch {
	case json.Unmarshal(t.Content, &text) == nil:
		return nil
	case json.Unmarshal(t.Content, &parts) != nil:
		return invalid(at, "content must be a text or a list of parts")
	}
	for _, p := range parts {
		if !slices.Contains(types, p.Type) {
			return invalid(at, "unknown part of type "+p.Type)
		}
	}
	return nil
}

// plainText is the text of content; parts that are no text are shown as they came.
func plainText(raw json.RawMessage) string {
	var text string
	var parts []json.RawMessage
	if json.Unmarshal(raw, &text) == nil || json.Unmarshal(raw, &parts) != nil {
		return text
	}
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('\n')
		}
		var part struct {
			Text *string `json:"text"`
		}
		if json.Unmarshal(p, &part) == nil && part.Text != nil {
			b.WriteString(*part.Text)
			continue
		}
		var compact bytes.Buffer
		if json.Compact(&compact, p) == nil {
			b.Write(compact.Bytes())
		}
	}
	return b.String()
}

// standIn is what a request of another API says that a chat says too.
type standIn struct {
	model, system string
	turns         []turn
	tools         []json.RawMessage
	most          *number
	temperature   *float64
	stream        bool
	salt          *string
	requestID     string
	transfer      json.RawMessage
}

// body is the chat that the request stands for.
func (s *standIn) body() ([]byte, error) {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{}
	if s.system != "" {
		messages = append(messages, message{"system", s.system})
	}
	for _, t := range s.turns {
		messages = append(messages, message{t.Role, plainText(t.Content)})
	}
	return json.Marshal(struct {
		Model       string            `json:"model"`
		Messages    []message         `json:"messages"`
		Tools       []json.RawMessage `json:"tools,omitempty"`
		MaxTokens   *number           `json:"max_tokens,omitempty"`
		Temperature *float64          `json:"temperature,omitempty"`
		Stream      bool              `json:"stream"`
		CacheSalt   *string           `json:"cache_salt,omitempty"`
		RequestID   string            `json:"request_id,omitempty"`
		Transfer    json.RawMessage   `json:"kv_transfer_params,omitempty"`
	}{s.model, messages, s.tools, s.most, s.temperature, s.stream, s.salt, s.requestID, s.transfer})
}

// chatOf reads the request of another API as the chat that it stands for. With a model's template the prompt is that of the
// original request.
func (e *Engine) chatOf(route openai.Route, original []byte, s *standIn) (*chatRequest, []uint32, error) {
	body, err := s.body()
	if err != nil {
		return nil, nil, err
	}
	return e.chatFor(route, original, body)
}
