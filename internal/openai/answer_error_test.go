package openai

import "testing"

// What vLLM 0.32.0 has answered: while its queue was full, and when it gave requests up.
const (
	fullEvent    = `data: {"error": {"message": "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", "type": "Service Unavailable", "param": null, "code": 503}}` + "\n\ndata: [DONE]\n\n"
	backlogEvent = `data: {"error": {"message": "The engine has reached its prefill token backlog limit. Please try again later or on a different instance.", "type": "Service Unavailable", "param": null, "code": 503}}` + "\n\ndata: [DONE]\n\n"
	fullMessage  = "event: error\n" + `data: {"type":"error","error":{"type":"internal_error","message":"2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, input_value={'error': {'message': 'Th...am': None, 'code': 503}}, input_type=dict]"}}` + "\n\n"
	roleEvent    = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795363897,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}` + "\n\n"
)

func TestTheErrorOfAnAnswerIsRead(t *testing.T) {
	for name, tc := range map[string]struct {
		route  Route
		json   bool
		answer string
		want   AnswerError
	}{
		"a stream refused because the queue is full":    {ChatCompletions, false, fullEvent, AnswerError{503, RequestLimit}},
		"a stream refused because of waiting tokens":    {Completions, false, backlogEvent, AnswerError{503, TokenLimit}},
		"a stream of Messages refused by a full queue":  {Messages, false, fullMessage, AnswerError{503, RequestLimit}},
		"JSON of Messages refused by a full queue":      {Messages, true, `{"type":"error","error":{"type":"Service Unavailable","message":"The engine is currently busy"}}`, AnswerError{503, RequestLimit}},
		"JSON refused by a full queue":                  {Completions, true, fullEvent[len("data: "):], AnswerError{503, RequestLimit}},
		"a request that may be repeated is not full":    {Completions, true, `{"error":{"message":"Request failed; please retry","type":"ServiceUnavailableError","code":503}}`, AnswerError{503, NoLimit}},
		"a user's words do not make an engine full":     {Completions, true, `{"error":{"message":"'code': 503 Service Unavailable prefill token backlog","type":"BadRequestError","code":400}}`, AnswerError{400, NoLimit}},
		"another status of the same words is not full":  {Completions, true, `{"error":{"type":"Service Unavailable","code":400}}`, AnswerError{400, NoLimit}},
		"an error of the Anthropic API":                 {Messages, false, "data: " + `{"type":"error","error":{"type":"invalid_request_error","message":"x"}}` + "\n\n", AnswerError{400, NoLimit}},
		"an error of Responses":                         {Responses, false, "data: " + `{"type":"error","error":{"message":"x","code":"server_error"}}` + "\n\n", AnswerError{}},
		"an error that is a text":                       {Completions, true, `{"error":"Unauthorized"}`, AnswerError{}},
		"the first of two errors counts":                {Completions, false, "data: " + `{"error":{"code":404}}` + "\n\n" + fullEvent, AnswerError{404, NoLimit}},
		"the error of an engine before 0.10, in JSON":   {Completions, true, `{"object":"error","message":"x","code":404}`, AnswerError{404, NoLimit}},
		"the error of an engine before 0.10, in events": {Completions, false, `data: {"object":"error","message":"x","code":404}` + "\n\n", AnswerError{404, NoLimit}},
	} {
		t.Run(name, func(t *testing.T) {
			var a AnswerScanner
			a.Reset(tc.route, !tc.json)
			a.Write([]byte(tc.answer))
			a.Close()
			if !a.Failed || a.Error != tc.want {
				t.Errorf("failed %v with %+v, want %+v", a.Failed, a.Error, tc.want)
			}
		})
	}
}

func TestAnAnswerThatTheEngineGaveUpIsKnown(t *testing.T) {
	const aborted = `{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"","logprobs":{"a":[{"finish_reason":"x"}]},"finish_reason":"abort","stop_reason":null}],"usage":{"prompt_tokens":30,"completion_tokens":0}}`
	for name, tc := range map[string]struct {
		route  Route
		json   bool
		answer string
		// aborted and empty are what the scanner reports.
		aborted, empty bool
	}{
		"JSON of a completion":                       {Completions, true, aborted, true, false},
		"JSON with the usage first":                  {ChatCompletions, true, `{"usage":{"prompt_tokens":1},"choices":[{"finish_reason":"stop"},{"finish_reason":"abort"}]}`, true, false},
		"JSON that stopped":                          {Completions, true, `{"choices":[{"text":"abort","finish_reason":"stop"}],"finish_reason":"abort"}`, false, false},
		"text that looks like a reason":              {Completions, true, `{"choices":[{"text":"\"finish_reason\":\"abort\"","finish_reason":"length"}]}`, false, false},
		"a nested reason is no reason":               {Completions, true, `{"choices":[{"message":{"finish_reason":"abort"},"finish_reason":"length"}]}`, false, false},
		"JSON of Messages without a reason":          {Messages, true, `{"id":"m","type":"message","content":[],"usage":{"input_tokens":30,"output_tokens":0}}`, true, false},
		"JSON of Messages with a reason":             {Messages, true, `{"id":"m","type":"message","content":[],"stop_reason":"end_turn"}`, false, false},
		"a count of tokens has no reason":            {Messages, true, `{"input_tokens":30}`, false, false},
		"JSON of Responses without a token":          {Responses, true, `{"status":"completed","output":[],"usage":{"input_tokens":30,"output_tokens":0}}`, true, false},
		"JSON of Responses with a token":             {Responses, true, `{"status":"completed","output":[],"usage":{"input_tokens":30,"output_tokens":1}}`, false, false},
		"a response that is queued":                  {Responses, true, `{"status":"queued","output":[],"usage":null}`, false, false},
		"a stream with its end mark only":            {Completions, false, "data: [DONE]\n\n", false, true},
		"a chat with its role only":                  {ChatCompletions, false, roleEvent + "data: [DONE]\n\n", false, true},
		"a stream without an event":                  {ChatCompletions, false, "", false, true},
		"a stream with comments only":                {ChatCompletions, false, ": ping\n\n", false, true},
		"no byte of JSON":                            {Completions, true, " \n", false, true},
		"a stream that stops without a word":         {ChatCompletions, false, roleEvent + `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n", false, false},
		"an event that is too large may have a word": {ChatCompletions, false, "data: " + string(make([]byte, MaxEvent)) + "\n\n", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var a AnswerScanner
			a.Reset(tc.route, !tc.json)
			for i := range tc.answer {
				a.Write([]byte(tc.answer[i : i+1]))
			}
			a.Close()
			if a.Aborted != tc.aborted || a.Empty() != tc.empty {
				t.Errorf("aborted %v, empty %v, want %v and %v", a.Aborted, a.Empty(), tc.aborted, tc.empty)
			}
		})
	}
}
