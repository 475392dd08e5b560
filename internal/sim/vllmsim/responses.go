package vllmsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// responsesPath is the route of the Responses API; below it lie answers that are stored.
const responsesPath = "/v1/responses"

// responsesRequest is a request of the Responses API as far as it is simulated.
type responsesRequest struct {
	Model        string            `json:"model"`
	Input        json.RawMessage   `json:"input"`
	Instructions string            `json:"instructions"`
	MaxTokens    *number           `json:"max_output_tokens"`
	Temperature  *float64          `json:"temperature"`
	Stream       bool              `json:"stream"`
	Tools        []json.RawMessage `json:"tools"`
	Previous     string            `json:"previous_response_id"`
	Background   bool              `json:"background"`
	Store        *bool             `json:"store"`
	Prompt       json.RawMessage   `json:"prompt"`
	CacheSalt    *string           `json:"cache_salt"`
	RequestID    string            `json:"request_id"`
	KVTransfer   json.RawMessage   `json:"kv_transfer_params"`
	Messages     bool              `json:"enable_response_messages"`

	// What answers repeat.
	TopP        *float64          `json:"top_p"`
	Frequency   *float64          `json:"frequency_penalty"`
	Presence    *float64          `json:"presence_penalty"`
	Truncation  string            `json:"truncation"`
	ServiceTier string            `json:"service_tier"`
	ToolChoice  json.RawMessage   `json:"tool_choice"`
	Metadata    map[string]string `json:"metadata"`
}

// check is the engine's first check of a body.
func (r *responsesRequest) check() error {
	switch {
	case r.CacheSalt != nil && *r.CacheSalt == "":
		return badRequest("cache_salt", "cache_salt must be a non-empty string if it is given")
	case r.Background && r.Store != nil && !*r.Store:
		return badRequest("background", "background can only be used when store is true")
	case len(r.Prompt) > 0 && string(r.Prompt) != "null":
		return badRequest("prompt", "stored prompts are not supported")
	case len(r.Input) == 0 || string(r.Input) == "null":
		return invalid("body.input", "input is missing")
	}
	return nil
}

// items are the messages of the input.
func (r *responsesRequest) items() ([]turn, error) {
	if r.Input[0] == '"' {
		return []turn{{"user", r.Input}}, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(r.Input, &list); err != nil {
		return nil, invalid("body.input", err.Error())
	}
	var turns []turn
	for _, raw := range list {
		var item struct {
			turn
			Type string `json:"type"`
		}
		const at = "body.input"
		switch err := json.Unmarshal(raw, &item); {
		case err != nil:
			return nil, invalid(at, err.Error())
		case item.Type == "function_call", item.Type == "reasoning":
			turns = append(turns, turn{"assistant", asText(raw)})
		case item.Type == "function_call_output":
			turns = append(turns, turn{"tool", asText(raw)})
		case !slices.Contains([]string{"user", "assistant", "system", "developer"}, item.Role):
			return nil, invalid(at, "unknown role "+item.Role)
		default:
			if err := item.check(at, "input_text", "output_text", "refusal"); err != nil {
				return nil, err
			}
			turns = append(turns, item.turn)
		}
	}
	return turns, nil
}

// asText is a JSON document as the JSON of a text.
func asText(raw json.RawMessage) json.RawMessage {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return nil
	}
	text, err := json.Marshal(compact.String())
	if err != nil {
		return nil
	}
	return text
}

// responses reads a request. Answers are not stored, which is what engines do by default: what refers to a stored one is refused.
func (e *Engine) responses(body []byte) (*responsesRequest, *chatRequest, []uint32, error) {
	req := &responsesRequest{}
	if err := decode(body, req); err != nil {
		return nil, nil, nil, err
	}
	if err := req.check(); err != nil {
		return nil, nil, nil, err
	}
	turns, err := req.items()
	if err != nil {
		return nil, nil, nil, err
	}
	if _, err := e.adapter(req.Model); err != nil {
		return nil, nil, nil, err
	}
	switch {
	case req.Background:
		return nil, nil, nil, invalidRequest(http.StatusBadRequest, "background", "nothing runs in the background without a store of responses")
	case req.Previous != "":
		return nil, nil, nil, noResponse(req.Previous, "response_id")
	}
	chat, prompt, err := e.chatOf(openai.Responses, body, &standIn{
		model: req.Model, system: req.Instructions, turns: turns, tools: req.Tools, most: req.MaxTokens, temperature: req.Temperature,
		stream: req.Stream, salt: req.CacheSalt, requestID: strings.TrimPrefix(req.RequestID, "resp_"),
		transfer: req.KVTransfer,
	})
	return req, chat, prompt, err
}

func invalidRequest(status int, param, message string) error {
	return &apiError{status: status, kind: "invalid_request_error", param: param, message: message}
}

func noResponse(id, param string) error {
	return invalidRequest(http.StatusNotFound, param, fmt.Sprintf("Response with id %q not found.", id))
}

// serveResponses answers /v1/responses.
func (e *Engine) serveResponses(w http.ResponseWriter, r *http.Request, body []byte) error {
	if err := e.admit(1); err != nil {
		return err
	}
	req, chat, prompt, err := e.responses(body)
	if err != nil {
		return err
	}
	return e.serveConverted(w, r, chat, prompt, "resp_", func(t *convertedAnswer) answerWriter {
		t.numbered = true
		return responseTeller{t, req}
	})
}

// renderResponses returns the request that a Responses request stands for.
func (e *Engine) renderResponses(w http.ResponseWriter, r *http.Request, body []byte) error {
	_, chat, prompt, err := e.responses(body)
	if err != nil {
		return err
	}
	return e.render(w, r, "resp_", &chat.common, prompt)
}

// stored answers for the paths of stored responses.
func (e *Engine) stored(path string) (route, bool) {
	id, ok := strings.CutPrefix(path, responsesPath+"/")
	missing := func(w http.ResponseWriter, _ *http.Request) { e.writeError(w, noResponse(id, "response_id")) }
	switch {
	case !ok || id == "":
		return nil, false
	case strings.HasSuffix(id, "/cancel"):
		id = strings.TrimSuffix(id, "/cancel")
		return onPost(missing), !strings.Contains(id, "/")
	}
	return onGet(missing), !strings.Contains(id, "/")
}

// responseTeller writes an answer as the Responses API does.
type responseTeller struct {
	*convertedAnswer
	req *responsesRequest
}

// response is the object, with what is known of the answer so far, and what of the request is repeated.
func (t responseTeller) response(status string, output []any, usage any) map[string]any {
	out := map[string]any{
		"id": t.id, "object": "response", "created_at": t.created, "status": status, "model": t.model, "output": output, "usage": usage,
		"error": nil, "tools": []any{}, "tool_choice": "none", "parallel_tool_calls": true, "metadata": t.req.Metadata, "incomplete_details": nil,
		"background": false, "max_output_tokens": t.e.cfg.MaxModelLen - len(t.prompt), "service_tier": "auto", "truncation": "disabled",
		"temperature": decimal(t.req.Temperature, 1), "top_p": decimal(t.req.TopP, 1),
		"frequency_penalty": decimal(t.req.Frequency, 0), "presence_penalty": decimal(t.req.Presence, 0), "instructions": nil,
	}
	if t.req.MaxTokens != nil {
		out["max_output_tokens"] = *t.req.MaxTokens
	}
	if len(t.req.Tools) > 0 {
		out["tools"], out["tool_choice"] = t.req.Tools, "auto"
		if len(t.req.ToolChoice) > 0 {
			out["tool_choice"] = t.req.ToolChoice
		}
	}
	for field, given := range map[string]string{
		"truncation": t.req.Truncation, "service_tier": t.req.ServiceTier, "instructions": t.req.Instructions,
	} {
		if given != "" {
			out[field] = given
		}
	}
	return out
}

// decimal writes a number as Python does: with a decimal point.
func decimal(given *float64, otherwise float64) json.RawMessage {
	if given != nil {
		otherwise = *given
	}
	text := strconv.FormatFloat(otherwise, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return json.RawMessage(text)
}

func textPart(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}}
}

func (t responseTeller) item(status string, content ...any) map[string]any {
	if content == nil {
		content = []any{}
	}
	return map[string]any{"id": t.itemID(), "type": "message", "role": "assistant", "status": status, "content": content}
}

func (t responseTeller) itemID() string { return "msg_" + t.id }

// items are the output: one message, or without a text none.
func (t responseTeller) items(v view) []any {
	if len(v.tokens) == 0 {
		return []any{}
	}
	return []any{t.item("completed", textPart(t.e.cfg.Text.Decode(v.tokens)))}
}

// counts are the usage. Turns are those of an engine that calls tools itself.
func (t responseTeller) counts(v view) map[string]any {
	size, none := t.e.cfg.BlockSize, []int{}
	return map[string]any{
		"input_tokens": len(t.prompt), "output_tokens": len(v.tokens), "total_tokens": len(t.prompt) + len(v.tokens),
		"input_tokens_details": map[string]any{
			"cached_tokens": v.cached, "cache_write_tokens": max(len(t.prompt)/size*size-v.cached, 0),
			"input_tokens_per_turn": none, "cached_tokens_per_turn": none,
		},
		"output_tokens_details": map[string]any{
			"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": none, "tool_output_tokens_per_turn": none,
		},
	}
}

// plain is the entire answer. What the engine has aborted is "completed" in it.
func (t responseTeller) plain(v view) any {
	status := "completed"
	if v.finish == finishLength {
		status = "incomplete"
	}
	out := t.response(status, t.items(v), t.counts(v))
	if handed := t.handed(v); handed != nil {
		out["kv_transfer_params"] = handed
	}
	if t.req.Messages {
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
}

// place is where the text of an answer is.
func (t responseTeller) place(more map[string]any) map[string]any {
	more["item_id"], more["output_index"], more["content_index"] = t.itemID(), 0, 0
	return more
}

func (t responseTeller) news(send func(string, map[string]any), text string, first bool) {
	if first {
		send("response.output_item.added", map[string]any{"item": t.item("in_progress"), "output_index": 0})
		part := textPart("")
		part["logprobs"] = []any{}
		send("response.content_part.added", t.place(map[string]any{"part": part}))
	}
	send("response.output_text.delta", t.place(map[string]any{"delta": text, "logprobs": []any{}}))
}

func (t responseTeller) end(send func(string, map[string]any), v view) {
	if len(v.tokens) > 0 {
		text := t.e.cfg.Text.Decode(v.tokens)
		send("response.output_text.done", t.place(map[string]any{"text": text, "logprobs": []any{}}))
		send("response.content_part.done", t.place(map[string]any{"part": textPart(text)}))
		send("response.output_item.done", map[string]any{"item": t.item("completed", textPart(text)), "output_index": 0})
	}
	send("response.completed", map[string]any{"response": t.plain(v)})
}

func (t responseTeller) fault() error { return errLoad }

// breakOff closes the connection within the stream.
func (t responseTeller) breakOff(func(string, map[string]any)) { panic(http.ErrAbortHandler) }
