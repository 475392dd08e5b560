package openai

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sse writes events as engines of these routes do: type and data.
func sse(events ...string) string {
	var b strings.Builder
	for i := 0; i < len(events); i += 2 {
		b.WriteString("event: " + events[i] + "\ndata: " + events[i+1] + "\n\n")
	}
	return b.String()
}

func TestAnswerScannerOfOtherRoutes(t *testing.T) {
	created := sse(
		"response.created", `{"response":{"id":"resp_1","object":"response","output":[],"status":"in_progress","usage":null,"tools":[],"error":null},"sequence_number":0,"type":"response.created"}`,
		"response.in_progress", `{"response":{"id":"resp_1","status":"in_progress","usage":null},"sequence_number":1,"type":"response.in_progress"}`,
		"response.output_item.added", `{"item":{"id":"msg_1","content":[],"role":"assistant","status":"in_progress","type":"message"},"output_index":0,"sequence_number":2,"type":"response.output_item.added"}`,
		"response.content_part.added", `{"content_index":0,"item_id":"msg_1","part":{"text":"","type":"output_text"},"sequence_number":3,"type":"response.content_part.added"}`,
	)
	text := sse("response.output_text.delta", `{"content_index":0,"delta":"Hello","item_id":"msg_1","logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}`)
	completed := func(status string) string {
		return sse("response.completed", `{"response":{"id":"resp_1","output":[{"type":"message","content":[{"text":"Hello","type":"output_text"}]}],"status":"`+status+`",`+
			`"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":8,"cached_tokens_per_turn":[8]},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":14}},`+
			`"sequence_number":9,"type":"response.completed"}`)
	}
	start := sse("message_start", `{"type":"message_start","message":{"id":"m","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":12,"output_tokens":0}}}`)
	block := sse("content_block_start", `{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}`, "ping", `{"type":"ping"}`)
	hello := sse("content_block_delta", `{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello"},"index":0}`)
	stop := sse("content_block_stop", `{"type":"content_block_stop","index":0}`)
	end := sse("message_stop", `{"type":"message_stop"}`)
	delta := func(reason string) string {
		return sse("message_delta", `{"type":"message_delta","delta":{"stop_reason":`+reason+`},"usage":{"input_tokens":4,"output_tokens":2,"cache_read_input_tokens":8}}`)
	}
	reasons := sse("response.reasoning_text.delta", `{"delta":"Hm","type":"response.reasoning_text.delta"}`)
	calls := sse("response.function_call_arguments.delta", `{"type":"response.function_call_arguments.delta","delta":"{"}`)
	tool := sse("content_block_start", `{"type":"content_block_start","content_block":{"type":"tool_use","id":"t","name":"f","input":{}},"index":0}`)
	short := sse("message_delta", `{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":3}}`)
	cached := Usage{PromptTokens: 12, CompletionTokens: 2, CachedTokens: 8, Have: true, HaveCached: true}
	const bodyOfAResponse = `{"id":"r","error":null,"object":"response","output":[{"usage":1}],"status":"completed","usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":8},"output_tokens":2}}`
	for name, tc := range map[string]struct {
		route  Route
		json   bool // not a stream
		answer string
		want   outcome
	}{
		"a response": {
			route: Responses, answer: created + text + completed("completed"),
			want: outcome{Usage: cached, FirstToken: true, Finished: true, Done: true, First: len(created + text)},
		},
		"a response that has said nothing yet": {route: Responses, answer: created, want: outcome{Empty: true, First: -1}},
		"a response that reasons": {
			route: Responses, answer: created + reasons, want: outcome{FirstToken: true, First: len(created + reasons)},
		},
		"a response that calls a function": {
			route: Responses, answer: created + calls, want: outcome{FirstToken: true, First: len(created + calls)},
		},
		"a response cut short by its limit, without a word": {
			route: Responses, answer: created + completed("incomplete"),
			want: outcome{Usage: cached, FirstToken: true, Finished: true, Done: true, First: len(created + completed("incomplete"))},
		},
		"a response of an engine that is shut down": {
			route: Responses, answer: created + completed("cancelled"),
			want: outcome{Usage: cached, Finished: true, Aborted: true, Done: true, First: -1},
		},
		"a response that fails": {
			route: Responses, answer: created + text + sse("response.failed", `{"response":{"status":"failed","error":{"code":"server_error"}},"type":"response.failed"}`),
			want: outcome{FirstToken: true, Failed: true, Done: true, First: len(created + text)},
		},
		"a response with an error of the older kind": {
			route: Responses, answer: created + `data: {"error":{"message":"x","code":500}}` + "\n\n", want: outcome{Failed: true, Error: AnswerError{Status: 500}, First: -1},
		},
		"a response that is not streamed": {
			route: Responses, json: true, answer: bodyOfAResponse, want: outcome{Usage: cached, Finished: true, First: -1},
		},
		"a response that is not streamed and was given up": {
			route: Responses, json: true, answer: strings.Replace(bodyOfAResponse, "completed", "cancelled", 1),
			want: outcome{Usage: cached, Finished: true, Aborted: true, First: -1},
		},
		"a message": {
			route: Messages, answer: start + block + hello + stop + delta(`"end_turn"`) + end,
			want: outcome{Usage: cached, FirstToken: true, Finished: true, Done: true, First: len(start + block + hello)},
		},
		"a message that has said nothing yet": {
			route: Messages, answer: start + block, want: outcome{Usage: Usage{PromptTokens: 12, Have: true}, Empty: true, First: -1},
		},
		"a message that calls a tool": {
			route: Messages, answer: start + tool,
			want: outcome{Usage: Usage{PromptTokens: 12, Have: true}, FirstToken: true, First: len(start + tool)},
		},
		"a signature is no token": {
			route: Messages, answer: start + sse("content_block_delta", `{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"x"}}`),
			want: outcome{Usage: Usage{PromptTokens: 12, Have: true}, Empty: true, First: -1},
		},
		"a message without a word": {
			route: Messages, answer: start + delta(`"end_turn"`) + end + "data: [DONE]\n\n",
			want: outcome{Usage: cached, FirstToken: true, Finished: true, Done: true, First: len(start + delta(`"end_turn"`))},
		},
		"numbers that are reported once stay": {
			route: Messages, answer: start + short,
			want: outcome{Usage: Usage{PromptTokens: 12, CompletionTokens: 3, Have: true}, FirstToken: true, Finished: true, First: len(start + short)},
		},
		"a message of an engine that is shut down": {
			route: Messages, answer: start + delta("null") + end,
			want: outcome{Usage: cached, Aborted: true, Done: true, First: -1},
		},
		"a message that fails": {
			route: Messages, answer: start + sse("error", `{"type":"error","error":{"type":"internal_error","message":"x"}}`),
			want: outcome{Usage: Usage{PromptTokens: 12, Have: true}, Failed: true, Error: AnswerError{Status: 500}, First: -1},
		},
		"a message that is not streamed": {
			route: Messages, json: true,
			answer: `{"id":"m","type":"message","content":[{"type":"text","text":"usage"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2,"cache_read_input_tokens":8,"cache_creation_input_tokens":1}}`,
			want:   outcome{Usage: cached, Finished: true, First: -1},
		},
		"a message that is refused": {
			route: Messages, json: true, answer: `{"type":"error","error":{"type":"BadRequestError","message":"x"}}`, want: outcome{Finished: true, Failed: true, First: -1},
		},
		"embeddings": {
			route: Embeddings, json: true,
			answer: `{"id":"e","object":"list","data":[{"index":0,"object":"embedding","embedding":[0.25,-1e-05]}],"usage":{"prompt_tokens":12,"total_tokens":12,"completion_tokens":0,"prompt_tokens_details":null}}`,
			want:   outcome{Usage: Usage{PromptTokens: 12, Have: true}, Finished: true, First: -1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range len(tc.answer) + 1 {
				want := tc.want
				if want.First > i {
					want.First = len(tc.answer)
				} else if want.First >= 0 {
					want.First = i
				}
				if d := cmp.Diff(want, watch(t, tc.route, !tc.json, tc.answer, i)); d != "" {
					t.Fatalf("cut at %d (-want +got):\n%s", i, d)
				}
			}
		})
	}
}

func BenchmarkAnswerScannerOfOtherRoutes(b *testing.B) {
	run := func(name string, route Route, answer string, reset bool) {
		b.Run(name, func(b *testing.B) {
			text := []byte(answer)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			var a AnswerScanner
			a.Reset(route, !reset)
			for b.Loop() {
				if reset {
					a.Reset(route, false)
				}
				a.Write(text)
			}
		})
	}
	run("response-event", Responses, sse("response.output_text.delta", `{"content_index":0,"delta":" Hello","item_id":"msg_0123456789abcdef","logprobs":[],`+
		`"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}`), false)
	run("message-event", Messages, sse("content_block_delta", `{"type":"content_block_delta","delta":{"type":"text_delta","text":" Hello"},"index":0}`), false)
	run("embedding-80KB", Embeddings, `{"object":"list","data":[{"embedding":[`+strings.Repeat("-0.0123456789,", 6000)+`0]}],"usage":{"prompt_tokens":5}}`, true)
}
