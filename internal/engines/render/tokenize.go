package render

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// chatFields of a chat request are what /tokenize knows, too, with the same defaults.
var chatFields = []string{"model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
	"continue_final_message", "add_special_tokens"}

// maxTokenized is how many prompts of one request are tokenized, one question each.
const maxTokenized = 16

// questionByte, questionField and questionEscape are the most that each byte, each field, and each character that is written as an escape
// although it need not be one, take while questions are made of a request, in bytes.
const questionByte, questionField, questionEscape = 10, 320, 40

// tokenize asks /tokenize, once for each prompt. lack is why the render route does not answer.
func (c *Client) tokenize(ctx context.Context, m *memory, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string,
	lack Lack) (Answer, error) {
	cost := questionCost(body)
	if err := m.take(cost); err != nil {
		return Answer{}, err
	}
	defer m.Put(cost)
	var parsed openai.Request
	questions, err := tokenizeRequests(ctx, route, body, lack, &parsed)
	if err != nil {
		if !errors.Is(err, ErrPrompts) && !errors.Is(err, ErrMultimodal) && !errors.Is(err, ErrUnsupported) {
			err = fmt.Errorf("%w: %w", ErrUnsupported, err) // it is the request's fault, not the engine's
		}
		return Answer{}, err
	}
	out := Answer{Source: Tokenized}
	for i, question := range questions {
		ids, err := c.tokenizeCut(ctx, m, ep, question, &parsed, apiKey)
		if err != nil {
			return Answer{}, err
		}
		if i == 0 {
			out.IDs = ids
		} else {
			out.More = append(out.More, ids)
		}
	}
	return out, nil
}

// questionCost is the most that making the questions for a request takes, in bytes: its fields and texts are copied, and written again
// with escapes. Each field has a colon, and U+2028 and U+2029, which are escaped, begin with the same two bytes.
func questionCost(body []byte) int {
	return questionByte*len(body) + questionField*bytes.Count(body, []byte(":")) + questionEscape*bytes.Count(body, []byte("\u2028"[:2]))
}

// tokenizeCut asks for the ids of one prompt, and cuts them as the request says: /tokenize does not know truncation.
func (c *Client) tokenizeCut(ctx context.Context, m *memory, ep *endpoint.Endpoint, question map[string]any, parsed *openai.Request,
	apiKey string) ([]uint32, error) {
	ids, err := c.tokenizeOne(ctx, m, ep, question, apiKey)
	if err != nil || !parsed.Cuts(len(ids)) {
		return ids, err
	}
	plain := ids
	if parsed.AddsSpecial() && parsed.KeepsSpecial() {
		question["add_special_tokens"] = false
		if plain, err = c.tokenizeOne(ctx, m, ep, question, apiKey); err != nil {
			return nil, err
		}
	}
	kept, ok := parsed.Truncate(ids, plain)
	if !ok {
		return nil, beyond("truncate_prompt_tokens below the number of special tokens")
	}
	return kept, nil
}

func (c *Client) tokenizeOne(ctx context.Context, m *memory, ep *endpoint.Endpoint, ask map[string]any,
	apiKey string) (ids []uint32, err error) {
	question, err := encoded(ask)
	if err != nil {
		return nil, fmt.Errorf("%w: writing the question: %w", ErrUnsupported, err)
	}
	err = c.post(ctx, m, ep, "/tokenize", payload{body: question}, apiKey, func(status int, answer []byte) error {
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
		return m.keep(&Answer{IDs: ids})
	})
	return ids, err
}

// encoded is a question as it is sent.
func encoded(question map[string]any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(question)
	return text.Bytes(), err
}

// beyond is the error about a request that only a render route can answer.
func beyond(what string) error {
	return fmt.Errorf("%w: no render route is open, and /tokenize does not know %s", ErrUnsupported, what)
}

// tokenizeRequests makes the questions for a request, which it reads into parsed: one for each of its prompts.
func tokenizeRequests(ctx context.Context, route openai.Route, body []byte, lack Lack,
	parsed *openai.Request) (asks []map[string]any, err error) {
	switch {
	case route == openai.Messages && lack == SwitchedOff: // only then the release is known, as far as its rules go
		if body, err = messagesChat(ctx, body); err != nil {
			return nil, err
		}
		route = openai.ChatCompletions
	case route != openai.Completions && route != openai.ChatCompletions && route != openai.Embeddings:
		return nil, beyond("/v1/" + route.String())
	}
	if err := openai.Parse(route, body, parsed); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(bytes.TrimPrefix(body, byteOrderMark), &fields); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	if parsed.TruncatePrompt < 0 {
		return nil, beyond("truncate_prompt_tokens: -1")
	}
	if route == openai.ChatCompletions {
		return chatQuestion(parsed, fields, lack)
	}
	return textQuestions(parsed, fields)
}

// byteOrderMark is U+FEFF, which engines pass over.
var byteOrderMark = []byte("\ufeff")

// messagesChat is the chat that an engine makes of a Messages request, from vLLM 0.32 on.
func messagesChat(ctx context.Context, body []byte) ([]byte, error) {
	var parsed openai.Request
	if err := openai.Parse(openai.Messages, body, &parsed); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	chat, err := chatprompt.MessagesChat(ctx, body, &parsed, "0.32")
	switch {
	case parsed.Multimodal:
		return nil, ErrMultimodal
	case errors.Is(err, chatprompt.ErrUnsupported):
		return nil, fmt.Errorf("%w: no render route is open, and %w", ErrUnsupported, err)
	}
	return chat, err
}

func textQuestions(parsed *openai.Request, fields map[string]json.RawMessage) (asks []map[string]any, err error) {
	switch {
	case parsed.Embeds || len(parsed.Prompts) == 0 || len(parsed.Prompts) > maxTokenized || parsed.Prompts[0].IsTokens:
		return nil, ErrPrompts
	case isSet(fields["suffix"]): // part of the prompt of models that fill in the middle, from vLLM 0.31 on
		return nil, beyond("suffix")
	case parsed.Route == openai.Embeddings && isSet(fields["padding"]):
		return nil, beyond("padding")
	}
	for _, p := range parsed.Prompts {
		ask := map[string]any{"model": parsed.Model, "prompt": p.Text}
		if parsed.AddSpecialTokens != nil {
			ask["add_special_tokens"] = *parsed.AddSpecialTokens
		}
		asks = append(asks, ask)
	}
	return asks, nil
}

func chatQuestion(parsed *openai.Request, fields map[string]json.RawMessage, lack Lack) (asks []map[string]any, err error) {
	var choice string
	_ = json.Unmarshal(fields["tool_choice"], &choice) // anything but a string is no "none"
	switch {
	case parsed.Multimodal:
		return nil, ErrMultimodal
	case choice == "none" && len(parsed.Tools) > 0:
		// The engine leaves the tools out if it was started with --exclude-tools-when-tool-choice-none.
		return nil, beyond("tool_choice: none")
	}
	ask := map[string]any{}
	for _, name := range chatFields {
		if isSet(fields[name]) {
			ask[name] = fields[name]
		}
	}
	if !isSet(fields["documents"]) && !isSet(fields["reasoning_effort"]) {
		return []map[string]any{ask}, nil
	}
	if lack != SwitchedOff { // only then the release is known: 0.32 or newer
		return nil, beyond("documents and reasoning_effort")
	}
	if ask["chat_template_kwargs"], err = mergedArguments(fields); err != nil {
		return nil, err
	}
	return []map[string]any{ask}, nil
}

// mergedArguments are chat_template_kwargs with what vLLM 0.24 and newer adds to them for two fields that /tokenize does
// not have: documents and reasoning_effort as variables of these names, and enable_thinking unless it is given.
func mergedArguments(fields map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	merged := map[string]json.RawMessage{}
	if given := fields["chat_template_kwargs"]; isSet(given) && json.Unmarshal(given, &merged) != nil {
		return nil, beyond("chat_template_kwargs that are no object")
	}
	if documents := fields["documents"]; isSet(documents) {
		merged["documents"] = documents
	}
	raw := fields["reasoning_effort"]
	if !isSet(raw) {
		return merged, nil
	}
	var effort string
	if json.Unmarshal(raw, &effort) != nil {
		return nil, beyond("a reasoning_effort that is no string")
	}
	if effort != "auto" {
		merged["reasoning_effort"] = raw
	}
	if _, given := merged["enable_thinking"]; !given {
		merged["enable_thinking"] = json.RawMessage(strconv.FormatBool(effort != "none"))
	}
	return merged, nil
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
	return strings.ToValidUTF8(strings.Clone(m[:min(len(m), maxMessage)]), "")
}

// aboutModel distinguishes a 404 about the model from one about the route.
func aboutModel(answer []byte) bool { return failureOf(answer).Type == "NotFoundError" }
