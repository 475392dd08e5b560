package openai

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// outcome is what a test compares of an AnswerScanner.
type outcome struct {
	Usage                                       Usage
	FirstToken, Finished, Aborted, Failed, Done bool
	Skipped                                     int
	Error                                       AnswerError
	Empty                                       bool
	// First is the number of bytes that had been written when the first token was reported; -1 without one.
	First int
}

// watch feeds answer in pieces that end at cuts.
func watch(t *testing.T, route Route, stream bool, answer string, cuts ...int) outcome {
	t.Helper()
	var a AnswerScanner
	a.Reset(route, stream)
	first, beg := -1, 0
	for _, end := range append(cuts, len(answer)) {
		if a.Write([]byte(answer[beg:end])) {
			if first >= 0 {
				t.Fatal("the first token came twice")
			}
			first = end
		}
		beg = end
	}
	if a.Close() {
		if first >= 0 {
			t.Fatal("the first token came twice")
		}
		first = len(answer)
	}
	return outcome{a.Usage, a.FirstToken, a.Finished, a.Aborted, a.Failed, a.Done, a.Skipped, a.Error, a.Empty(), first}
}

func TestAnswerScanner(t *testing.T) {
	const role = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	const hello = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}],"usage":null}` + "\n\n"
	const stop = `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	const usage = `data: {"id":"c","choices":[],"usage":{"prompt_tokens":12,"total_tokens":14,"completion_tokens":2,"prompt_tokens_details":{"audio":null,"cached_tokens":8}}}` + "\n\n"
	const done = "data: [DONE]\n\n"
	cached := Usage{PromptTokens: 12, CompletionTokens: 2, CachedTokens: 8, Have: true, HaveCached: true}
	for name, tc := range map[string]struct {
		route  Route
		json   bool // not a stream
		answer string
		want   outcome
	}{
		"a chat": {
			route: ChatCompletions, answer: role + hello + stop + usage + done,
			want: outcome{Usage: cached, FirstToken: true, Finished: true, Done: true, First: len(role + hello)},
		},
		"a chat of one token that is the end": {
			route: ChatCompletions, answer: role + stop + done,
			want: outcome{FirstToken: true, Finished: true, Done: true, First: len(role + stop)},
		},
		"a chat that reasons": {
			route: ChatCompletions, answer: role + `data: {"choices":[{"delta":{"reasoning_content":"Hm"}}]}` + "\n\n",
			want: outcome{FirstToken: true, First: len(role) + 58},
		},
		"a chat that calls a tool": {
			route: ChatCompletions, answer: role + `data: {"choices":[{"delta":{"content":null,"tool_calls":[{"index":0}]}}]}` + "\n\n",
			want: outcome{FirstToken: true, First: len(role) + 75},
		},
		"a chat that has said nothing yet": {
			route: ChatCompletions, answer: role + `data: {"choices":[{"delta":{"content":"","tool_calls":[],"reasoning":null}}]}` + "\n\n: ping\n\n",
			want: outcome{Empty: true, First: -1},
		},
		"a completion": {
			answer: `data: {"object":"text_completion","choices":[{"text":"","finish_reason":null}]}` + "\n\n" + done,
			want:   outcome{FirstToken: true, Done: true, First: 81},
		},
		"a completion with its usage in every event": {
			answer: `data: {"choices":[{"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\n\n" +
				`data: {"choices":[{"text":"b","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":null}}` + "\n\n",
			want: outcome{Usage: Usage{PromptTokens: 3, CompletionTokens: 2, Have: true}, FirstToken: true, Finished: true, First: 84},
		},
		"an engine that is shut down": {
			answer: `data: {"choices":[{"text":"","finish_reason":"abort"}]}` + "\n\n",
			want:   outcome{Finished: true, Aborted: true, First: -1},
		},
		"an error in the middle": {
			route: ChatCompletions, answer: role + hello + `data: {"error":{"message":"x","code":500}}` + "\n\n" + done,
			want: outcome{FirstToken: true, Failed: true, Error: AnswerError{Status: 500}, Done: true, First: len(role + hello)},
		},
		"an error of an older engine": {
			answer: `data: {"object":"error","message":"x"}` + "\n\n", want: outcome{Failed: true, First: -1},
		},
		"no error": {answer: `data: {"error":null}` + "\n\n", want: outcome{Empty: true, First: -1}},
		"lines that end in other ways": {
			answer: "event: x\rdata:{\"choices\":\r\ndata: [{}]}\r\r\ndata: [DONE]\n\n",
			want:   outcome{FirstToken: true, Done: true, First: 40},
		},
		"events that are no JSON": {
			answer: "data: {\"choices\":[{}]\n\ndata: hello\n\ndata\n\ndata:\n\ndata: 7\n\n" + done, want: outcome{Done: true, Empty: true, First: -1},
		},
		"an event without its last line feeds": {
			answer: `data: {"choices":[{"text":"a"}]}`, want: outcome{FirstToken: true, First: 32},
		},
		"an answer that is not streamed": {
			json: true, answer: `{"id":"x","object":"text_completion","choices":[{"text":"\"usage\":{\"prompt_tokens\":1} \\","usage":{"prompt_tokens":2}}],` +
				`"usage": {"prompt_tokens" : 12, "completion_tokens":2,"prompt_tokens_details":{"cached_tokens": 8} } , "kv":null}`,
			want: outcome{Usage: cached, Finished: true, First: -1},
		},
		"an answer cut short": {
			json: true, answer: `{"usage":{"prompt_tokens":12,"completion_tokens":2},"choices":[`,
			want: outcome{Usage: Usage{PromptTokens: 12, CompletionTokens: 2, Have: true}, First: -1},
		},
		"a usage of null":                    {json: true, answer: `{"usage":null}`, want: outcome{Finished: true, First: -1}},
		"an error that is not streamed":      {json: true, answer: ` {"error":{"message":"usage"}}`, want: outcome{Finished: true, Failed: true, First: -1}},
		"an error object of an older engine": {json: true, answer: `{"object":"error","code":400}`, want: outcome{Finished: true, Failed: true, Error: AnswerError{Status: 400}, First: -1}},
		"an answer that is no JSON":          {json: true, answer: `<html>}}]{"usage":`, want: outcome{First: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			every := make([]int, len(tc.answer))
			for i := range every {
				every[i] = i
			}
			if d := cmp.Diff(tc.want, watch(t, tc.route, !tc.json, tc.answer, every...)); d != "" {
				t.Fatalf("byte by byte (-want +got):\n%s", d)
			}
			for i := range every {
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

// checkAnswer compares an AnswerScanner with the models, and one piece with many.
func checkAnswer(t *testing.T, route Route, stream bool, answer string, rng *rand.Rand) {
	t.Helper()
	var cuts []int
	for i := range answer {
		if rng.IntN(4) == 0 {
			cuts = append(cuts, i)
		}
	}
	whole, pieces := watch(t, route, stream, answer), watch(t, route, stream, answer, cuts...)
	if (whole.First >= 0) != (pieces.First >= 0) {
		t.Fatalf("the first token depends on the cuts %v of %q", cuts, answer)
	}
	whole.First, pieces.First = 0, 0
	if d := cmp.Diff(whole, pieces); d != "" {
		t.Fatalf("the outcome depends on the cuts %v of %q:\n%s", cuts, answer, d)
	}
	if stream {
		if d := cmp.Diff(slowWatch(route, answer), whole); d != "" {
			t.Fatalf("%q (-want +got):\n%s", answer, d)
		}
		return
	}
	// Keys written with escapes, and a value over the limit, are not found in an answer that is not streamed.
	o := object(answer)
	if o == nil || strings.Contains(answer, `\`) || len(answer) > MaxUsage {
		return
	}
	if want, _ := slowUsage(route, o["usage"]); whole.Usage != want && strings.Count(answer, `"usage"`) == 1 {
		t.Fatalf("%q: usage is %+v, want %+v", answer, whole.Usage, want)
	}
	if !whole.Finished {
		t.Fatalf("%q: not finished", answer)
	}
	if want := slowJSON(route, o); once(answer) && (whole.Aborted != want.Aborted || whole.Failed != want.Failed || whole.Error != want.Error) {
		t.Fatalf("%q: got %+v, want %+v", answer, whole, want)
	}
}

// once reports whether no relevant field is there twice: of two the models and the scanner can take different ones.
func once(answer string) bool {
	for _, name := range []string{"status", "choices", "finish_reason", "error", "object", "code", "type", "message", "stop_reason", "usage"} {
		if strings.Count(answer, `"`+name+`"`) > 1 {
			return false
		}
	}
	return true
}

var pieces = []string{
	`{"error":{"message":"The engine is currently busy","type":"Service Unavailable","param":null,"code":503}}`,
	`{"error":{"message":"has reached its prefill token backlog limit","type":"Service Unavailable","code":503}}`, `{"error":{"code":400}}`, `{"error":{"code":"x","type":3}}`,
	`{"type":"error","error":{"type":"internal_error","message":"input_value={'error': {'message': 'Th...am': None, 'code': 503}}"}}`,
	`{"type":"error","error":{"type":"rate_limit_error"}}`, `{"object":"error","message":"x","code":404}`, `"code":500`, `"error":`, `"type":"Service Unavailable"`,
	`{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"abort"}]}`, `"choices":[`, `{"finish_reason":"abort"}`, `{"choices":{"a":{"finish_reason":"abort"}}}`,
	`{"type":"message","content":[]}`, `{"type":"message","stop_reason":"end_turn"}`, `{"status":"completed","usage":{"output_tokens":0}}`,
	"data: ", "data:", "event: x", "\n", "\r\n", "\r", "\n\n", "\n\n", ": c", "[DONE]", `{"choices":[`, `{"delta":{`, `"content":"`, `a`, `"`, `}`, `}]}`, `,`, `:`,
	`"role":"assistant"`, `{"choices":[{"delta":{"content":"x"}}]}`, `{"choices":[{"text":"x","finish_reason":"abort"}]}`, `{"choices":[]}`,
	`{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, `"finish_reason":"stop"`, `{"error":{}}`, `{"object":"error"}`,
	`{"usage":{"prompt_tokens":5,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":4}}}`, `"usage":null`, `"usage":{"prompt_tokens":1.0}`, `{`, `\`, `\"`,
	`"prompt_tokens_details":null`, `é`,
	`{"type":"response.output_text.delta","delta":"x"}`, `{"delta":"","type":"response.output_text.delta"}`, `{"type":"response.output_item.done"}`,
	`{"response":{"status":"completed","error":null,"usage":{"input_tokens":5,"output_tokens":6,"input_tokens_details":{"cached_tokens":4}}},"type":"response.completed"}`,
	`{"type":"response.failed","response":{"status":"failed"}}`, `{"type":"response.created","response":{"status":"in_progress","usage":null}}`,
	`{"type":"response.incomplete","response":{"status":"cancelled"}}`, `"type":"error"`, `"status":"cancelled"`, `"usage":{"input_tokens":3,"cache_read_input_tokens":2}`,
	`{"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":0}}}`, `{"type":"content_block_start","content_block":{"type":"tool_use"}}`,
	`{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}`, `{"type":"content_block_delta","delta":{"signature":"x","thinking":""}}`,
	`{"usage":{"output_tokens":7,"cache_read_input_tokens":4,"cache_creation_input_tokens":null},"delta":{"stop_reason":"end_turn"},"type":"message_delta"}`,
	`{"type":"message_delta","delta":{"stop_reason":null},"usage":{"input_tokens":1}}`, `{"type":"message_stop"}`, `"message":null`, `"content_block":{"type":"text"}`, `"delta":{`, "\xff", `[`, `]`, ` `, `-1`,
}

func TestAnswerScannerAgreesWithATree(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range 1_500 * numRoutes {
		var b strings.Builder
		for range rng.IntN(20) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
			if rng.IntN(2) == 0 {
				b.WriteString("\n\ndata: ") // so that many events are complete
			}
		}
		checkAnswer(t, Route(round%numRoutes), rng.IntN(3) > 0, b.String(), rng)
	}
}

func FuzzAnswerScanner(f *testing.F) {
	for _, p := range pieces {
		for route := range numRoutes {
			f.Add(uint8(route), true, "data: "+p+"\n\n", uint64(1))
			f.Add(uint8(route), false, p, uint64(2))
		}
	}
	f.Fuzz(func(t *testing.T, route uint8, stream bool, answer string, seed uint64) {
		checkAnswer(t, Route(int(route)%numRoutes), stream, answer, rand.New(rand.NewPCG(seed, 0)))
	})
}

func TestAnswerScannerIsBounded(t *testing.T) {
	long := strings.Repeat("x", 3*MaxEvent)
	for name, tc := range map[string]struct {
		json   bool
		answer string
		want   outcome
	}{
		"a line that is too long":   {answer: "data: " + long + "\n\ndata: [DONE]\n\n", want: outcome{Skipped: 1, Done: true, First: -1}},
		"lines that are too many":   {answer: strings.Repeat("data: x\n", MaxEvent) + "\ndata: [DONE]\n\n", want: outcome{Skipped: 1, Done: true, First: -1}},
		"a usage that is too large": {json: true, answer: `{"usage":{"x":"` + long + `","prompt_tokens":1}}`, want: outcome{Finished: true, First: -1}},
		"text before the usage": {
			json: true, answer: `{"choices":"` + long + `","usage":{"prompt_tokens":1}}`,
			want: outcome{Usage: Usage{PromptTokens: 1, Have: true}, Finished: true, First: -1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{1 << 10, 1 << 15, len(tc.answer)} {
				var cuts []int
				for i := piece; i < len(tc.answer); i += piece {
					cuts = append(cuts, i)
				}
				if d := cmp.Diff(tc.want, watch(t, Completions, !tc.json, tc.answer, cuts...)); d != "" {
					t.Errorf("in pieces of %d (-want +got):\n%s", piece, d)
				}
			}
			var a AnswerScanner
			a.Reset(Completions, !tc.json)
			for rest := []byte(tc.answer); len(rest) > 0; {
				n := min(1<<15, len(rest))
				a.Write(rest[:n])
				rest = rest[n:]
				if held := cap(a.line) + cap(a.data) + cap(a.json.value); held > 3*MaxEvent {
					t.Fatalf("%d bytes are held", held)
				}
			}
			a.Reset(Completions, true)
			if held := cap(a.line) + cap(a.data) + cap(a.json.value); held > 3*keepEvent {
				t.Errorf("%d bytes are kept", held)
			}
		})
	}
}

func TestAnswerScannerAllocatesNothing(t *testing.T) {
	event := []byte(`data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}],"usage":{"prompt_tokens":3}}` + "\n\n")
	whole := []byte(`{"object":"x","choices":[],"usage":{"prompt_tokens":3}}`)
	delta := []byte(`data: {"type":"response.output_text.delta","delta":"x"}` + "\n\n")
	completed := []byte(`data: {"response":{"status":"completed","usage":{"input_tokens":5}},"type":"response.completed"}` + "\n\n")
	message := []byte(`data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":1}}` + "\n\n")
	var a AnswerScanner
	if n := testing.AllocsPerRun(100, func() {
		a.Reset(ChatCompletions, true)
		a.Write(event[:20])
		a.Write(event[20:])
		a.Reset(ChatCompletions, false)
		a.Write(whole)
		a.Reset(Responses, true)
		a.Write(delta)
		a.Write(completed)
		a.Reset(Messages, true)
		a.Write(message)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAnswerScanner(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-1234567890abcdef","object":"chat.completion.chunk","created":1753000000,"model":"meta-llama/Llama-3.1-8B-Instruct",` +
		`"choices":[{"index":0,"delta":{"content":" Hello"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	b.Run("event", func(b *testing.B) {
		b.SetBytes(int64(len(event)))
		b.ReportAllocs()
		var a AnswerScanner
		a.Reset(ChatCompletions, true)
		for b.Loop() {
			a.Write(event)
		}
	})
	whole := []byte(`{"choices":[{"text":"` + strings.Repeat("some words of text ", 2000) + `"}],"usage":{"prompt_tokens":5,"completion_tokens":6}}`)
	b.Run("json-38KB", func(b *testing.B) {
		b.SetBytes(int64(len(whole)))
		b.ReportAllocs()
		var a AnswerScanner
		for b.Loop() {
			a.Reset(ChatCompletions, false)
			a.Write(whole)
		}
	})
}

func TestAppendError(t *testing.T) {
	for name, tc := range map[string]struct {
		status             int
		typ, code, message string
		want               string
	}{
		"a number for the code": {400, "BadRequestError", "", "no", `{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}`},
		"a word for the code":   {429, "rate_limit", "queue_full", "wait", `{"error":{"message":"wait","type":"rate_limit","param":null,"code":"queue_full"}}`},
		"odd characters":        {500, "t\"", "c\\", "a\n\x00é\xff\u2028", "{\"error\":{\"message\":\"a\\n\\u0000é\ufffd\u2028\",\"type\":\"t\\\"\",\"param\":null,\"code\":\"c\\\\\"}}"},
	} {
		t.Run(name, func(t *testing.T) {
			got := AppendError(nil, tc.status, tc.typ, tc.code, tc.message)
			if string(got) != tc.want {
				t.Errorf("body is %s\nwant     %s", got, tc.want)
			}
			if !json.Valid(got) {
				t.Error("it is no JSON")
			}
		})
	}
}

func TestAppendMessagesError(t *testing.T) {
	for status, want := range map[int]string{
		400: `{"type":"error","error":{"type":"invalid_request_error","message":"a \"b\""}}`,
		404: `{"type":"error","error":{"type":"not_found_error","message":"a \"b\""}}`,
		429: `{"type":"error","error":{"type":"rate_limit_error","message":"a \"b\""}}`,
		502: `{"type":"error","error":{"type":"api_error","message":"a \"b\""}}`,
		503: `{"type":"error","error":{"type":"overloaded_error","message":"a \"b\""}}`,
	} {
		if got := string(AppendMessagesError(nil, status, `a "b"`)); got != want || !json.Valid([]byte(got)) {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}
