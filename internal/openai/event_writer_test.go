package openai

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Keys and words of events, of all routes together: what one route does not know must not matter to it.
var (
	topEventKeys = []string{"type", "type", "delta", "delta", "response", "message", "content_block", "usage", "error", "object", "choices", "x"}
	eventTypes   = []string{
		"response.created", "response.output_text.delta", "response.output_item.done", "response.completed", "response.incomplete", "response.failed",
		"response.cancelled", "response.", "error", "message_start", "content_block_start", "content_block_delta", "message_delta", "message_delta",
		"message_stop", "tool_use", "x.delta", "x",
	}
	innerEventKeys = map[string][]string{
		"delta": {
			"stop_reason", "stop_reason", "text", "thinking", "partial_json", "signature", "content", "reasoning", "reasoning_content", "refusal", "tool_calls",
			"function_call", "type",
		},
		"response":              {"status", "status", "error", "usage", "usage", "output"},
		"message":               {"usage", "usage", "content"},
		"content_block":         {"type", "type", "text"},
		"choice":                {"delta", "delta", "finish_reason", "text"},
		"input_tokens_details":  {"cached_tokens", "cached_tokens", "x"},
		"prompt_tokens_details": {"cached_tokens", "cached_tokens", "x"},
		"usage": {
			"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "prompt_tokens", "completion_tokens",
			"prompt_tokens_details", "input_tokens_details",
		},
	}
)

// event is a random event on one line.
func (w *writer) event() string {
	w.b = w.b[:0]
	w.object(topEventKeys, w.eventValue)
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(string(w.b)) // which stand between values only
}

func (w *writer) eventValue(key string) {
	words := func(list ...string) { w.str(list[w.rng.IntN(len(list))]) }
	if w.odds(8) {
		w.b = append(w.b, "null"...)
		return
	}
	if w.odds(16) {
		w.any(2)
		return
	}
	switch key {
	case "type":
		words(eventTypes...)
	case "status":
		words("completed", "failed", "cancelled", "in_progress")
	case "object":
		words("error", "response")
	case "stop_reason", "finish_reason":
		words("stop", "abort", "")
	case "error":
		w.b = append(w.b, "{}"...)
	case "choices":
		w.list(w.rng.IntN(3), func() { w.eventValue("choice") })
	case "delta":
		if w.odds(3) {
			words("", "x")
			return
		}
		w.object(innerEventKeys[key], w.eventValue)
	case "response", "message", "content_block", "choice", "usage", "input_tokens_details", "prompt_tokens_details":
		w.object(innerEventKeys[key], w.eventValue)
	case "tool_calls":
		w.list(w.rng.IntN(2), w.number)
	case "text", "thinking", "partial_json", "signature", "content", "reasoning", "reasoning_content", "refusal", "function_call":
		words("", "", "x")
	default:
		w.number()
	}
}

func TestAnswerScannerAgreesWithATreeOnEvents(t *testing.T) {
	w := &writer{rng: rand.New(rand.NewPCG(11, 12))}
	for round := range 1_500 * numRoutes {
		answer := ""
		for range 1 + w.rng.IntN(3) {
			answer += "data: " + w.event() + "\n\n"
		}
		checkAnswer(t, Route(round%numRoutes), true, answer, w.rng)
		checkAnswer(t, Route(round%numRoutes), false, w.event(), w.rng)
	}
}
