package tokencheck

import (
	"encoding/json"
	"strings"
)

// Requests of other APIs that stand for chats. A render route returns their ids, and so do answers to Responses requests with
// enable_response_messages. Answers to Messages requests have only the number of their ids. Therefore the texts of a case
// differ in length: what is left out, doubled or taken from another place changes the number.

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
	return append([]namedChat{
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
	}, messagesInBlocks()...)
}

// messagesInBlocks are requests whose blocks and turns have as many forms as the engine's conversion has branches. No engine
// needs a tool parser for them.
func messagesInBlocks() []namedChat {
	use := func(id string, input any) block {
		return block{"type": "tool_use", "id": id, "name": "search", "input": input}
	}
	result := func(id string, content any) block {
		return block{"type": "tool_result", "tool_use_id": id, "content": content}
	}
	long := []message{say("user", "Let us count.")}
	for i := range 6 {
		long = append(long, say("assistant", strings.Repeat("One more. ", i+1)), say("user", strings.Repeat("And then? ", i+1)))
	}
	withoutThoughts := with(say("user", "Answer at once."))
	withoutThoughts["thinking"] = block{"type": "disabled"}
	headerOnly := with(say("user", "No system prompt is left."))
	headerOnly["system"] = []any{textBlock("x-anthropic-billing-header: all of it")}
	return []namedChat{
		{"many turns", with(long...)},
		{"code and Chinese in blocks", with(message{"role": "user", "content": []any{textBlock(texts[4].text), textBlock(texts[11].text)}})},
		{"white space around blocks", with(message{"role": "user", "content": []any{textBlock("\n  Hello \t\n"), textBlock("  again \n")}})},
		{"empty blocks", with(message{"role": "user", "content": []any{textBlock(""), textBlock("What is left?"), textBlock("")}})},
		{"thoughts alone", with(say("user", "One."), message{"role": "assistant", "content": []any{
			block{"type": "thinking", "thinking": "Two, I think, and not three.", "signature": "s"}}}, say("user", "Well?"))},
		{"thoughts in two blocks, and hidden ones", with(say("user", "One."), message{"role": "assistant", "content": []any{
			block{"type": "thinking", "thinking": "I look.", "signature": "s"}, block{"type": "redacted_thinking", "data": "eA=="},
			block{"type": "thinking", "thinking": " I look a second time, longer.", "signature": "t"}, textBlock("Two.")}}, say("user", "Three."))},
		{"input of every kind", with(say("user", "Search."), message{"role": "assistant", "content": []any{
			use("toolu_1", block{"q": "Köln \"quoted\" <tag>\n", "n": nil, "in": block{"list": []any{1, 2.5, true, "ü"}, "empty": block{}}})}},
			message{"role": "user", "content": []any{result("toolu_1", "found")}})},
		{"text between results", with(say("user", "Search twice."), message{"role": "assistant", "content": []any{textBlock("I search."),
			use("toolu_1", block{"q": "a"}), textBlock("And again."), use("toolu_2", block{"q": "b"})}},
			message{"role": "user", "content": []any{textBlock("Before them."), result("toolu_1", "one result"), textBlock("Between both of them."),
				result("toolu_2", []any{textBlock("two"), textBlock("results in lines")}), textBlock("After all of them, at the end.")}})},
		{"a result without content", with(say("user", "Search."), message{"role": "assistant", "content": []any{use("toolu_1", block{})}},
			message{"role": "user", "content": []any{block{"type": "tool_result", "tool_use_id": "toolu_1"}}})},
		{"no thinking", withoutThoughts},
		{"nothing but a billing header as a system prompt", headerOnly},
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
