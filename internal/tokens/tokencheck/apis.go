package tokencheck

import "encoding/json"

// Requests of other APIs that stand for chats. Only a render route returns their ids.

type block = map[string]any

func textBlock(text string) block { return block{"type": "text", "text": text} }

// place is the schema of a tool's input, with and without a type.
var (
	place   = json.RawMessage(`{"type":"object","properties":{"place":{"type":"string","description":"Ort, e.g. Köln"}},"required":["place"]}`)
	untyped = json.RawMessage(`{"properties":{"q":{"type":"string"},"n":{"type":["integer","null"]}}}`)
)

// messagesCases are requests of the Messages API.
func messagesCases() []namedChat {
	tools := []any{block{"name": "get_weather", "description": "The weather at a place.", "input_schema": place},
		block{"name": "search", "input_schema": untyped}}
	conversation := []message{
		say("user", "The weather in Köln?"),
		{"role": "assistant", "content": []any{block{"type": "thinking", "thinking": "I look.", "signature": "s"}, textBlock("Let me see."),
			block{"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": block{"place": "Köln", "days": 2, "exact": 7.50}}}},
		{"role": "user", "content": []any{
			block{"type": "tool_result", "tool_use_id": "toolu_1", "content": []any{textBlock("grey"), textBlock("7°C")}}, textBlock("Well?")}},
		say("assistant", "It is grey."),
		{"role": "user", "content": []any{textBlock("And"), textBlock("tomorrow?")}},
	}
	twoResults := []message{
		say("user", "Both?"),
		{"role": "assistant", "content": []any{block{"type": "tool_use", "id": "toolu_1", "name": "search", "input": block{}},
			block{"type": "tool_use", "id": "toolu_2", "name": "search", "input": block{"q": "b"}}}},
		{"role": "user", "content": []any{block{"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"},
			block{"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true}}},
	}
	free := with(conversation...)
	free["tools"] = tools
	unused := with(twoResults...)
	unused["tools"], unused["tool_choice"] = tools, block{"type": "none"}
	system := with(say("user", "Hello."))
	system["system"] = "You are brief."
	blocks := with(say("user", "Hello."), say("assistant", "Hello!"), say("user", "How are you?"))
	blocks["system"] = []any{textBlock("x-anthropic-billing-header: new each time"), block{"type": "text", "text": "You are brief.",
		"cache_control": block{"type": "ephemeral"}}, textBlock("And kind.")}
	inline := with(say("user", "Hello."), say("assistant", "Hello!"), say("system", "Now be brief."), say("user", "How are you?"))
	inline["system"] = "You help."
	arguments := with(say("user", "Think about it."))
	arguments["chat_template_kwargs"] = block{"enable_thinking": false}
	effort := with(say("user", "Think a little."))
	effort["output_config"] = block{"effort": "low"}
	return []namedChat{
		{"one message", with(say("user", "Hello."))},
		{"a system prompt", system},
		{"a system prompt in blocks", blocks},
		{"a system prompt amid turns", inline},
		{"calls of tools and thoughts", with(conversation...)},
		{"calls of tools that are there", free},
		{"two calls, and tools that must not be used", unused},
		{"an empty answer", with(say("user", "One."), message{"role": "assistant", "content": []any{}}, say("user", "Two."))},
		{"arguments of the template", arguments},
		{"an effort", effort},
	}
}

// responsesCases are requests of the Responses API.
func responsesCases() []namedChat {
	tools := []any{
		block{"type": "function", "name": "get_weather", "description": "The weather at a place.", "parameters": place, "strict": true},
		block{"type": "function", "name": "search", "parameters": untyped, "strict": nil}}
	in := func(text string) any { return []any{block{"type": "input_text", "text": text}} }
	out := func(text string) any {
		return []any{block{"type": "output_text", "text": text, "annotations": []any{}}}
	}
	call := func(id, arguments string) block {
		return block{"type": "function_call", "call_id": id, "name": "get_weather", "arguments": arguments}
	}
	conversation := []any{
		block{"type": "message", "role": "user", "content": in("The weather in Köln?")},
		block{"type": "reasoning", "id": "rs_1", "summary": []any{}, "content": []any{block{"type": "reasoning_text", "text": "I look."}}},
		call("call_1", `{"place": "Köln"}`), call("call_2", `{}`),
		block{"type": "function_call_output", "call_id": "call_1", "output": `{"sky": "grey"}`},
		block{"type": "function_call_output", "call_id": "call_2", "output": "no place"},
		block{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": out("It is grey.")},
		block{"role": "user", "content": "And tomorrow?"},
	}
	ask := func(input any, fields block) map[string]any {
		body := map[string]any{"input": input, "store": false}
		for name, v := range fields {
			body[name] = v
		}
		return body
	}
	return []namedChat{
		{"a text", ask("Hello.", nil)},
		{"instructions", ask("Hello.", block{"instructions": "You are brief."})},
		{"messages", ask([]any{block{"role": "user", "content": "Hi."}, block{"role": "assistant", "content": "Hello!"},
			block{"role": "user", "content": in("How are you?")}}, nil)},
		{"a system prompt", ask([]any{block{"role": "system", "content": "You help."}, block{"role": "user", "content": "Hi."}}, nil)},
		{"a developer", ask([]any{block{"role": "developer", "content": "Be brief."}, block{"role": "user", "content": "Hi."}},
			block{"instructions": "You help."})},
		{"calls of tools and reasoning", ask(conversation, nil)},
		{"calls of tools that are there", ask(conversation, block{"tools": tools})},
		{"tools that must not be used", ask("Hello.", block{"tools": tools, "tool_choice": "none"})},
		{"an effort", ask("Think a little.", block{"reasoning": block{"effort": "low"}})},
		{"arguments of the template", ask("Think.", block{"chat_template_kwargs": block{"enable_thinking": false}})},
	}
}
