package judge

import (
	"fmt"
	"strings"
)

// Engines under judgement are started with these settings: what a transcript holds depends on them.
const (
	// Model is the served name and Key the API key.
	Model = "m"
	Key   = "judge-key"
	// MaxModelLen is the context length, Blocks the number of blocks and BlockSize the tokens in each.
	MaxModelLen = 1024
	Blocks      = 64
	BlockSize   = 32
	// maxSeqs bounds the requests inside an engine with options.
	maxSeqs = 2
)

// request is one case over HTTP.
type request struct {
	name         string
	method, path string // POST if empty
	body         string
	headers      []string // pairs; an empty value removes the header
	// ids: lists of ids in the answer are those of the prompt and must be equal.
	ids bool
}

func post(path, name, body string) request {
	return request{name: strings.TrimPrefix(path, "/v1") + " " + name, method: "POST", path: path, body: body}
}

// with fills in what every good request has; fields are the rest of the object.
func with(fields string) string {
	return `{"model": "m", "temperature": 0, "ignore_eos": true, "max_tokens": 3, ` + fields + `}`
}

const hello = `"messages": [{"role": "user", "content": "Say hello to the judge."}]`

// ids is a JSON list of n token ids.
func ids(n int) string {
	const first = 2000
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(first + i)
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// requests are the cases over HTTP, in the order in which they are sent.
func requests() []request {
	var out []request
	for _, list := range [][]request{completions(), chats(), wrongRequests(), renderings(), others()} {
		out = append(out, list...)
	}
	return out
}

func completions() []request {
	const path = "/v1/completions"
	prompt := func(name, fields string) request { return post(path, name, with(fields)) }
	return []request{
		prompt("of ids", `"prompt": `+ids(70)),
		prompt("of the same ids", `"prompt": `+ids(70)),
		prompt("of text", `"prompt": "Say hello to the judge."`),
		prompt("of a list of texts", `"prompt": ["one", "two words"]`),
		prompt("of a list of ids", `"prompt": [[5, 6, 7], [8, 9]]`),
		prompt("streamed", `"prompt": [5, 6, 7], "stream": true, "max_tokens": 20`),
		prompt("streamed with usage", `"prompt": [5, 6, 7], "stream": true, "max_tokens": 20, "stream_options": {"include_usage": true}`),
		prompt("streamed with continuous usage",
			`"prompt": [5, 6, 7], "stream": true, "max_tokens": 20, "stream_options": {"include_usage": true, "continuous_usage_stats": true}`),
		prompt("streamed with ids", `"prompt": [5, 6, 7], "stream": true, "max_tokens": 20, "return_token_ids": true`),
		prompt("with ids returned", `"prompt": [5, 6, 7], "return_token_ids": true`),
		prompt("with a request id", `"prompt": [5, 6, 7], "request_id": "mine"`),
		prompt("with two choices", `"prompt": [5, 6, 7], "n": 2, "temperature": 1`),
		prompt("with two greedy choices", `"prompt": [5, 6, 7], "n": 2`),
		prompt("with log probabilities", `"prompt": [5, 6, 7], "logprobs": 1`),
		prompt("with echo", `"prompt": [5, 6, 7], "echo": true`),
		prompt("with a salt", `"prompt": [5, 6, 7], "cache_salt": "s"`),
		prompt("with a priority", `"prompt": [5, 6, 7], "priority": 3`),
		prompt("with unknown fields", `"prompt": [5, 6, 7], "unheard_of": 1`),
		prompt("of shortened ids", `"prompt": [5, 6, 7], "truncate_prompt_tokens": 2`),
		post(path, "without a maximum", `{"model": "m", "ignore_eos": true, "prompt": [5, 6, 7]}`),
		post(path, "without a model", `{"ignore_eos": true, "max_tokens": 3, "prompt": [5, 6, 7]}`),
		post(path, "with an empty model", `{"model": "", "ignore_eos": true, "max_tokens": 3, "prompt": [5, 6, 7]}`),
	}
}

func chats() []request {
	const path = "/v1/chat/completions"
	const tool = `"tools": [{"type": "function", "function": {"name": "look", "description": "Looks.",
		"parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]`
	chat := func(name, fields string) request { return post(path, name, with(fields)) }
	return []request{
		chat("plain", hello),
		chat("with parts", `"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]`),
		chat("with turns", `"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
			{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Again"}]`),
		chat("of a developer", `"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]`),
		chat("with a tool that is not chosen", tool+`, "tool_choice": "none", `+hello),
		chat("with a tool result", tool+`, "tool_choice": "none", "messages": [{"role": "user", "content": "Look"}, {"role": "assistant",
			"content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"it\"}"}}]},
			{"role": "tool", "tool_call_id": "c1", "content": "seen"}]`),
		chat("streamed", `"stream": true, "max_tokens": 20, `+hello),
		chat("streamed with usage", `"stream": true, "max_tokens": 20, "stream_options": {"include_usage": true}, `+hello),
		chat("streamed with ids", `"stream": true, "max_tokens": 20, "return_token_ids": true, `+hello),
		chat("with ids returned", `"return_token_ids": true, `+hello),
		chat("with two choices", `"n": 2, "temperature": 1, `+hello),
		chat("with log probabilities", `"logprobs": true, "top_logprobs": 1, `+hello),
		chat("with max_completion_tokens", `"max_completion_tokens": 2, `+hello),
		chat("continued", `"continue_final_message": true, "add_generation_prompt": false,
			"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, I"}]`),
		chat("continued and begun", `"continue_final_message": true, `+hello),
		chat("without content", `"messages": [{"role": "user"}]`),
		chat("of an unknown role", `"messages": [{"role": "judge", "content": "Hi"}]`),
		chat("with an image", `"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]`),
		chat("with an unknown part", `"messages": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]`),
	}
}

func wrongRequests() []request {
	const text, chat = "/v1/completions", "/v1/chat/completions"
	wrong := func(path, name, fields string) request { return post(path, name, with(fields)) }
	out := []request{
		wrong(text, "of a wrong model", `"model": "huge", "prompt": [5]`),
		wrong(text, "without a prompt", `"n": 1`),
		wrong(text, "of an empty text", `"prompt": ""`),
		wrong(text, "of an empty list", `"prompt": []`),
		wrong(text, "of a number", `"prompt": 5`),
		wrong(text, "of an object", `"prompt": {}`),
		wrong(text, "of a negative id", `"prompt": [-5]`),
		wrong(text, "of an id outside the vocabulary", `"prompt": [9000000]`),
		wrong(text, "of a mixed list", `"prompt": [5, "five"]`),
		wrong(text, "that is too long", `"prompt": `+ids(MaxModelLen+1)),
		wrong(text, "that is exactly too long", `"prompt": `+ids(MaxModelLen)),
		wrong(text, "that asks for too much", `"prompt": [5], "max_tokens": 1024`),
		wrong(text, "of a choice of none", `"prompt": [5], "n": 0`),
		wrong(text, "without tokens", `"prompt": [5], "max_tokens": 0`),
		wrong(text, "of a wrong type", `"prompt": [5], "max_tokens": "many"`),
		wrong(text, "of a number as text", `"prompt": [5], "max_tokens": "2"`),
		wrong(text, "of a wrong stream", `"prompt": [5], "stream": "perhaps"`),
		wrong(text, "of a wrong temperature", `"prompt": [5], "temperature": -1`),
		wrong(text, "with an empty salt", `"prompt": [5], "cache_salt": ""`),
		wrong(text, "with options of no stream", `"prompt": [5], "stream_options": {"include_usage": true}`),
		wrong(chat, "of a wrong model", `"model": "huge", `+hello),
		wrong(chat, "without messages", `"n": 1`),
		wrong(chat, "of no messages", `"messages": []`),
		wrong(chat, "of text for messages", `"messages": "hello"`),
		wrong(chat, "of a wrong type", `"max_tokens": "many", `+hello),
		wrong(chat, "with an empty salt", `"cache_salt": "", `+hello),
		wrong(chat, "with options of no stream", `"stream_options": {"include_usage": true}, `+hello),
		wrong(chat, "that asks for too much", `"max_tokens": 1024, `+hello),
		wrong(chat, "that is too long", `"messages": [{"role": "user", "content": "`+strings.Repeat("word ", MaxModelLen+1)+`"}]`),
	}
	for _, path := range []string{text, chat} {
		out = append(out, post(path, "of no JSON", `{"model": `), post(path, "of a list", `[]`), post(path, "of nothing", ``))
	}
	return out
}

func renderings() []request {
	equal := func(path, name, body string) request {
		r := post(path, name, body)
		r.ids = true
		return r
	}
	out := []request{
		equal("/tokenize", "text", `{"model": "m", "prompt": "Say hello to the judge."}`),
		equal("/tokenize", "text with its tokens", `{"prompt": "Say hello", "return_token_strs": true}`),
		equal("/tokenize", "a wrong model", `{"model": "huge", "prompt": "Say"}`),
		equal("/tokenize", "nothing", `{}`),
		equal("/detokenize", "ids", `{"model": "m", "tokens": [5, 6, 7]}`),
		equal("/detokenize", "nothing", `{}`),
		equal("/v1/completions/render", "ids", with(`"prompt": [5, 6, 7]`)),
		equal("/v1/completions/render", "texts", with(`"prompt": ["one", "two words"]`)),
		equal("/v1/completions/render", "a wrong model", with(`"model": "huge", "prompt": [5]`)),
		equal("/inference/v1/generate", "ids", `{"model": "m", "token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 2, "ignore_eos": true}}`),
	}
	for _, r := range chats() {
		if !strings.Contains(r.body, `"stream": true`) {
			name := strings.TrimPrefix(r.name, "/chat/completions ")
			out = append(out, equal("/v1/chat/completions/render", name, r.body))
			out = append(out, equal("/tokenize", "the chat "+name, r.body))
		}
	}
	return out
}

func others() []request {
	get := func(path string) request { return request{name: "GET " + path, method: "GET", path: path} }
	keyless := func(r request, name string, key ...string) request {
		r.name, r.headers = r.name+" "+name, append([]string{"Authorization"}, append(key, "")[0])
		return r
	}
	out := []request{
		get("/health"), get("/ping"), post("/ping", "", ""), get("/version"), get("/load"), get("/v1/models"), get("/v1/models/m"),
		get("/v1/models/huge"), get("/kv_event_sources"), get("/is_sleeping"), get("/nowhere"), get("/v1/nowhere"), get("/v1/completions"), get("/tokenize"),
		{name: "PUT /v1/chat/completions", method: "PUT", path: "/v1/chat/completions", body: "{}"},
		{name: "HEAD /health", method: "HEAD", path: "/health"},
		{name: "OPTIONS /v1/completions", method: "OPTIONS", path: "/v1/completions"},
		keyless(get("/health"), "without a key"), keyless(get("/metrics"), "without a key"), keyless(get("/version"), "without a key"),
		keyless(get("/v1/models"), "without a key"), keyless(get("/v1/models"), "with a wrong key", "Bearer wrong"),
		keyless(get("/v1/models"), "with a key of another kind", "Basic "+Key), keyless(get("/v1/nowhere"), "without a key"),
		keyless(get("/kv_event_sources"), "without a key"),
		keyless(post("/v1/completions", "", with(`"prompt": [5]`)), "without a key"),
		keyless(post("/tokenize", "", `{"prompt": "Say hello"}`), "without a key"),
		keyless(post("/inference/v1/generate", "", `{}`), "without a key"),
	}
	plain := post("/v1/completions", "as plain text", with(`"prompt": [5, 6, 7]`))
	plain.headers = []string{"Content-Type", "text/plain"}
	named := post("/v1/completions", "with the header X-Request-Id", with(`"prompt": [5, 6, 7]`))
	named.headers = []string{"X-Request-Id", "mine"}
	loaded := post("/v1/completions", "that asks for the load", with(`"prompt": [5, 6, 7]`))
	loaded.headers = []string{"endpoint-load-metrics-format", "text"}
	return append(out, plain, named, loaded)
}
