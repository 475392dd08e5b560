package render

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

func TestTheTokenizerIsAskedWhatItKnows(t *testing.T) {
	cases := map[string]struct {
		route openai.Route
		body  string
		want  string
	}{
		"effort is an argument of the template": {openai.ChatCompletions,
			`{"model":"m","messages":[],"reasoning_effort":"low","chat_template_kwargs":{"a":1,"reasoning_effort":"high"}}`,
			`{"model":"m","messages":[],"chat_template_kwargs":{"a":1,"reasoning_effort":"low","enable_thinking":true}}`},
		"no effort is no thinking": {openai.ChatCompletions, `{"model":"m","messages":[],"reasoning_effort":"none"}`,
			`{"model":"m","messages":[],"chat_template_kwargs":{"reasoning_effort":"none","enable_thinking":false}}`},
		"an automatic effort is unset, and thinks": {openai.ChatCompletions, `{"model":"m","messages":[],"reasoning_effort":"auto"}`,
			`{"model":"m","messages":[],"chat_template_kwargs":{"enable_thinking":true}}`},
		"thinking that is given stays": {openai.ChatCompletions,
			`{"model":"m","messages":[],"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false}}`,
			`{"model":"m","messages":[],"chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":false}}`},
		"documents are an argument of the template": {openai.ChatCompletions, `{"model":"m","messages":[],"documents":[{"text":"d"}]}`,
			`{"model":"m","messages":[],"chat_template_kwargs":{"documents":[{"text":"d"}]}}`},
		"a chat": {openai.ChatCompletions,
			`{"model":"m","messages":[{"role":"user","content":"a<b\u00e9"}],"tools":[{"type":"function"}],"chat_template":"{{x}}",
			"chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false,"continue_final_message":true,
			"add_special_tokens":true,"temperature":0.5,"stream":true,"user":"u","reasoning_effort":null}`,
			`{"model":"m","messages":[{"role":"user","content":"a<b\u00e9"}],"tools":[{"type":"function"}],"chat_template":"{{x}}",
			"chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false,"continue_final_message":true,
			"add_special_tokens":true}`},
		"a chat that says nothing special": {openai.ChatCompletions, `{"messages":[{"role":"user","content":"a"}],"model":"m","tools":null}`,
			`{"model":"m","messages":[{"role":"user","content":"a"}]}`},
		"a completion": {openai.Completions, `{"prompt":"a\n\u2028","model":"m","add_special_tokens":false,"n":2}`,
			`{"model":"m","prompt":"a\n\u2028","add_special_tokens":false}`},
		"a completion with a list of one": {openai.Completions, `{"prompt":["a"],"model":"m"}`, `{"model":"m","prompt":"a"}`},
		"an input of embeddings": {openai.Embeddings, `{"input":"a","model":"m","add_special_tokens":false,"dimensions":8,"padding":null}`,
			`{"model":"m","prompt":"a","add_special_tokens":false}`},
		"messages are the chat that they stand for": {openai.Messages, `{"model":"m","max_tokens":3,"system":[{"type":"text","text":"s"}],"output_config":{"effort":"low"},
			"tools":[{"name":"f","input_schema":{}}],"stream":true,"cache_salt":"x","chat_template_kwargs":{"a":1},"messages":[{"role":"user","content":"a<b\u00e9"},
			{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"1","name":"f","input":{"x":[1.50,"ü"]}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]}]}`,
			`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a<b\u00e9"},
			{"role":"assistant","reasoning":"t","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": [1.5, \"\\u00fc\"]}"}}]},
			{"role":"tool","tool_call_id":"1","content":"r"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],
			"chat_template_kwargs":{"a":1,"reasoning_effort":"low","enable_thinking":true}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := &engine{answers: map[string]answer{"/tokenize": {200, `{"tokens":[1]}`}, chatRender: {403, routeClosed},
				"/v1/messages/render": {403, routeClosed}}}
			if _, err := newClient(t, Options{}).Tokens(t.Context(), start(t, e), tc.route, []byte(tc.body), ""); err != nil {
				t.Fatal(err)
			}
			var want, got any
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			asked := e.asked[len(e.asked)-1]
			if err := json.Unmarshal([]byte(asked.Body), &got); err != nil {
				t.Fatalf("asked %q: %v", asked.Body, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if asked.Auth != "" {
				t.Errorf("sent %q without a key", asked.Auth)
			}
		})
	}
}
