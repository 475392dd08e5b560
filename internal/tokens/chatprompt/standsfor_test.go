package chatprompt

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// promptOf is the prompt of a request on any route.
func promptOf(t testing.TB, r *Renderer, route openai.Route, body string) (string, error) {
	t.Helper()
	body = `{"model": "m", ` + body[1:]
	var req openai.Request
	if err := openai.Parse(route, []byte(body), &req); err != nil {
		t.Fatal(err)
	}
	p, err := r.Render(t.Context(), []byte(body), &req)
	if err != nil {
		return "", err
	}
	defer p.Release()
	return strings.Clone(p.Text), nil
}

const (
	described = `{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"properties": {}, "type": "object"}}}`
	callOfF   = `{"role": "assistant", "content": "c", "reasoning": "r", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1.0}"}}]}`
)

// TestRequestsOfOtherAPIsStandForChats: the prompt of a request of another API is that of the chat that the engine makes of it,
// whether the template takes texts or parts.
func TestRequestsOfOtherAPIsStandForChats(t *testing.T) {
	for name, tc := range map[string]struct {
		route      openai.Route
		body, chat string
	}{
		"a message": {openai.Messages, `{"messages": [{"role": "user", "content": "hi"}]}`, `{"messages": [{"role": "user", "content": "hi"}]}`},
		"a system prompt, with the fields that only chats have": {
			openai.Messages, `{"system": "s", "add_generation_prompt": false, "documents": [{}], "chat_template": "x", "messages": [{"role": "user", "content": "hi"}]}`,
			`{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]}`,
		},
		"a system prompt in blocks, without the line that is new each time": {
			openai.Messages, `{"system": [{"type": "text", "text": "x-anthropic-billing-header: 1\nkeep"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
				"messages": [{"role": "user", "content": "hi"}]}`,
			`{"messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": "hi"}]}`,
		},
		"a system prompt amid the turns": {
			openai.Messages, `{"messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}`,
			`{"messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "ab"}]}`,
		},
		"one block is its text, several are parts, empty ones are none": {
			openai.Messages, `{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
				{"role": "assistant", "content": []}, {"role": "user", "content": []}, {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}]}`,
			`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}]}`,
		},
		"thoughts, calls and results": {
			openai.Messages, `{"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "r", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
				{"type": "text", "text": "c"}, {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1.0}}]},
				{"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
				{"type": "tool_result", "tool_use_id": "2"}]}]}`,
			`{"messages": [` + callOfF + `, {"role": "tool", "tool_call_id": "1", "content": "x\ny"}, {"role": "tool", "tool_call_id": "2", "content": ""}, {"role": "user", "content": "t"}]}`,
		},
		"tools": {
			openai.Messages, `{"tools": [{"type": "custom", "name": "f", "description": "d", "input_schema": {"properties": {}}, "cache_control": {}}], "tool_choice": {"type": "any"},
				"messages": [{"role": "user", "content": "hi"}]}`,
			`{"tools": [` + described + `], "messages": [{"role": "user", "content": "hi"}]}`,
		},
		"an effort, and arguments": {
			openai.Messages, `{"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}, "chat_template_kwargs": {"custom": 1}, "messages": [{"role": "user", "content": "hi"}]}`,
			`{"reasoning_effort": "high", "chat_template_kwargs": {"custom": 1}, "messages": [{"role": "user", "content": "hi"}]}`,
		},
		"no thinking": {
			openai.Messages, `{"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "hi"}]}`,
			`{"reasoning_effort": "none", "messages": [{"role": "user", "content": "hi"}]}`,
		},
		"a text": {openai.Responses, `{"input": "hi"}`, `{"messages": [{"role": "user", "content": "hi"}]}`},
		"instructions and a developer": {
			openai.Responses, `{"instructions": "s", "input": [{"role": "developer", "content": [{"type": "input_text", "text": "d"}]}, {"type": "message", "role": "user", "content": "hi"}]}`,
			`{"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": [{"type": "text", "text": "d"}]}, {"role": "user", "content": "hi"}]}`,
		},
		"what an assistant thought, called and said is one message": {
			openai.Responses, `{"input": [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
				{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": 1.0}"},
				{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}, {"type": "output_text", "text": "dropped"}]},
				{"type": "function_call_output", "call_id": "1", "output": "o"}, {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}]}`,
			`{"messages": [` + callOfF + `, {"role": "tool", "tool_call_id": "1", "content": "o"}, {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}]}`,
		},
		"tools and an effort": {
			openai.Responses, `{"input": "hi", "reasoning": {"effort": "low", "summary": "auto"}, "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"properties": {}, "type": "object"}, "strict": null}]}`,
			`{"reasoning_effort": "low", "tools": [` + described + `], "messages": [{"role": "user", "content": "hi"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, template := range []string{inAnyOrder(dumping), inAnyOrder(dumpingParts)} {
				r := newRenderer(t, template, Options{Release: "0.32.0"})
				want, err := promptOf(t, r, openai.ChatCompletions, tc.chat)
				if err != nil {
					t.Fatal(err)
				}
				got, err := promptOf(t, r, tc.route, tc.body)
				if err != nil || got != want {
					t.Errorf("the prompt is\n%s\nwant\n%s\nerror %v", got, want, err)
				}
			}
		})
	}
}

// inAnyOrder prints the keys of messages in order, and mentions the role developer.
func inAnyOrder(template string) string {
	return strings.ReplaceAll(template, "tojson", "tojson(sort_keys=true)") + `{# "developer" #}`
}

// TestTheOrderOfACallsFields: the chats that Responses requests become are not validated again, which would order them.
func TestTheOrderOfACallsFields(t *testing.T) {
	r := newRenderer(t, `{{ messages[0].tool_calls[0].function.keys() | join }}`, Options{Release: "0.32.0"})
	for route, tc := range map[openai.Route][2]string{
		openai.Responses: {`{"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]}`, "namearguments"},
		openai.Messages:  {`{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]}`, "argumentsname"},
	} {
		if got, err := promptOf(t, r, route, tc[0]); got != tc[1] || err != nil {
			t.Errorf("%s: %q, error %v", route, got, err)
		}
	}
}

// TestSystemPromptsAmidTurns: they are merged into the first where the engine takes the template for one that refuses them,
// which it tries with Jinja alone, and before v0.31 wherever it was started without --chat-template.
func TestSystemPromptsAmidTurns(t *testing.T) {
	const (
		turns    = `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}`
		refusing = `{% for m in messages %}{% if m.role == "system" and not loop.first %}{{ raise_exception("no") }}{% endif %}{% endfor %}` + turns
		body     = `{"system": "s", "messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "t"}, {"role": "user", "content": "v"}]}`
		asIs     = "<system>s<user>u<system>t<user>v"
		merged   = "<system>st<user>u<user>v"
	)
	for name, tc := range map[string]struct{ template, release, want string }{
		"a template that takes them":           {turns, "0.31.0", asIs},
		"a template that refuses them":         {refusing, "0.31.0", merged},
		"a template with the time":             {turns + `{{ strftime_now("") }}`, "0.31.0", merged},
		"a template with a tag of its library": {turns + `{% generation %}{% endgeneration %}`, "0.31.0", merged},
		"an older release":                     {turns, "0.30.0", merged},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := promptOf(t, newRenderer(t, tc.template, Options{Release: tc.release}), openai.Messages, body); got != tc.want || err != nil {
				t.Errorf("%q, want %q; error %v", got, tc.want, err)
			}
		})
	}
}

// TestThinkingIsDisabledAsTheTemplateAllows: by the effort none, or low where that is refused or ignored, from v0.31 on.
func TestThinkingIsDisabledAsTheTemplateAllows(t *testing.T) {
	const effort = `{{ reasoning_effort | default("unset") }}`
	body := `{"thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "hi"}]}`
	for name, tc := range map[string]struct{ template, release, want string }{
		"a template that knows none":    {effort, "0.32.0", "none"},
		"a template that refuses none":  {`{% if reasoning_effort == "none" %}{{ raise_exception("no") }}{% endif %}` + effort, "0.32.0", "low"},
		"a template that ignores it":    {`{{ "max" if reasoning_effort in ("none", "max") else reasoning_effort }}`, "0.32.0", "low"},
		"thinking that can be disabled": {`{{ enable_thinking }}`, "0.32.0", "False"},
		"an older release":              {effort, "0.30.0", "unset"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := promptOf(t, newRenderer(t, tc.template, Options{Release: tc.release}), openai.Messages, body); got != tc.want || err != nil {
				t.Errorf("%q, want %q; error %v", got, tc.want, err)
			}
		})
	}
}

// TestOnlyTheEngineKnowsOtherRequests: what is not certain is left to the engine.
func TestOnlyTheEngineKnowsOtherRequests(t *testing.T) {
	message := func(content string) string { return `{"messages": [{"role": "user", "content": [` + content + `]}]}` }
	for name, tc := range map[string]struct {
		route         openai.Route
		release, body string
	}{
		"messages before they are known":  {openai.Messages, "0.23.0", message(`{"type": "text", "text": "a"}`)},
		"messages of an unknown release":  {openai.Messages, "", message(`{"type": "text", "text": "a"}`)},
		"a salt that is ignored":          {openai.Messages, "0.26.0", `{"cache_salt": "s", "messages": [{"role": "user", "content": "a"}]}`},
		"a call without an id":            {openai.Messages, "0.32.0", `{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]}`},
		"a reference to a tool":           {openai.Messages, "0.32.0", message(`{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": "f"}]}`)},
		"a tool that is added":            {openai.Messages, "0.32.0", `{"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]}`},
		"a deferred tool":                 {openai.Messages, "0.32.0", `{"tools": [{"name": "f", "input_schema": {}, "defer_loading": true}], "messages": []}`},
		"responses before they are known": {openai.Responses, "0.26.0", `{"input": "hi"}`},
		"a shortened prompt":              {openai.Responses, "0.32.0", `{"input": "hi", "truncation": "auto"}`},
		"an answer to continue":           {openai.Responses, "0.32.0", `{"input": [{"type": "message", "role": "assistant", "status": "incomplete", "content": "x"}]}`},
		"a call of a built-in tool":       {openai.Responses, "0.32.0", `{"input": [{"type": "web_search_call", "id": "1", "status": "completed"}]}`},
		"encrypted reasoning":             {openai.Responses, "0.32.0", `{"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}`},
		"a built-in tool":                 {openai.Responses, "0.32.0", `{"input": "hi", "tools": [{"type": "web_search"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRenderer(t, dumping, Options{Release: tc.release})
			if text, err := promptOf(t, r, tc.route, tc.body); !errors.Is(err, ErrUnsupported) {
				t.Errorf("prompt %q, error %v", text, err)
			}
		})
	}
}
