package real

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// shape is one kind of request of the API.
type shape struct {
	name string
	// since is the first release that takes it; "" is every tested one.
	since string
	// rendered is the first release with a route that returns its ids, and converted the first whose prompts the picker
	// makes; before, its matches are approximate.
	rendered, converted string
	// whole: /tokenize does not know all of it, so that the engine's tokens are exact only from 0.15 on, which has routes
	// that render requests.
	whole bool
	// body makes a conversation's request after a number of turns, 0 or 1; its prompt at turn 1 begins with that at turn
	// 0. The name keeps its prompts apart from all others.
	body func(name string, turn int) request
	// uncached: such a request never reads the cache.
	uncached bool
	// byMetrics: usage does not say what all of the request found, so the engines' counters do.
	byMetrics bool
	// lookups: the engine looks the prompt up so often.
	lookups int
	// truncated: a longer conversation shares no prefix with a shorter one.
	truncated bool
}

// conversation is a system prompt and a chat that grows by a turn.
func conversation(name string, turn int) []object {
	messages := []object{say("system", text(name, 200)), say("user", "What is it about? "+name)}
	if turn > 0 {
		messages = append(messages, say("assistant", "It is about "+text("a"+name, 60)), say("user", "Go on."))
	}
	return messages
}

// with makes a shape's body of a conversation with more fields.
func with(name string, fields object) func(string, int) request {
	return func(id string, turn int) request { return chat(name, conversation(id, turn)...).with(fields) }
}

// brief is with for requests that want the log probabilities of their prompt, which take this machine long: a prompt of some blocks.
func brief(name string, fields object) func(string, int) request {
	return func(id string, turn int) request {
		return chat(name, say("user", text(id, 50+20*turn))).with(fields)
	}
}

// prompt makes a text that grows by a turn.
func prompt(name string, turn int) string {
	return text(name, 250) + []string{"", text("b"+name, 80)}[turn]
}

var weather = []object{{"type": "function", "function": object{"name": "get_weather", "description": "The weather at a place.",
	"parameters": object{"type": "object", "required": []string{"place"}, "properties": object{
		"place": object{"type": "string", "description": "A city, e.g. Köln"}, "days": object{"type": "integer", "minimum": 1}}}}}}

// toolTurns is a conversation in which the model has called a tool.
func toolTurns(name string, turn int) []object {
	call := object{"id": "call_1", "type": "function", "function": object{"name": "get_weather", "arguments": `{"place": "Köln", "days": 2}`}}
	messages := append(conversation(name, 0), object{"role": "assistant", "content": nil, "tool_calls": []object{call}},
		object{"role": "tool", "tool_call_id": "call_1", "content": `{"t": [7.5, 9], "sky": "light rain"}`})
	if turn > 0 {
		messages = append(messages, say("assistant", "About 9 °C, with light rain. "+text("c"+name, 60)), say("user", "And on Sunday?"))
	}
	return messages
}

// part is a content part.
func part(text string) object { return object{"type": "text", "text": text} }

// lastTurn is a conversation whose last message has another role or form.
func lastTurn(name string, turn int, last ...object) []object {
	return append(conversation(name, turn), last...)
}

var shapes = []shape{
	{name: "plain messages", body: with("plain messages", nil)},
	{name: "content parts", body: func(id string, turn int) request {
		return chat("content parts", append([]object{say("user", []object{part(text(id, 200)), part("And then?")})}, conversation(id, turn)[1:]...)...)
	}},
	{name: "several system messages", body: func(id string, turn int) request {
		return chat("several system messages", lastTurn(id, turn, say("system", "Answer in French."), say("user", "Well?"))...)
	}},
	{name: "developer role", body: func(id string, turn int) request {
		messages := conversation(id, turn)
		messages[0]["role"] = "developer"
		return chat("developer role", messages...)
	}},
	{name: "tools", body: with("tools", object{"tools": weather})},
	{name: "tools with choice none", whole: true, body: with("tools with choice none", object{"tools": weather, "tool_choice": "none"})},
	{name: "tool calls in history", body: func(id string, turn int) request {
		return chat("tool calls in history", toolTurns(id, turn)...).with(object{"tools": weather})
	}},
	{name: "tools with every field", body: with("tools with every field", object{"tools": []object{{"type": "function", "function": object{
		"name": "count", "description": "Counts.", "strict": true, "parameters": object{"type": "object", "required": []string{}, "properties": object{},
			"additionalProperties": false, "$defs": object{"x": object{"enum": []any{1, 2.5, nil, "ü"}}}}}}}})},
	{name: "calls with arguments of every kind", body: func(id string, turn int) request {
		messages := toolTurns(id, turn)
		call := object{"id": "call_1", "type": "function", "function": object{"name": "get_weather",
			"arguments": `{"place": "K\u00f6ln", "x": 1.0, "big": 12345678901234567890, "e": 1e3, "n": null, "in": {"b": [true, "\"q\"", {}]}}`}}
		messages[2] = object{"role": "assistant", "content": "I ask.", "tool_calls": []object{call}}
		messages[3]["name"] = "get_weather"
		return chat("calls with arguments of every kind", messages...).with(object{"tools": weather})
	}},
	{name: "template arguments", body: with("template arguments", object{"chat_template_kwargs": object{"enable_thinking": false, "note": []any{"Köln", 1.5, nil, object{"b": true}}}})},
	{name: "no generation prompt", body: with("no generation prompt", object{"add_generation_prompt": false})},
	{name: "reasoning in history", body: func(id string, turn int) request {
		return chat("reasoning in history", lastTurn(id, turn, object{"role": "assistant", "content": "Seven.", "reasoning_content": "I count them.",
			"reasoning": "I count them."}, say("user", "Why?"))...)
	}},
	{name: "reasoning effort", whole: true, body: with("reasoning effort", object{"reasoning_effort": "low"})},
	{name: "documents", whole: true, body: with("documents", object{"documents": []object{{"title": "Köln", "text": "Light rain.", "doc_id": "1"}}})},
	{name: "parts in every role", body: func(id string, turn int) request {
		messages := toolTurns(id, turn)
		for _, m := range messages {
			if text, ok := m["content"].(string); ok {
				m["content"] = []object{part("First, "), part(text)}
			}
		}
		return chat("parts in every role", messages...).with(object{"tools": weather})
	}},
	{name: "a refusal in history", body: func(id string, turn int) request {
		return chat("a refusal in history", lastTurn(id, turn, say("assistant", []object{{"type": "refusal", "refusal": "I say nothing."}}), say("user", "Why?"))...)
	}},
	{name: "names of speakers", body: func(id string, turn int) request {
		return chat("names of speakers", lastTurn(id, turn, object{"role": "user", "name": "ada", "content": "Me too."})...)
	}},
	{name: "continuation", body: func(id string, turn int) request {
		return chat("continuation", lastTurn(id, turn, say("assistant", "It began with"))...).
			with(object{"continue_final_message": true, "add_generation_prompt": false})
	}},
	{name: "truncated chat", body: with("truncated chat", object{"truncate_prompt_tokens": 150}), truncated: true},
	{name: "cache salt", since: "0.17", body: with("cache salt", object{"cache_salt": "tenant-a"})},
	{name: "priority", body: with("priority", object{"priority": 0})},
	{name: "n=2", body: with("n=2", object{"n": 2, "temperature": 1.0})},
	{name: "structured output", body: with("structured output", object{"response_format": object{"type": "json_object"}})},
	{name: "echoed chat", body: brief("echoed chat", object{"echo": true}), uncached: true},
	{name: "logprobs", body: with("logprobs", object{"logprobs": true, "top_logprobs": 2})},
	{name: "prompt logprobs", body: brief("prompt logprobs", object{"prompt_logprobs": 1}), uncached: true},
	{name: "stream with usage", body: with("stream with usage", object{"stream": true, "stream_options": object{"include_usage": true}})},
	{name: "stream without usage", body: with("stream without usage", object{"stream": true}), byMetrics: true},
	{name: "text", body: func(id string, turn int) request { return completion("text", prompt(id, turn)) }},
	{name: "text without special tokens", body: func(id string, turn int) request {
		return completion("text without special tokens", prompt(id, turn)).with(object{"add_special_tokens": false})
	}},
	{name: "truncated text", truncated: true, body: func(id string, turn int) request {
		return completion("truncated text", prompt(id, turn)).with(object{"truncate_prompt_tokens": "150"})
	}},
	{name: "echoed text", body: func(id string, turn int) request {
		return completion("echoed text", prompt(id, turn)).with(object{"echo": true})
	}},
	{name: "echoed text with logprobs", uncached: true, body: func(id string, turn int) request {
		return completion("echoed text with logprobs", text(id, 50+20*turn)).with(object{"echo": true, "logprobs": 1})
	}},
	{name: "streamed text", body: func(id string, turn int) request {
		return completion("streamed text", prompt(id, turn)).with(object{"stream": true, "stream_options": object{"include_usage": true}})
	}},
	{name: "ids", body: func(id string, turn int) request { return completion("ids", ids(family(id), 300+turn*90)) }},
	{name: "list of texts", byMetrics: true, body: func(id string, turn int) request {
		return completion("list of texts", []string{prompt(id, turn), prompt("d"+id, turn)})
	}},
	{name: "list of ids", byMetrics: true, body: func(id string, turn int) request {
		return completion("list of ids", [][]int{ids(family(id), 300+turn*90), ids(family(id)+1, 250+turn*90)})
	}},
	{name: "responses with a text", since: "0.10", rendered: "0.30", converted: "0.27", body: func(id string, turn int) request {
		return request{shape: "responses with a text", path: "/v1/responses", body: object{"model": "m", "input": prompt(id, turn), "max_output_tokens": 2, "store": false}}
	}},
	{name: "responses with messages", since: "0.10", rendered: "0.30", converted: "0.27", body: func(id string, turn int) request {
		return request{shape: "responses with messages", path: "/v1/responses", body: object{"model": "m", "instructions": "Be brief.", "max_output_tokens": 2, "store": false,
			"input": conversation(id, turn)[1:2], "metadata": object{}}}.with(object{"input": append([]object{say("user", text(id, 200))}, conversation(id, turn)[2:]...)})
	}},
	{name: "messages", since: "0.17", rendered: "0.29", converted: "0.24", body: func(id string, turn int) request {
		return request{shape: "messages", path: "/v1/messages", body: object{"model": "m", "max_tokens": 2, "system": text(id, 200), "messages": conversation(id, turn)[1:]}}
	}},
	{name: "messages with tools", since: "0.17", rendered: "0.29", converted: "0.27", body: messagesWithTools},
	{name: "responses with tools", since: "0.17", rendered: "0.30", converted: "0.27", body: responsesWithTools},
}

// messagesWithTools is a conversation of the Messages API as agents have it.
func messagesWithTools(id string, turn int) request {
	messages := []object{say("user", []object{part("What is it about? " + id)}),
		{"role": "assistant", "content": []object{part("I look."), {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": object{"place": "Köln", "days": 2}}}},
		{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": "toolu_1", "content": []object{part(text("c"+id, 60)), part("light rain")}}, part("Well?")}}}
	if turn > 0 {
		messages = append(messages, say("assistant", []object{part("About 9 °C.")}), say("user", []object{part("And on"), part("Sunday?")}))
	}
	f := weather[0]["function"].(object)
	return request{shape: "messages with tools", path: "/v1/messages", body: object{"model": "m", "max_tokens": 2, "messages": messages,
		"cache_salt": "tenant-a", "system": []object{part("x-anthropic-billing-header: " + id), {"type": "text", "text": text(id, 200), "cache_control": object{"type": "ephemeral"}}},
		"tools": []object{{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}}}}
}

// responsesWithTools is a conversation of the Responses API as agents have it.
func responsesWithTools(id string, turn int) request {
	input := []object{{"type": "message", "role": "user", "content": []object{{"type": "input_text", "text": text(id, 200)}}},
		{"type": "reasoning", "id": "rs_1", "summary": []object{}, "content": []object{{"type": "reasoning_text", "text": "I look."}}},
		{"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": `{"place": "Köln", "days": 2}`},
		{"type": "function_call_output", "call_id": "call_1", "output": text("c"+id, 60)}}
	if turn > 0 {
		input = append(input, object{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
			"content": []object{{"type": "output_text", "text": "About 9 °C.", "annotations": []object{}}}}, say("user", "And on Sunday?"))
	}
	f := weather[0]["function"].(object)
	return request{shape: "responses with tools", path: "/v1/responses", body: object{"model": "m", "max_output_tokens": 2, "store": false,
		"instructions": "Be brief.", "input": input, "tools": []object{{"type": "function", "name": f["name"], "description": f["description"],
			"parameters": f["parameters"]}}}}
}

// family gives prompts of ids a number of their own.
func family(name string) int {
	n := uint32(0)
	for _, c := range name {
		n = n*31 + uint32(c)
	}
	return int(n%100_000) * 2
}

// TestRequestShapes sends each shape of request three times: new, again, and a turn longer. Each answer finds in the
// cache what was predicted, the second and third find something, and in the end the index is the engines'. Each engine gets the
// requests of one configuration, at the same time as the other.
func TestRequestShapes(t *testing.T) {
	engines := sharedEngines(t)
	pass(t)
	var pickers []*picker
	for i, c := range configurations {
		pickers = append(pickers, startPicker(t, engines[i:i+1], pickerConfig{files: c.files}))
	}
	for i, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := pickers[i]
			for _, s := range shapes {
				t.Run(s.name, func(t *testing.T) {
					if s.since != "" && !atLeast(s.since) {
						t.Skipf("vLLM %s takes no such request", run.release)
					}
					reason, _ := known(t.Name())
					p.uncounted = reason != ""
					switch {
					case s.whole && !c.files:
						s.rendered = "0.15"
					case c.files:
						s.rendered = s.converted
					}
					verdict(t, p.judgeShape(s, c.name))
				})
			}
		})
	}
}

func (p *picker) judgeShape(s shape, id string) error {
	id = s.name + " " + id
	if s.rendered != "" && !atLeast(s.rendered) {
		p.uncounted = true
		if a := p.sendShape(s, s.body(id, 0)); a.status != http.StatusOK || !strings.HasPrefix(a.tokens, "approximate") && !strings.HasPrefix(a.tokens, "none") {
			return fmt.Errorf("status %d, tokens %q, where no route tells the ids", a.status, a.tokens)
		}
		return nil
	}
	pod := "" // that has the conversation so far
	for i, turn := range []int{0, 0, 1} {
		a := p.sendShape(s, s.body(id, turn))
		if err := a.exact(); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		if own := p.config.files && atLeast("0.29"); strings.HasPrefix(a.tokens, "approximate") || own && a.tokens == "engine" {
			return fmt.Errorf("request %d: tokens are %q", i, a.tokens)
		}
		if s.uncached && a.delivered > 0 || !s.uncached && a.delivered == 0 && a.pod == pod && (i == 1 || !s.truncated) {
			return fmt.Errorf("request %d: %d tokens delivered of %d", i, a.delivered, a.promptEngine)
		}
		pod = a.pod
		if err := p.settled(p.engines); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return nil
}

// sendShape sends a request and learns what it found from its usage or, alone on the engines, from their counters.
func (p *picker) sendShape(s shape, r request) answer {
	if !s.byMetrics {
		return p.send(r)
	}
	found := func() (hits, queries float64) {
		for _, e := range p.engines {
			hits += e.metric("vllm:prefix_cache_hits_total")
			queries += e.metric("vllm:prefix_cache_queries_total")
		}
		return hits, queries
	}
	hits, queries := found()
	a := post(p.t.Context(), p.proxy, r)
	if a.status != http.StatusOK {
		return a
	}
	_ = within(patience, func() error {
		now, asked := found()
		a.delivered, a.promptEngine = int(now-hits), int(asked-queries)
		if asked == queries {
			return fmt.Errorf("the counters have not moved")
		}
		return nil
	})
	p.count(a)
	return a
}
