package real

import (
	"fmt"
	"strings"
	"testing"
)

// agents are conversations of agents: each turn has one or two calls of tools, and their results.
var agents = []struct {
	name string
	body func(id string, turns int) request
	// since is the first release whose prompts of them the picker makes.
	since string
}{
	{"chats with tools", func(id string, turns int) request {
		messages := conversation(id, 0)
		for i := range turns {
			call := object{"id": fmt.Sprint("call_", i), "type": "function", "function": object{"name": "get_weather", "arguments": fmt.Sprintf(`{"days": %d}`, i)}}
			messages = append(messages, object{"role": "assistant", "content": nil, "reasoning": "I look.", "tool_calls": []object{call}},
				object{"role": "tool", "tool_call_id": fmt.Sprint("call_", i), "content": text(fmt.Sprint("r", i, id), 40)})
		}
		return chat("chats with tools", messages...).with(object{"tools": weather})
	}, ""},
	{"messages of agents", messagesOfAgents, "0.24"},
	{"messages of agents with a template argument", func(id string, turns int) request {
		return messagesOfAgents(id, turns).with(object{"chat_template_kwargs": object{"note": []any{"Köln", 1.5, nil}}, "output_config": object{"effort": "low"}})
	}, "0.24"},
	{"messages of agents in a namespace of the cache", func(id string, turns int) request {
		return messagesOfAgents(id, turns).with(object{"cache_salt": "tenant-a"})
	}, "0.27"},
	{"responses of agents", responsesOfAgents, "0.27"},
	{"responses of agents with an effort", func(id string, turns int) request {
		return responsesOfAgents(id, turns).with(object{"reasoning": object{"effort": "low"}, "tool_choice": "none"})
	}, "0.27"},
}

// messagesOfAgents are requests as coding agents send them to the Messages API.
func messagesOfAgents(id string, turns int) request {
	messages := []object{say("user", []object{part(text(id, 150)), part("Well?")})}
	for i := range turns {
		one, two := fmt.Sprint("toolu_a", i), fmt.Sprint("toolu_b", i)
		messages = append(messages, object{"role": "assistant", "content": []object{{"type": "thinking", "thinking": "I look.", "signature": "x"}, part("Let me see."),
			{"type": "tool_use", "id": one, "name": "get_weather", "input": object{"place": "Köln", "in": []any{i, 2.5, nil, object{}}}},
			{"type": "tool_use", "id": two, "name": "get_weather", "input": object{}}}},
			object{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": one, "content": []object{part(text(fmt.Sprint("r", i, id), 40)), part("rain")}},
				{"type": "tool_result", "tool_use_id": two, "is_error": true, "content": "none"}, part("Go on.")}})
	}
	f := weather[0]["function"].(object)
	return request{shape: "messages of agents", path: "/v1/messages", body: object{"model": "m", "max_tokens": 2, "messages": messages,
		"system": []object{part("x-anthropic-billing-header: " + strings.Repeat("z", turns)), {"type": "text", "text": "You help.", "cache_control": object{"type": "ephemeral"}}},
		"tools":  []object{{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}}}}
}

// responsesOfAgents are requests as coding agents send them to the Responses API, with the whole conversation in each.
func responsesOfAgents(id string, turns int) request {
	input := []object{say("developer", "Be brief."), {"type": "message", "role": "user", "content": []object{{"type": "input_text", "text": text(id, 150)}}}}
	for i := range turns {
		one, two := fmt.Sprint("call_a", i), fmt.Sprint("call_b", i)
		input = append(input, object{"type": "reasoning", "id": fmt.Sprint("rs_", i), "summary": []object{{"type": "summary_text", "text": "I look."}}},
			object{"type": "message", "role": "assistant", "id": fmt.Sprint("msg_", i), "status": "completed", "content": []object{{"type": "output_text", "text": "Let me see.", "annotations": []object{}}}},
			object{"type": "function_call", "call_id": one, "name": "get_weather", "arguments": fmt.Sprintf(`{"days": %d, "place": "K\u00f6ln"}`, i)},
			object{"type": "function_call", "call_id": two, "name": "get_weather", "arguments": `{}`},
			object{"type": "function_call_output", "call_id": one, "output": text(fmt.Sprint("r", i, id), 40)},
			object{"type": "function_call_output", "call_id": two, "output": "none"}, say("user", "Go on."))
	}
	f := weather[0]["function"].(object)
	return request{shape: "responses of agents", path: "/v1/responses", body: object{"model": "m", "max_output_tokens": 2, "store": false, "instructions": "You help.",
		"input": input, "tools": []object{{"type": "function", "name": f["name"], "description": f["description"], "parameters": f["parameters"], "strict": false}}}}
}

// TestAgentsAreExactWithoutRenderRoutes: an engine without open render routes proves the prompts of all three APIs by the requests
// that it serves. Conversations of agents are then predicted to the token, made in process. The template prints all that it gets, so
// that no field can be read otherwise than by the engine.
func TestAgentsAreExactWithoutRenderRoutes(t *testing.T) {
	need(t)
	if !atLeast("0.20") {
		t.Skipf("vLLM %s has not all three APIs", run.release)
	}
	engines := startEngines(t, printsText)
	p := startPicker(t, engines, pickerConfig{files: true, partly: true})
	p.until("tokens are exact", p.ready)
	for _, agent := range agents {
		t.Run(agent.name, func(t *testing.T) {
			if !atLeast(agent.since) {
				t.Skipf("the picker does not make these prompts as vLLM %s does", run.release)
			}
			for turns := range 4 {
				a := p.send(agent.body(agent.name, turns))
				switch {
				case a.tokens != "exact":
					verdict(t, fmt.Errorf("turn %d: tokens are %q", turns, a.tokens))
				case turns > 0 && a.delivered < blockTokens:
					verdict(t, fmt.Errorf("turn %d: %d of %d tokens were found again", turns, a.delivered, a.promptPicker))
				}
				verdict(t, a.exact())
				verdict(t, p.settled(engines))
			}
		})
	}
	if unproven := p.metric("kvasir_tokens_unproven"); unproven > 0 {
		verdict(t, fmt.Errorf("%v kinds of requests are not proven", unproven))
	}
}
