package tokencheck

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Case is one request of the probe. Its texts are fixed, so that they can be shown.
type Case struct {
	// Name describes the case.
	Name  string
	Route openai.Route
	// Body of the request.
	Body []byte
}

// texts are what tokenizers differ in.
var texts = []struct{ name, text string }{
	{"an empty text", ""},
	{"one letter", "a"},
	{"English", "The quick brown fox jumps over the lazy dog; it isn't the first time, and they'll say it won't be the LAST."},
	{"contractions in capitals", "I'M sure YOU'LL see that WE'VE got what THEY'D want. It's o'clock."},
	{"Go", "func main() {\n\tfor i := 0; i < 10; i++ {\n\t\tfmt.Printf(\"%d\\n\", i*i)\n\t}\n}\n"},
	{"Python", "def f(x: int = 3) -> list[str]:\n    \"\"\"Doc.\"\"\"\n    return [f\"{x!r:>10}\" for _ in range(x)]  # done\n\n" +
		"\nclass A: ...\n"},
	{"JSON", `{"a": [1, 2.50, -3e10, null, true], "b": {"c\u00e9": "\"quoted\"\\"}}`},
	{"numbers", "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F 2026-11-20T12:34:56Z 50%"},
	{"German", "Größe, Straße und Übermut: Fußgängerübergänge in Österreich kosten 1.234,56 €."},
	{"French", "L’été dernier, j’ai mangé des crêpes à l’œuf près de Nîmes ; c’était « délicieux » !"},
	{"Russian", "Съешь же ещё этих мягких французских булок, да выпей чаю."},
	{"Chinese", "今天天气很好，我们一起去公园散步吧。数字１２３，全角字母ＡＢＣ。"},
	{"Japanese", "吾輩は猫である。名前はまだ無い。カタカナとひらがな、ー長音。"},
	{"Korean", "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다."},
	{"Arabic and Hebrew", "مرحبا بالعالم، كيف حالك اليوم؟ שלום עולם, מה שלומך היום?"},
	{"Hindi and Thai", "नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก สบายดีไหม"},
	{"emoji", "Hi 👋🏽! Family: 👨‍👩‍👧‍👦, flag: 🇩🇪🏴‍☠️, hearts ❤️🧡💛 and 🤷‍♀️."},
	{"marks that combine", "e\u0301 a\u030a \u1e9b\u0323 o\u0308\u0304 cafe\u0301 \uac00 \u1100\u1161 \u212b"},
	{"odd characters", "zero\u200bwidth\u00a0nbsp\ufeffbom \u2028line\u2029para \u0085 soft\u00adhyphen \ufffd tab\tbell\a"},
	{"long white space", "a" + strings.Repeat(" ", 70) + "b" + strings.Repeat("\n", 9) + "c\t\t\t\t d \n \n  \n   e" + strings.Repeat(" \t",
		12)},
	{"white space around", "  \n\t leading and trailing \t\n  "},
	{"Windows lines", "one\r\ntwo\r\n\r\nthree\rfour\n\rfive"},
	{"what looks like special tokens", "<s> </s> <unk> <pad> <|im_start|>user\nhi<|im_end|> <|endoftext|> [INST] [/INST] <|begin_of_text|><|eot_id|> <bos><start_of_turn>"},
	{"halves of special tokens", "<|im_ start|> <| im_end |> <|endoftext <|end|of|text|> < s > [INST [/INST"},
	{"punctuation", "...!!!???---___===***###~~~``` (a) [b] {c} <d> \"e\" 'f' a/b\\c a::b a->b a=>b @c #d $e %f ^g &h"},
	{"a long word", strings.Repeat("abcdefghij", 30) + strings.Repeat("Z", 100) + strings.Repeat("ha", 50)},
	{"paragraphs", strings.Repeat("A paragraph that goes on for a while, as paragraphs do.\n\nAnd then another one, with a list:\n- one\n- two\n  - three\n", 6)},
}

type message map[string]any

func say(role, content string) message { return message{"role": role, "content": content} }

var weather = map[string]any{"type": "function", "function": map[string]any{
	"name": "get_weather", "description": "The weather at a place: \"now\", or a <day> in the week’s course.",
	"parameters": json.RawMessage(`{"type":"object","properties":{"place":{"type":"string","description":"Ort, e.g. Köln"},"days":{"type":"integer","default":1,"minimum":0},"unit":{"enum":["°C","°F"]}},"required":["place"]}`),
}}

var search = map[string]any{"type": "function", "function": map[string]any{
	"name": "search", "parameters": json.RawMessage(`{"properties":{"q":{"type":"string"},"n":{"type":["integer","null"]}},"type":"object","additionalProperties":false}`),
}}

func called(content any) message {
	m := calledWith(`{"place": "Köln", "days": 2}`)
	m["content"] = content
	return m
}

func calledWith(arguments string) message {
	return message{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
		"id": "call_123456789", "type": "function", "function": map[string]any{"name": "get_weather", "arguments": arguments},
	}}}
}

func result(text string) message {
	return message{"role": "tool", "tool_call_id": "call_123456789", "content": text}
}

// namedChat is a request body that asks for a chat.
type namedChat struct {
	name string
	body map[string]any
}

// chats are conversations that show the differences between templates and their preprocessing.
func chats() []namedChat {
	long := []message{say("user", "Let us count.")}
	for i := range 12 {
		long = append(long, say("assistant", fmt.Sprintf("Number %d.\n\n", i)), say("user", fmt.Sprintf(" And then? (%d)", i)))
	}
	kwargs := with(say("user", "Think about it."))
	kwargs["chat_template_kwargs"] = map[string]any{"enable_thinking": false}
	unprompted := with(say("user", "No prompt behind this."))
	unprompted["add_generation_prompt"] = false
	unused := tools(say("user", "Just talk."))
	unused["tool_choice"] = "none"
	special := with(say("user", "Specials around."))
	special["add_special_tokens"] = true
	effort := with(say("user", "Think a little."))
	effort["reasoning_effort"] = "low"
	documents := with(say("user", "What do they say?"))
	documents["documents"] = []any{map[string]any{"title": "One", "text": "A text."}, map[string]any{"title": "Two", "text": "Ein Text."}}
	resumed := with(say("user", "Count."), say("assistant", "One, two"))
	resumed["add_generation_prompt"], resumed["continue_final_message"] = false, true
	all := []namedChat{
		{"one message", with(say("user", "Hello."))},
		{"an empty message", with(say("user", ""))},
		{"white space around a message", with(say("user", "\n  Hello \t\n"))},
		{"code in a message", with(say("user", texts[4].text))},
		{"Chinese in a message", with(say("user", texts[11].text))},
		{"emoji in a message", with(say("user", texts[16].text))},
		{"special tokens in a message", with(say("user", texts[22].text))},
		{"a template in a message", with(say("user", "{{ messages }} {% for x in y %} {# no #}"))},
		{"a system prompt", with(say("system", "You are brief."), say("user", "Hello."))},
		{"an empty system prompt", with(say("system", ""), say("user", "Hello."))},
		{"three turns", with(say("user", "Hi."), say("assistant", "Hello!"), say("user", "How are you?"))},
		{"a system prompt and turns", with(say("system", "Sei kurz.\n"), say("user", "Hi."), say("assistant", "Hallo!\n\n"),
			say("user", "Wie geht's?"))},
		{"many turns", with(long...)},
		{"two users in a row", with(say("user", "One."), say("user", "Two."))},
		{"an assistant at the end", with(say("user", "One."), say("assistant", "Two"))},
		{"thoughts in an answer", with(say("user", "One."), say("assistant", "<think>\nLet me see.\n</think>\n\nTwo."), say("user", "Three."))},
		{"content in parts", with(message{"role": "user", "content": parts("One part,", "another part.")})},
		{"parts and turns", with(message{"role": "system", "content": parts("Be kind.")}, message{"role": "user", "content": parts("Hi.")},
			say("assistant", "Hello."), message{"role": "user", "content": parts("A", "", " B")})},
		{"tools", tools(say("user", "What is the weather in Köln?"))},
		{"tools and a system prompt", tools(say("system", "Use tools."), say("user", "What is the weather?"))},
		{"tools that must not be used", unused},
		{"a tool call", tools(say("user", "The weather in Köln?"), called(nil), result(`{"t": 7, "sky": "grey"}`))},
		{"a tool call with text", tools(say("user", "The weather?"), called("I look."), result("7°C\n"), say("assistant", "It is 7°C."),
			say("user", "Thanks."))},
		{"a tool call without tools", with(say("user", "The weather?"), called(""), result("grey"), say("user", "And tomorrow?"))},
		{"arguments of the template", kwargs},
		{"no prompt for an answer", unprompted},
		{"special tokens asked for", special},
		{"an effort", effort},
		{"documents", documents},
		{"a message to be continued", resumed},
	}
	return append(all, chatsThatReleasesReadInTheirOwnWay()...)
}

func with(messages ...message) map[string]any { return map[string]any{"messages": messages} }

func tools(messages ...message) map[string]any {
	return map[string]any{"messages": messages, "tools": []any{weather, search}}
}

func parts(texts ...string) (out []any) {
	for _, t := range texts {
		out = append(out, map[string]any{"type": "text", "text": t})
	}
	return out
}

// thought is an answer with its reasoning in a field.
func thought(field string) message {
	return message{"role": "assistant", "content": "Two.", field: "Let me see."}
}

// chatsThatReleasesReadInTheirOwnWay have roles, fields or calls that not every release of vLLM renders alike.
func chatsThatReleasesReadInTheirOwnWay() []namedChat {
	cached := message{"role": "user", "content": []any{map[string]any{"type": "text", "text": "Keep this.",
		"cache_control": map[string]any{"type": "ephemeral"}}}}
	return []namedChat{
		{"two system prompts", with(say("system", "One."), say("system", "Two."), say("user", "Hello."))},
		{"a system prompt at the end", with(say("user", "Hello."), say("assistant", "Hello!"), say("system", "Be brief."),
			say("user", "How are you?"))},
		{"a name", with(message{"role": "user", "name": "alice", "content": "It is me."})},
		{"no content", with(say("user", "One."), message{"role": "assistant", "content": nil}, say("user", "Two."))},
		{"a part with a field of its own", with(cached, say("assistant", "Kept."), say("user", "Thanks."))},
		{"a developer", with(say("developer", "You are brief."), say("user", "Hello."))},
		{"a developer in parts", with(message{"role": "developer", "content": parts("Be kind.", "Be brief.")}, say("user", "Hello."))},
		{"a developer behind a system prompt", with(say("system", "You help."), say("developer", "You are brief."), say("user", "Hello."))},
		{"a developer amid turns", with(say("user", "Hi."), say("assistant", "Hello!"), say("developer", "Now be brief."),
			say("user", "How are you?"))},
		{"a developer with tools", tools(say("developer", "Use tools."), say("user", "The weather?"), called(nil), result("grey"))},
		{"reasoning in an answer", with(say("user", "One."), thought("reasoning"), say("user", "Three."))},
		{"reasoning_content in an answer", with(say("user", "One."), thought("reasoning_content"), say("user", "Three."))},
		{"reasoning before a call", tools(say("user", "The weather?"), message{"role": "assistant", "content": nil, "reasoning": "I look.",
			"tool_calls": called(nil)["tool_calls"]}, result("grey"))},
		{"a call with a list", tools(say("user", "The weather?"), calledWith(`["Köln"]`), result("grey"))},
		{"a call without arguments", tools(say("user", "The weather?"), calledWith(``), result("grey"))},
		{"a call with broken arguments", tools(say("user", "The weather?"), calledWith(`{"place": "Kö`), result("an error"))},
		{"a result in parts", tools(say("user", "The weather?"), called(nil),
			message{"role": "tool", "tool_call_id": "call_123456789", "content": parts("grey", "7°C")})},
	}
}

// Cases are the questions of the probe, for a model's name: always the same, about a hundred. Each is for one token, and asks
// for the ids of its prompt in the answer, so that it can be served (see render.Client.Proof). Every kind of chat has some,
// so that a rule of the engine's release that is not known here is found, and only that kind is not trusted.
func Cases(model string) []Case {
	var cases []Case
	add := func(name string, route openai.Route, body map[string]any) {
		body["model"] = model
		switch route {
		case openai.Responses:
			body["max_output_tokens"], body["enable_response_messages"] = 1, true
		case openai.Messages:
			body["max_tokens"] = 1
		default:
			body["max_tokens"], body["return_token_ids"] = 1, true
		}
		var b strings.Builder
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(body); err != nil {
			panic(err) // impossible: all of them are constants
		}
		cases = append(cases, Case{Name: name, Route: route, Body: []byte(b.String())})
	}
	for _, t := range texts {
		add(t.name, openai.Completions, map[string]any{"prompt": t.text})
	}
	add("without special tokens", openai.Completions, map[string]any{"prompt": texts[2].text, "add_special_tokens": false})
	for _, c := range chats() {
		add(c.name, openai.ChatCompletions, c.body)
	}
	for _, c := range messagesCases() {
		add("messages: "+c.name, openai.Messages, c.body)
	}
	for _, c := range responsesCases() {
		add("responses: "+c.name, openai.Responses, c.body)
	}
	return cases
}
