package chatprompt

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// nothing is an encoder without ids.
type nothing struct{}

func (nothing) EncodeContext(_ context.Context, dst []uint32, _ string, _ bool) ([]uint32, error) {
	return dst, nil
}

// conversationBody is a request of a number of turns, each of about so many bytes, with a tool.
func conversationBody(turns, size int) []byte {
	text := strings.Repeat("The quick brown fox jumps over the \"lazy\" dog.\n", size/47+1)[:size]
	messages := []map[string]any{{"role": "system", "content": "You help."}}
	for i := range turns {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		messages = append(messages, map[string]any{"role": role, "content": text})
	}
	body, err := json.Marshal(map[string]any{
		"model": "m", "messages": messages,
		"tools": []any{map[string]any{"type": "function", "function": map[string]any{
			"name": "get", "description": "Gets.", "parameters": map[string]any{
				"type": "object", "properties": map[string]any{"a": map[string]any{"type": "string"}},
			},
		}}},
	})
	if err != nil {
		panic(err) // cannot be: nothing in it is unusual
	}
	return body
}

// called is a call of a tool with arguments, written as JSON in JSON.
func called(arguments string) string {
	return `{"id": "i", "type": "function", "function": {"name": "f", "arguments": "` + arguments + `"}}`
}

func TestPrompt(t *testing.T) {
	const (
		turns    = `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}`
		user     = `{"model": "m", "messages": [{"role": "user", "content": "hi"}]`
		assisted = `{"model": "m", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}]`
		tools    = `, "tools": [{"type": "function", "function": {"name": "f"}}]`
		resume   = `, "add_generation_prompt": false, "continue_final_message": true`
		parts    = `{% for m in messages %}{% for c in m.content %}{{ c.type }}:{{ c.text }};{% endfor %}{% endfor %}`
	)
	tests := map[string]struct {
		template string
		options  Options
		body     string
		want     string
		err      string // part of the message; the error wraps ErrUnsupported unless raised
		raised   bool
	}{
		"messages are rendered": {template: turns, body: user + "}", want: "<user>hi"},
		"a generation prompt is asked for by default": {
			template: `{{ add_generation_prompt }}`, body: user + "}", want: "True",
		},
		"none is asked for where the request says so": {
			template: `{{ add_generation_prompt }}`, body: user + `, "add_generation_prompt": false}`, want: "False",
		},
		"tools are none without tools":   {template: `{{ tools }}`, body: user + "}", want: "None"},
		"tools have all fields in order": {template: `{{ tools }}`, body: user + tools + "}", want: "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': None}}]"},
		"tools stay with the choice none": {
			template: `{{ tools is none }}`, body: user + tools + `, "tool_choice": "none"}`, want: "False",
		},
		"tools go with the choice none where the engine is configured so": {
			template: `{{ tools is none }}`, options: Options{ExcludeTools: true},
			body: user + tools + `, "tool_choice": "none"}`, want: "True",
		},
		"tokens of the tokenizer are variables, those that are not set are not": {
			template: `{{ bos_token }}{{ eos_token is defined }}`, body: user + "}", want: "<s>False",
		},
		"arguments of the request replace them": {
			template: `{{ bos_token }}`, body: user + `, "chat_template_kwargs": {"bos_token": "B"}}`, want: "B",
		},
		"an effort turns thinking on": {
			template: `{{ enable_thinking }}{{ reasoning_effort }}`, options: Options{Release: "0.25.0"},
			body: user + `, "reasoning_effort": "low"}`, want: "Truelow",
		},
		"an effort of none turns it off": {
			template: `{{ enable_thinking }}`, options: Options{Release: "0.25.0"},
			body: user + `, "reasoning_effort": "none"}`, want: "False",
		},
		"an effort does not matter to a template that does not ask": {
			template: turns, body: user + `, "reasoning_effort": "low"}`, want: "<user>hi",
		},
		"an effort before thinking": {
			template: `{{ enable_thinking is defined }}`, options: Options{Release: "0.18.0"},
			body: user + `, "reasoning_effort": "low"}`, want: "False",
		},
		"an effort in an unknown release": {
			template: `{{ enable_thinking }}`, body: user + `, "reasoning_effort": "low"}`, err: "reasoning_effort",
		},
		"the last message is continued": {
			template: turns + `</s>`, body: assisted + resume + "}", want: "<user>hi<assistant>well",
		},
		"the last message is continued where the template goes over parts": {
			template: parts, body: assisted + resume + "}", want: "text:hi;text:well",
		},
		"of several parts the last is continued": {
			template: parts, want: "text:a;text:b",
			body: `{"model": "m", "messages": [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]` + resume + "}",
		},
		"no parts to continue": {
			template: parts, body: `{"model": "m", "messages": [{"role": "assistant", "content": []}]` + resume + "}", err: "empty",
		},
		"a refusal is a text": {
			template: turns, body: `{"model": "m", "messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]}`, want: "<assistant>no",
		},
		"a refusal is a text among parts": {
			template: parts, options: Options{Release: "0.32.0"}, want: "text:no;text:a;",
			body: `{"model": "m", "messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "a"}]}]}`,
		},
		"a refusal without its text": {
			template: turns, body: `{"model": "m", "messages": [{"role": "assistant", "content": [{"type": "refusal", "text": "no"}]}]}`, err: "no text",
		},
		"a message whose text comes again behind it": {
			template: turns + `well</s>`, body: assisted + resume + "}", err: "continuing",
		},
		"a message with white space around it": {
			template: turns, body: `{"model": "m", "messages": [{"role": "assistant", "content": " x"}]` + resume + "}", err: "white space",
		},
		"both a continued message and a generation prompt": {
			template: turns, body: assisted + `, "continue_final_message": true}`, err: "add_generation_prompt",
		},
		"strings become parts where the template goes over parts": {
			template: parts, body: user + "}", want: "text:hi;",
		},
		"no content becomes no parts": {
			template: parts, body: `{"model": "m", "messages": [{"role": "assistant", "content": null}]}`, want: "",
		},
		"parts are joined where it does not": {
			template: turns, body: `{"model": "m", "messages": [{"role": "user", "content":
				[{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]}]}`, want: "<user>a\nb",
		},
		"the engine can be configured with the format": {
			template: parts, options: Options{ContentFormat: "string"}, body: user + "}", want: ":;:;",
		},
		"the results of tools become strings in newer releases": {
			template: `{{ messages[0].content }}` + parts, options: Options{Release: "0.21.0"},
			body: `{"model": "m", "messages": [{"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}`,
			want: "a\nb:;:;:;",
		},
		"they stay parts in older ones": {
			template: `{{ messages[0].content }}`, options: Options{Release: "0.18.0", ContentFormat: "openai"},
			body: `{"model": "m", "messages": [{"role": "tool", "content": "a"}]}`, want: "[{'type': 'text', 'text': 'a'}]",
		},
		"they are refused where the release is not known": {
			template: parts, body: `{"model": "m", "messages": [{"role": "tool", "content": "a"}]}`, err: "results of tools",
		},
		"arguments become dicts": {
			template: `{{ messages[0].tool_calls }}`,
			body: `{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"index": 0, "type": "function", "id": "1",
				"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2.0}"}}]}]}`,
			want: "[{'id': '1', 'function': {'arguments': {'b': 1, 'a': 2.0}, 'name': 'f'}, 'type': 'function', 'index': 0}]",
		},
		"reasoning has two names": {
			template: `{{ messages[0] }}`, options: Options{Release: "0.17.0"},
			body: `{"model": "m", "messages": [{"role": "assistant", "reasoning": "r", "content": "c"}]}`,
			want: "{'role': 'assistant', 'content': 'c', 'reasoning': 'r', 'reasoning_content': 'r'}",
		},
		"the old name is taken for the new one in newer releases": {
			template: `{{ messages[0].reasoning }}`, options: Options{Release: "0.23.0"},
			body: `{"model": "m", "messages": [{"role": "assistant", "reasoning_content": "r", "content": "c"}]}`, want: "r",
		},
		"the old name is dropped in between": {
			template: `{{ messages[0] }}`, options: Options{Release: "0.20.0"},
			body: `{"model": "m", "messages": [{"role": "assistant", "reasoning_content": "r", "content": "c"}]}`,
			want: "{'role': 'assistant', 'content': 'c'}",
		},
		"a developer is a system to a template that does not know the role, from 0.23 on": {
			template: turns, options: Options{Release: "0.23.0"},
			body: `{"model": "m", "messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": "hi"}]}`, want: "<system>d<user>hi",
		},
		"before, the role stays": {
			template: turns, options: Options{Release: "0.22.1"},
			body: `{"model": "m", "messages": [{"role": "developer", "content": "d"}]}`, want: "<developer>d",
		},
		"of an unknown release, the result is unknown": {
			template: turns, body: `{"model": "m", "messages": [{"role": "developer", "content": "d"}]}`, err: "developer",
		},
		"a template that mentions the role gets it": {
			template: turns + `{% if messages[0].role == "developer" %}!{% endif %}`, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "developer", "content": "d"}]}`, want: "<developer>d!",
		},
		"all system messages merge where there is a developer": {
			template: turns, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "system", "content": "s", "name": "n"}, {"role": "user", "content": "hi"}, {"role": "developer", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]}, {"role": "system", "content": ""}]}`,
			want: "<system>s\n\nd\ne<user>hi",
		},
		"without a developer they do not": {
			template: turns, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "s"}]}`, want: "<user>hi<system>s",
		},
		"a developer at the beginning keeps its parts": {
			template: parts, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "developer", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]}]}`, want: "text:d;text:e;",
		},
		"parts of developers merge to a string": {
			template: `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.content %}{% endfor %}{% endfor %}`, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "user", "content": "u"}, {"role": "developer", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]}]}`,
			want: "<system>d\ne<user>[{'type': 'text', 'text': 'u'}]",
		},
		"developers that become systems have no tools": {
			template: `{{ messages[0] }}`, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"content": "c", "role": "developer", "name": "n"}]}`, want: "{'role': 'system', 'content': 'c', 'name': 'n'}",
		},
		"a line for billing is dropped from 0.32 on": {
			template: turns, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1\nBe kind."}]}`, want: "<system>Be kind.",
		},
		"so is a part with nothing else": {
			template: turns, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be kind."}]}]}`,
			want: "<system>Be kind.",
		},
		"a system prompt of that line alone is empty": {
			template: turns, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "system", "content": "x-anthropic-billing-header: 1"}]}`, want: "<system>",
		},
		"users keep such a line": {
			template: turns, options: Options{Release: "0.32.0"},
			body: `{"model": "m", "messages": [{"role": "user", "content": "x-anthropic-billing-header: 1\na"}]}`, want: "<user>x-anthropic-billing-header: 1\na",
		},
		"and systems before 0.32": {
			template: turns, options: Options{Release: "0.31.0"},
			body: `{"model": "m", "messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\na"}]}`, want: "<system>x-anthropic-billing-header: 1\na",
		},
		"of an unknown release, the result of such a line is unknown": {
			template: turns, body: `{"model": "m", "messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\na"}]}`, err: "billing",
		},
		"undefined fields of parts reach the template from 0.26 on": {
			template: `{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}`, options: Options{Release: "0.26.0"},
			body: `{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "uuid": null, "cache_control": {"type": "ephemeral"}}]}]}`,
			want: "{'type': 'text', 'text': 'a', 'cache_control': {'type': 'ephemeral'}}",
		},
		"before, they do not": {
			template: `{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}`, options: Options{Release: "0.25.1"},
			body: `{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]}`,
			want: "{'type': 'text', 'text': 'a'}",
		},
		"arguments that are no object are an empty one from 0.29 on": {
			template: `{% for c in messages[0].tool_calls %}{{ c.function.arguments }};{% endfor %}`, options: Options{Release: "0.29.0"},
			body: `{"model": "m", "messages": [{"role": "assistant", "tool_calls": [` + called(`[1]`) + "," + called(`nope`) + "," + called(`null`) + "," + called(`7`) + "," + called(`{\"a\": 1}`) + `]}]}`,
			want: "{};{};{};{};{'a': 1};",
		},
		"before, a list stays one": {
			template: `{{ messages[0].tool_calls[0].function.arguments }}`, options: Options{Release: "0.28.0"},
			body: `{"model": "m", "messages": [{"role": "assistant", "tool_calls": [` + called(`[1]`) + `]}]}`, want: "[1]",
		},
		"what only Python takes for JSON": {
			template: `{{ messages[0].tool_calls[0].function.arguments }}`, options: Options{Release: "0.29.0"},
			body: `{"model": "m", "messages": [{"role": "assistant", "tool_calls": [` + called(`{\"a\": NaN}`) + `]}]}`, err: "arguments",
		},
		"developers have no tools": {
			template: `{{ messages[0] }}`, options: Options{Release: "0.17.0"}, body: `{"model": "m", "messages": [{"content": "c", "role": "developer", "x": 1}]}`,
			want: "{'role': 'developer', 'content': 'c', 'tools': None}",
		},
		"the date is the engine's": {
			template: `{{ strftime_now("%d %b %Y") }}`, body: user + "}", want: "20 Nov 2026",
			options: Options{Now: func() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }},
		},
		"the date at midnight": {
			template: `{{ strftime_now("%d %b %Y") }}`, body: user + "}", err: "midnight",
			options: Options{Now: func() time.Time { return time.Date(2026, 11, 20, 23, 59, 58, 0, time.UTC) }},
		},
		"a template that refuses the request": {
			template: `{{ raise_exception("no") }}`, body: user + "}", err: "TemplateError: no", raised: true,
		},
		"a template that asks for what is not known": {
			template: `{{ (messages|string).encode() }}`, body: user + "}", err: "encode",
		},
		"a template in the request":      {template: turns, body: user + `, "chat_template": "x"}`, err: "chat_template"},
		"arguments that are fields":      {template: turns, body: user + `, "chat_template_kwargs": {"tools": []}}`, err: "tools"},
		"ids that come with the request": {template: turns, body: user + `, "kv_transfer_params": {"prompt_token_ids": [1]}}`, err: "ids"},
		"an empty list of tools":         {template: turns, body: user + `, "tools": []}`, err: "tools"},
		"a document of an unusual type":  {template: turns, body: user + `, "documents": [{"a": 1}]}`, err: "documents"},
		"an image":                       {template: turns, body: `{"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}`, err: "not text"},
		"half a surrogate pair":          {template: turns, body: `{"model": "m", "messages": [{"role": "user", "content": "\ud800"}]}`, err: "surrogate"},
		"truncation from the other side": {template: turns, body: user + `, "truncation_side": "right"}`, err: "truncation_side"},
		"arguments of a tool call that do not parse": {
			template: turns,
			body: `{"model": "m", "messages": [{"role": "assistant", "content": "", "tool_calls":
				[{"type": "function", "id": "1", "function": {"name": "f", "arguments": "{"}}]}]}`, err: "arguments",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRenderer(t, tc.template, tc.options)
			got, err := prompt(t, r, []byte(tc.body))
			if tc.err == "" {
				if err != nil || got != tc.want {
					t.Fatalf("got %q, %v, want %q", got, err, tc.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("got %q, %v, want an error with %q", got, err, tc.err)
			}
			var raised *chattemplate.RaisedError
			if errors.As(err, &raised) != tc.raised || errors.Is(err, ErrUnsupported) == tc.raised {
				t.Errorf("got an error of the wrong kind: %v", err)
			}
		})
	}
}

func TestSpecialTokensAroundThePrompt(t *testing.T) {
	r := newRenderer(t, `x`, Options{})
	for field, want := range map[string]int{"": 1, `, "add_special_tokens": false`: 1, `, "add_special_tokens": true`: 2} {
		body := []byte(`{"model": "m", "messages": []` + field + `}`)
		var req openai.Request
		if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
			t.Fatal(err)
		}
		ids, err := r.Tokens(t.Context(), []uint32{7}, body, &req)
		if err != nil || len(ids) != 1+want || ids[0] != 7 {
			t.Errorf("%q: got %d, %v, want %d more", field, ids, err, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	const config = `{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "x"}`
	tests := map[string]struct {
		files   map[string]string
		options Options
		want    string
	}{
		"no template":                {files: map[string]string{"tokenizer_config.json": `{}`}, want: "without a template"},
		"no files":                   {want: "without a template"},
		"two templates":              {files: map[string]string{"tokenizer_config.json": config, "chat_template.jinja": "y"}, want: "beside another"},
		"a processor's own template": {files: map[string]string{"tokenizer_config.json": config, "processor_config.json": `{"chat_template": "y"}`}, want: "processor_config.json"},
		"and in two files":           {files: map[string]string{"chat_template.jinja": "x", "preprocessor_config.json": "{}", "chat_template.json": `{"chat_template": "y"}`}, want: "beside"},
		"and none for tools":         {files: map[string]string{"preprocessor_config.json": "{}", "chat_template.json": `{"chat_template": "y"}`}, want: "without"},
		"and several": {files: map[string]string{"tokenizer_config.json": config,
			"preprocessor_config.json": "{}", "chat_template.json": `{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}`}, want: "this form"},
		"a processor without a template": {files: map[string]string{"tokenizer_config.json": config, "preprocessor_config.json": "{}", "chat_template.json": `{}`}, want: "this form"},
		"a model with another format":    {files: map[string]string{"tokenizer_config.json": config, "tekken.json": "{}"}, want: "tekken"},
		"a model of another renderer":    {files: map[string]string{"tokenizer_config.json": config, "config.json": `{"model_type": "gpt_oss"}`}, want: "gpt_oss"},
		"an architecture of another renderer": {files: map[string]string{"tokenizer_config.json": config,
			"config.json": `{"model_type": "x", "architectures": ["DeepseekV41ForCausalLM"]}`}, want: "DeepseekV41"},
		"a token that a class sets": {
			files: map[string]string{"tokenizer_config.json": `{"tokenizer_class": "LlamaTokenizer", "chat_template": "{{ bos_token }}"}`}, want: "bos_token",
		},
		"a template that is none":     {files: map[string]string{"tokenizer_config.json": `{"chat_template": "{% if"}`}, want: "line 1"},
		"an unknown tag":              {files: map[string]string{"tokenizer_config.json": `{"chat_template": "{% include 'x' %}"}`}, want: "include"},
		"templates without a default": {files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "rag", "template": "x"}]}`}, want: "default"},
		"a template with the hour":    {files: map[string]string{"tokenizer_config.json": `{"chat_template": "{{ strftime_now('%H') }}"}`}, want: "time of day"},
		"an old release":              {files: map[string]string{"tokenizer_config.json": config}, options: Options{Release: "0.10.2"}, want: "0.10.2"},
		"additional tokens as a name": {files: map[string]string{"tokenizer_config.json": `{"chat_template": "{{ additional_special_tokens }}"}`}, want: "additional"},
		"extra tokens of a processor": {files: map[string]string{"tokenizer_config.json": `{"chat_template": "{{ image_token }}", "extra_special_tokens": {"image_token": "i"}}`}, want: "image_token"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.options.Dir = modelDir(t, tc.files)
			tc.options.Encoder = byteEncoder{}
			_, err := New(tc.options)
			if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to be unsupported because of %q", err, tc.want)
			}
		})
	}
}

func TestNewChoosesTheTemplate(t *testing.T) {
	const (
		user  = `{"model": "m", "messages": [{"role": "user", "content": "hi"}]`
		tools = `, "tools": [{"type": "function", "function": {"name": "f"}}]`
	)
	named := modelDir(t, map[string]string{"named.jinja": "named"})
	tests := map[string]struct {
		files    map[string]string
		template string
		body     string
		want     string
	}{
		"in the configuration":        {files: map[string]string{"tokenizer_config.json": `{"chat_template": "config"}`}, body: user + "}", want: "config"},
		"in a file of its own":        {files: map[string]string{"chat_template.jinja": "file"}, body: user + "}", want: "file"},
		"the same in both":            {files: map[string]string{"tokenizer_config.json": `{"chat_template": "t"}`, "chat_template.jinja": "t"}, body: user + "}", want: "t"},
		"the one the engine names":    {files: map[string]string{"tokenizer_config.json": `{"chat_template": "config"}`, "processor_config.json": "{}"}, template: named + "/named.jinja", body: user + "}", want: "named"},
		"of a model with a processor": {files: map[string]string{"tokenizer_config.json": `{"chat_template": "config"}`, "preprocessor_config.json": "{}", "processor_config.json": `{"chat_template": null}`}, body: user + "}", want: "config"},
		"the processor's":             {files: map[string]string{"tokenizer_config.json": `{"chat_template": "config"}`, "preprocessor_config.json": "{}", "chat_template.json": `{"chat_template": "processor"}`}, body: user + "}", want: "processor"},
		"without a processor":         {files: map[string]string{"tokenizer_config.json": `{"chat_template": "config"}`, "chat_template.json": `{"chat_template": "processor"}`}, body: user + "}", want: "config"},
		"the tokenizer's with tools, beside the processor's": {
			files: map[string]string{"tokenizer_config.json": `{"chat_template": "config"}`, "preprocessor_config.json": "{}", "chat_template.json": `{"chat_template": "processor"}`},
			body:  user + tools + "}", want: "config",
		},
		"the one for tools": {
			files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}`},
			body:  user + tools + "}", want: "t",
		},
		"the other without tools": {
			files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}`},
			body:  user + "}", want: "d",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRenderer(t, "", Options{Dir: modelDir(t, tc.files), Template: tc.template})
			if got, err := prompt(t, r, []byte(tc.body)); err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestParseRelease(t *testing.T) {
	for s, want := range map[string]release{
		"": 0, "x": 0, "1": 0, "0.11.0": 11, "v0.17.1": 17, "0.24.0rc1.dev3+g123": 24, "0.20rc1": 20, "1.2.3": 1002, "0.-1": 0, ".": 0,
	} {
		if got := parseRelease(s); got != want {
			t.Errorf("%q: got %d, want %d", s, got, want)
		}
	}
}

func TestManyGoroutines(t *testing.T) {
	r := newRenderer(t, `{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}`, Options{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			body := conversationBody(i+1, 100*(i+1))
			want, err := prompt(t, r, body)
			for range 50 {
				if got, again := prompt(t, r, body); got != want || err != nil || again != nil {
					t.Errorf("got %q, %v, want %q, %v", got, again, want, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestAllocations(t *testing.T) {
	r := newRenderer(t, `{% for m in messages %}<{{ m.role }}>{{ m.content + '</s>' }}{% endfor %}{{ tools | tojson }}`, Options{Encoder: nothing{}})
	body := conversationBody(24, 1000)
	var req openai.Request
	if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
		t.Fatal(err)
	}
	dst := make([]uint32, 0, 1)
	got := testing.AllocsPerRun(100, func() {
		if _, err := r.Tokens(t.Context(), dst, body, &req); err != nil {
			t.Fatal(err)
		}
	})
	if got > 40 {
		t.Errorf("%v allocations", got)
	}
}

func FuzzPrompt(f *testing.F) {
	readLines(f, "testdata/requests.jsonl.gz", func(line []byte) {
		var g golden
		if err := json.Unmarshal(line, &g); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(g.Body))
	})
	r := newRenderer(f, dumpingParts, Options{Release: "0.24.0"})
	f.Fuzz(func(t *testing.T, body []byte) {
		var req openai.Request
		if openai.Parse(openai.ChatCompletions, body, &req) != nil {
			return
		}
		p, err := r.Render(t.Context(), body, &req)
		var raised *chattemplate.RaisedError
		if err != nil && !errors.Is(err, ErrUnsupported) && !errors.As(err, &raised) {
			t.Errorf("unexpected error %v", err)
		}
		if (err == nil) != (p != nil) {
			t.Errorf("prompt %v beside error %v", p, err)
		}
		if p != nil {
			p.Release()
		}
	})
}
