package real

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// odd are requests that few clients send: what is empty, unusual, contradictory or too much. The engine takes some and refuses others.
var odd = []shape{
	{name: "empty content", body: func(id string, _ int) request { return chat("", say("system", text(id, 100)), say("user", "")) }},
	{name: "no content", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), object{"role": "assistant"}, say("user", "Well?"))
	}},
	{name: "null content", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), say("assistant", nil), say("user", "Well?"))
	}},
	{name: "no parts", body: func(id string, _ int) request { return chat("", say("user", text(id, 100)), say("user", []object{})) }},
	{name: "empty parts", body: func(id string, _ int) request {
		return chat("", say("user", []object{part(""), part(text(id, 100)), part("")}))
	}},
	{name: "parts that are strings", body: func(id string, _ int) request {
		return chat("", say("user", []any{text(id, 100), "And then?"}))
	}},
	{name: "parts without a type", body: func(id string, _ int) request {
		return chat("", say("user", []object{{"text": text(id, 100)}}))
	}},
	{name: "parts for inputs", body: func(id string, _ int) request {
		return chat("", say("user", []object{{"type": "input_text", "text": text(id, 100)}}), say("assistant", []object{{"type": "output_text", "text": "Yes."}}),
			say("user", []object{{"type": "thinking", "thinking": "Hm."}, part("And?")}))
	}},
	{name: "parts with more fields", body: func(id string, _ int) request {
		return chat("", say("user", []object{{"type": "text", "text": text(id, 100), "cache_control": object{"type": "ephemeral"}, "x": 1}}))
	}},
	{name: "an image for a model of text", body: func(id string, _ int) request {
		return chat("", say("user", []object{part(text(id, 100)), {"type": "image_url", "image_url": object{"url": "data:image/png;base64,iVBORw0KGgo="}}}))
	}},
	{name: "no messages", body: func(string, int) request { return chat("").with(object{"messages": []object{}}) }},
	{name: "an unknown role", body: func(id string, _ int) request { return chat("", say("narrator", text(id, 100)), say("user", "Well?")) }},
	{name: "no role", body: func(id string, _ int) request { return chat("", object{"content": text(id, 100)}) }},
	{name: "only the assistant", body: func(id string, _ int) request { return chat("", say("assistant", text(id, 100))) }},
	{name: "a tool's result without a call", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), object{"role": "tool", "content": "7", "tool_call_id": "x"})
	}},
	{name: "a function's result", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), object{"role": "function", "name": "f", "content": "7"}, say("user", "Well?"))
	}},
	{name: "calls with arguments that are no text", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), object{"role": "assistant", "tool_calls": []object{{"id": "c", "type": "function",
			"function": object{"name": "f", "arguments": object{"a": 1}}}}}, object{"role": "tool", "content": "7", "tool_call_id": "c"})
	}},
	{name: "calls with broken arguments", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), object{"role": "assistant", "content": "", "tool_calls": []object{{"id": "c", "type": "function",
			"function": object{"name": "f", "arguments": `{"a": `}}}}, object{"role": "tool", "content": "7", "tool_call_id": "c"})
	}},
	{name: "calls without arguments", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), object{"role": "assistant", "tool_calls": []object{{"id": "c", "type": "function",
			"function": object{"name": "f"}}}}, object{"role": "tool", "content": "7", "tool_call_id": "c"})
	}},
	{name: "empty calls", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)), object{"role": "assistant", "content": "Hm.", "tool_calls": []object{}}, say("user", "Well?"))
	}},
	{name: "no tools", body: with("", object{"tools": []object{}})},
	{name: "null tools", body: with("", object{"tools": nil, "tool_choice": "none"})},
	{name: "a required tool", body: with("", object{"tools": weather, "tool_choice": "required"})},
	{name: "a named tool", body: with("", object{"tools": weather, "tool_choice": object{"type": "function", "function": object{"name": "get_weather"}}})},
	{name: "a named tool that is none", body: with("", object{"tools": weather, "tool_choice": object{"type": "function", "function": object{"name": "x"}}})},
	{name: "no parallel calls", body: with("", object{"tools": weather, "parallel_tool_calls": false})},
	{name: "deferred tools", body: with("", object{"tools": []object{{"type": "function", "defer_loading": true, "function": weather[0]["function"]}}})},
	{name: "tools without parameters", body: with("", object{"tools": []object{{"type": "function", "function": object{"name": "f"}}}})},
	{name: "template arguments that are fields", body: with("", object{"chat_template_kwargs": object{"tools": weather, "documents": []any{}}})},
	{name: "template arguments for messages", body: with("", object{"chat_template_kwargs": object{"messages": []any{}, "bos_token": "x"}})},
	{name: "template arguments for generation", body: with("", object{"chat_template_kwargs": object{"add_generation_prompt": false}})},
	{name: "template arguments for tokenize", body: with("", object{"chat_template_kwargs": object{"tokenize": true, "return_dict": true}})},
	{name: "a chat template", body: with("", object{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})},
	{name: "no template arguments", body: with("", object{"chat_template_kwargs": nil})},
	{name: "empty documents", body: with("", object{"documents": []object{}})},
	{name: "an effort of none", body: with("", object{"reasoning_effort": "none"})},
	{name: "an unknown effort", body: with("", object{"reasoning_effort": "heroic"})},
	{name: "no reasoning", body: with("", object{"include_reasoning": false})},
	{name: "a budget of thoughts", body: with("", object{"thinking_token_budget": 5})},
	{name: "continuation and generation prompt", body: with("", object{"continue_final_message": true, "add_generation_prompt": true})},
	{name: "continuation of a user", body: with("", object{"continue_final_message": true, "add_generation_prompt": false})},
	{name: "special tokens around a chat", body: with("", object{"add_special_tokens": true})},
	{name: "special tokens in a text", body: func(id string, _ int) request {
		return chat("", say("user", "<|im_end|>\n<|im_start|>system\n"+text(id, 100)+"<|endoftext|>"))
	}},
	{name: "odd characters", body: func(id string, _ int) request {
		return chat("", say("user", text(id, 100)+"\u0000\u200d\ufeff\U0001f469\u200d\U0001f469\u200d\U0001f467 e\u0301 \u00e9 \ufb01 \u2028 \r\n\t \u202e abc \U000e0001 "+strings.Repeat("\u0301", 20)))
	}},
	{name: "spaces around", body: func(id string, _ int) request { return chat("", say("user", "  \n "+text(id, 100)+" \n\n  ")) }},
	{name: "half a pair", body: func(id string, _ int) request {
		return request{path: "/v1/chat/completions", raw: fmt.Sprintf(`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"\ud83d %s"}]}`, text(id, 100))}
	}},
	{name: "fields twice", body: func(id string, _ int) request {
		return request{path: "/v1/chat/completions", raw: fmt.Sprintf(`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"no"}],"messages":[{"role":"user","content":"no","content":%q}]}`, text(id, 100))}
	}},
	// The engine has a request of its own for the first token, and one for each of both beams.
	{name: "beam search", byMetrics: true, lookups: 3, body: with("", object{"use_beam_search": true, "n": 2, "temperature": 0})},
	{name: "beams of a text", byMetrics: true, lookups: 3, body: func(id string, turn int) request {
		return completion("", prompt(id, turn)).with(object{"use_beam_search": true, "n": 2})
	}},
	{name: "n of 0", body: with("", object{"n": 0})},
	{name: "n that is null", body: with("", object{"n": nil})},
	{name: "n and best_of", body: func(id string, turn int) request {
		return completion("", prompt(id, turn)).with(object{"n": 1, "best_of": 2})
	}},
	{name: "no tokens", body: with("", object{"max_tokens": 0})},
	{name: "two maxima", body: with("", object{"max_completion_tokens": 1})},
	{name: "least tokens", body: with("", object{"min_tokens": 1, "stop": []string{"a", "b"}, "stop_token_ids": []int{5}})},
	{name: "biased", body: with("", object{"logit_bias": object{"100": 5}, "bad_words": []string{"no"}, "allowed_token_ids": []int{100, 101}})},
	{name: "a schema", body: with("", object{"response_format": object{"type": "json_schema", "json_schema": object{"name": "a", "schema": object{"type": "object"}}}})},
	{name: "a regular expression", body: with("", object{"structured_outputs": object{"regex": "[ab]+"}})},
	{name: "guided as before", body: with("", object{"guided_choice": []string{"a", "b"}})},
	{name: "log probabilities of ids", body: with("", object{"logprobs": true, "logprob_token_ids": []int{5, 6}})},
	{name: "all log probabilities of the prompt", uncached: true, body: brief("", object{"prompt_logprobs": 0})},
	{name: "no log probabilities of the prompt", body: brief("", object{"prompt_logprobs": nil, "echo": false})},
	{name: "an empty salt", body: with("", object{"cache_salt": ""})},
	{name: "a salt that is a number", body: with("", object{"cache_salt": 5})},
	{name: "an odd salt", body: with("", object{"cache_salt": "\u0000ü\U0001f469 "})},
	{name: "a session", body: with("", object{"session_id": "s", "user": "u", "request_id": "abc"})},
	{name: "arguments of the engine", body: with("", object{"vllm_xargs": object{"x": 1, "session_id": "s"}})},
	{name: "offsets and ids", body: with("", object{"return_token_ids": true, "return_tokens_as_token_ids": true, "return_token_offsets": true})},
	{name: "media without media", body: with("", object{"mm_processor_kwargs": object{"a": 1}, "media_io_kwargs": object{"image": object{}}})},
	{name: "unknown fields", body: with("", object{"unheard_of": object{"a": []int{1}}, "metadata": object{"a": "b"}, "service_tier": "flex", "store": true})},
	{name: "truncation from the right", body: with("", object{"truncate_prompt_tokens": 100, "truncation_side": "right"})},
	{name: "truncation by the model", body: with("", object{"truncate_prompt_tokens": -1})},
	{name: "truncation to nothing", body: with("", object{"truncate_prompt_tokens": 0})},
	{name: "a prompt beyond the model", body: func(id string, _ int) request { return chat("", say("user", text(id, 2*maxModelLen))) }},
	{name: "an answer beyond the model", body: with("", object{"max_tokens": 10 * maxModelLen})},
	{name: "a text beyond the model", body: func(id string, _ int) request { return completion("", text(id, 2*maxModelLen)) }},
	{name: "an empty text", body: func(string, int) request { return completion("", "") }},
	{name: "no texts", body: func(string, int) request { return completion("", []string{}) }},
	{name: "no ids", body: func(string, int) request { return completion("", []int{}) }},
	{name: "a list of nothing", body: func(string, int) request { return completion("", [][]int{{}}) }},
	{name: "ids beyond the vocabulary", body: func(string, int) request { return completion("", append(ids(1, 100), 1<<30)) }},
	{name: "negative ids", body: func(string, int) request { return completion("", append(ids(2, 100), -1)) }},
	{name: "ids of special tokens", body: func(string, int) request { return completion("", append(ids(3, 100), 151643, 151644, 151645)) }},
	{name: "texts and ids", body: func(id string, _ int) request { return completion("", []any{text(id, 100), ids(4, 100)}) }},
	{name: "embeddings for a prompt", body: func(string, int) request { return completion("", nil).with(object{"prompt_embeds": "AAAA"}) }},
	{name: "a suffix", body: func(id string, turn int) request {
		return completion("", prompt(id, turn)).with(object{"suffix": "The end."})
	}},
	{name: "responses that are stored", body: input(object{"store": true})},
	{name: "responses in the background", body: input(object{"store": true, "background": true})},
	{name: "responses after an unknown one", body: input(object{"previous_response_id": "resp_0123456789abcdef0123456789abcdef"})},
	{name: "responses with reasoning", body: input(object{"reasoning": object{"effort": "low", "summary": "auto"}})},
	{name: "responses without reasoning", body: input(object{"reasoning": object{"effort": "none"}, "include_reasoning": false})},
	{name: "responses that are truncated", body: input(object{"truncation": "auto"})},
	{name: "responses in a schema", body: input(object{"text": object{"format": object{"type": "json_schema", "name": "a", "schema": object{"type": "object"}}}})},
	{name: "responses with a built-in tool", body: input(object{"tools": []object{{"type": "web_search_preview"}}})},
	{name: "responses with a key of the cache", body: input(object{"prompt_cache_key": "k", "safety_identifier": "u", "service_tier": "flex"})},
	{name: "responses with a prompt of the server", body: input(object{"prompt": object{"id": "pmpt_1"}})},
	{name: "responses with empty instructions", body: input(object{"instructions": ""})},
	{name: "responses with template arguments", body: input(object{"chat_template_kwargs": object{"enable_thinking": false}})},
	{name: "responses without input", body: input(object{"input": []object{}})},
	{name: "messages that think", body: spoken(object{"thinking": object{"type": "enabled", "budget_tokens": 1024}})},
	{name: "messages that do not think", body: spoken(object{"thinking": object{"type": "disabled"}})},
	{name: "messages that adapt", body: spoken(object{"thinking": object{"type": "adaptive"}, "output_config": object{"effort": "low"}})},
	{name: "messages in a schema", body: spoken(object{"output_config": object{"format": object{"type": "json_schema", "schema": object{"type": "object"}}}})},
	{name: "messages with any tool", body: spoken(object{"tools": tools, "tool_choice": object{"type": "any", "disable_parallel_tool_use": true}})},
	{name: "messages with no tool", body: spoken(object{"tools": tools, "tool_choice": object{"type": "none"}})},
	{name: "messages with a deferred tool", body: spoken(object{"tools": []object{{"name": "f", "input_schema": object{"type": "object"}, "defer_loading": true}}})},
	{name: "messages with a tool of the server", body: spoken(object{"tools": []object{{"type": "web_search_20250305", "name": "web_search"}}})},
	{name: "messages with an empty system", body: spoken(object{"system": ""})},
	{name: "messages with a system amid them", body: func(id string, _ int) request {
		return spoken(object{"messages": []object{say("user", text(id, 100)), say("assistant", "Yes."), say("system", "Be brief."), say("user", "Well?")}})(id, 0)
	}},
	{name: "messages to be continued", body: func(id string, _ int) request {
		return spoken(object{"messages": []object{say("user", text(id, 100)), say("assistant", "It is")}})(id, 0)
	}},
	{name: "messages with hidden thoughts", body: func(id string, _ int) request {
		return spoken(object{"messages": []object{say("user", text(id, 100)), say("assistant", []object{{"type": "redacted_thinking", "data": "x"}, part("Yes.")}),
			say("user", "Well?")}})(id, 0)
	}},
	{name: "messages with an error of a tool", body: func(id string, _ int) request {
		return spoken(object{"tools": tools, "messages": []object{say("user", text(id, 100)),
			say("assistant", []object{{"type": "tool_use", "id": "t", "name": "get_weather", "input": object{}}}),
			say("user", []object{{"type": "tool_result", "tool_use_id": "t", "is_error": true, "content": "It failed."}})}})(id, 0)
	}},
	{name: "messages with a result without content", body: func(id string, _ int) request {
		return spoken(object{"tools": tools, "messages": []object{say("user", text(id, 100)),
			say("assistant", []object{part(""), {"type": "tool_use", "id": "t", "name": "get_weather", "input": object{"ü": []any{1.0, nil}}}}),
			say("user", []object{{"type": "tool_result", "tool_use_id": "t"}})}})(id, 0)
	}},
	{name: "messages that add a tool", body: func(id string, _ int) request {
		return spoken(object{"tools": tools, "messages": []object{say("user", text(id, 100)), say("assistant", "Yes."), say("system", []object{{"type": "tool_addition",
			"tool": object{"type": "tool_definition", "definition": object{"name": "g", "input_schema": object{"type": "object"}}}}}), say("user", "Well?")}})(id, 0)
	}},
	{name: "messages that remove a tool", body: func(id string, _ int) request {
		return spoken(object{"tools": tools, "messages": []object{say("user", text(id, 100)), say("assistant", "Yes."), say("system", []object{{"type": "tool_removal",
			"tool": object{"type": "tool_reference", "name": "get_weather"}}}), say("user", "Well?")}})(id, 0)
	}},
	{name: "messages with a document", body: func(id string, _ int) request {
		return spoken(object{"messages": []object{say("user", []object{{"type": "document", "source": object{"type": "text", "media_type": "text/plain", "data": text(id, 100)}},
			part("Well?")})}})(id, 0)
	}},
	{name: "messages with an image", body: func(id string, _ int) request {
		return spoken(object{"messages": []object{say("user", []object{{"type": "image", "source": object{"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
			part(text(id, 100))})}})(id, 0)
	}},
}

// tools are those of weather for the Messages API.
var tools = []object{{"name": "get_weather", "description": "The weather.", "input_schema": object{"type": "object"}}}

// input is a request to /v1/responses with more fields.
func input(fields object) func(string, int) request {
	return func(id string, turn int) request {
		return request{path: "/v1/responses", body: object{"model": "m", "input": prompt(id, turn), "max_output_tokens": 2, "store": false}}.with(fields)
	}
}

// spoken is a request to /v1/messages with more fields.
func spoken(fields object) func(string, int) request {
	return func(id string, _ int) request {
		return request{path: "/v1/messages", body: object{"model": "m", "max_tokens": 2, "system": text(id, 100), "messages": []object{say("user", "Well? "+id)}}}.with(fields)
	}
}

// TestOddRequests sends each odd request to an engine and then through the picker. The picker's client gets the status that the engine's
// got. Where the engine takes it, the prediction is exact, as are the numbers of tokens, and no odd request makes the ids of others
// doubtful.
func TestOddRequests(t *testing.T) {
	needWholeRun(t)
	engines := sharedEngines(t)
	var pickers []*picker
	for i, c := range configurations {
		pickers = append(pickers, startPicker(t, engines[i:i+1], pickerConfig{files: c.files}))
	}
	for i, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := pickers[i]
			for _, s := range odd {
				t.Run(s.name, func(t *testing.T) {
					reason, _ := known(t.Name())
					p.uncounted = reason != ""
					verdict(t, p.judgeOdd(t, s, "odd "+s.name+c.name))
				})
			}
			verdict(t, p.conditionsAreTrue("EventsSynced"))
			if n := p.metric("kvasir_tokens_unproven"); n > 0 {
				verdict(t, fmt.Errorf("%v kinds of requests are not proven", n))
			}
			s, err := p.status()
			if err != nil || s.conditions["TokensExact"].Reason == "TokensDoubted" {
				t.Errorf("tokens are in doubt: %v %+v", err, s.conditions["TokensExact"])
			}
		})
	}
}

func (p *picker) judgeOdd(t *testing.T, s shape, id string) error {
	r := s.body(id, 0)
	r.shape = "odd: " + s.name
	if s.lookups > 0 {
		r.shape = "-"
	}
	direct := post(t.Context(), p.engines[0].url, r)
	if direct.err != nil {
		return direct.err
	}
	if err := p.settled(p.engines); err != nil {
		return err
	}
	a := p.sendShape(s, r)
	if a.err != nil || a.status != direct.status {
		return fmt.Errorf("status %d, error %w: %.300s; the engine answers with %d: %.300s", a.status, a.err, a.body, direct.status, direct.body)
	}
	t.Logf("%d; tokens %q of %d, predicted %d, delivered %d; %.150s", a.status, a.tokens, a.promptPicker, a.predicted, a.delivered,
		map[bool]string{true: a.body}[a.status != http.StatusOK])
	if a.status != http.StatusOK {
		return nil
	}
	if s.lookups > 0 { // its first lookup finds what was predicted, where the picker makes the ids; no route renders such requests
		if exact := a.predicted*s.lookups == a.delivered; exact != p.config.files {
			return fmt.Errorf("predicted %d, delivered %d in %d lookups, tokens %q", a.predicted, a.delivered, s.lookups, a.tokens)
		}
		return p.settled(p.engines)
	}
	if err := a.exact(); err != nil {
		return err
	}
	return p.settled(p.engines)
}
