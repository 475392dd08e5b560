package judge

import (
	"fmt"
	"net/http"
	"strings"
)

// The requests of the variants whose engines answer other APIs than chats and completions: Messages and Responses, and the
// pooling routes of a model that generates nothing.

// lookTool is a tool with a parameter, described as each API describes it.
const (
	lookSchema        = `{"type": "object", "properties": {"at": {"type": "string"}}}`
	lookInMessages    = `"tools": [{"name": "look", "description": "Looks.", "input_schema": ` + lookSchema + `}]`
	lookInResponses   = `"tools": [{"type": "function", "name": "look", "description": "Looks.", "parameters": ` + lookSchema + `}]`
	longText          = "Say hello to the judge, and say it slowly, so that each word of it can be counted by the one next to you. "
	messagesPath      = "/v1/messages"
	countPath         = messagesPath + "/count_tokens"
	responsesPath     = "/v1/responses"
	streamed          = `"stream": true, "max_tokens": 20, `
	streamedResponse  = `"stream": true, "max_output_tokens": 20, `
	helloMessage      = hello
	helloInput        = `"input": "Say hello to the judge."`
	noMessages        = `"messages": []`
	unknownResponseID = "resp_0123456789abcdef0123456789abcdef"
)

// withMessage fills in what every good request to /v1/messages has; fields are the rest of the object. It has no field that
// keeps a model from ending its answer, so bounds are small.
func withMessage(fields string) string {
	return `{"model": "m", "temperature": 0, "max_tokens": 3, ` + fields + `}`
}

// withInput does the same for /v1/responses.
func withInput(fields string) string {
	return `{"model": "m", "temperature": 0, "max_output_tokens": 3, ` + fields + `}`
}

// apis are the requests to Messages and Responses, in the order in which they are sent.
func apis() []request {
	var out []request
	for _, list := range [][]request{messages(), wrongMessages(), responses(), wrongResponses(), apiRenderings(), apiOthers()} {
		out = append(out, list...)
	}
	return out
}

func messages() []request {
	message := func(name, fields string) request { return post(messagesPath, name, withMessage(fields)) }
	long := `"messages": [{"role": "user", "content": "` + strings.Repeat(longText, 4) + `"}]`
	result := lookInMessages + `, "messages": [{"role": "user", "content": "Look"}, {"role": "assistant", "content": [{"type": "text", "text": "I do."},
		{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "it"}}]},
		{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "seen"}, {"type": "text", "text": "And?"}]}]`
	return []request{
		message("plain", helloMessage),
		message("of a long prompt", long),
		message("of the long prompt again", long),
		message("of the long prompt again, streamed", streamed+long),
		message("with a system prompt", `"system": "Be brief.", `+helloMessage),
		message("with a system prompt in parts", `"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], `+helloMessage),
		message("with parts", `"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]`),
		message("with turns", `"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Again"}]`),
		message("with tools", lookInMessages+`, `+helloMessage),
		message("with tools, streamed", streamed+lookInMessages+`, `+helloMessage),
		message("with a tool that is not chosen", lookInMessages+`, "tool_choice": {"type": "none"}, `+helloMessage),
		message("with a tool result", result),
		message("streamed", streamed+helloMessage),
		message("streamed in a chunk", `"stream": true, "max_tokens": 1, `+helloMessage),
		message("with stop sequences", `"stop_sequences": ["@@@@"], `+helloMessage),
		message("with a salt", `"cache_salt": "s", `+long),
		message("with a thought", `"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.",
			"signature": "x"}, {"type": "text", "text": "Hello"}]}, {"role": "user", "content": "Again"}]`),
		message("with metadata", `"metadata": {"user_id": "u"}, `+helloMessage),
		message("with unknown fields", `"unheard_of": 1, `+helloMessage),
		post(countPath, "plain", `{"model": "m", `+helloMessage+`}`),
		post(countPath, "with tools", `{"model": "m", `+lookInMessages+`, `+helloMessage+`}`),
	}
}

func wrongMessages() []request {
	wrong := func(name, fields string) request { return post(messagesPath, name, withMessage(fields)) }
	out := []request{
		wrong("of a wrong model", `"model": "huge", `+helloMessage),
		wrong("of a wrong model, streamed", `"stream": true, "model": "huge", `+helloMessage),
		wrong("with an empty model", `"model": "", `+helloMessage),
		post(messagesPath, "without a model", `{"max_tokens": 3, `+helloMessage+`}`),
		post(messagesPath, "without a maximum", `{"model": "m", `+helloMessage+`}`),
		wrong("without tokens", `"max_tokens": 0, `+helloMessage),
		wrong("without messages", `"top_p": 1`),
		wrong("of no messages", noMessages),
		wrong("of text for messages", `"messages": "hello"`),
		wrong("of an unknown role", `"messages": [{"role": "judge", "content": "Hi"}]`),
		wrong("with an unknown part", `"messages": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]`),
		wrong("without content", `"messages": [{"role": "user"}]`),
		wrong("of a wrong type", `"max_tokens": "many", `+helloMessage),
		wrong("of a wrong stream", `"stream": "perhaps", `+helloMessage),
		wrong("of a wrong temperature", `"temperature": -1, `+helloMessage),
		wrong("with an empty salt", `"cache_salt": "", `+helloMessage),
		wrong("that is too long", `"messages": [{"role": "user", "content": "`+strings.Repeat("word ", 16*MaxModelLen+1)+`"}]`),
		wrong("that is too long, streamed", `"stream": true, "messages": [{"role": "user", "content": "`+strings.Repeat("word ", 16*MaxModelLen+1)+`"}]`),
		post(countPath, "of a wrong model", `{"model": "huge", `+helloMessage+`}`),
		post(countPath, "without messages", `{"model": "m"}`),
	}
	return append(out, malformed(messagesPath)...)
}

// malformed are bodies that are no request of any API.
func malformed(path string) []request {
	return []request{post(path, "of no JSON", `{"model": `), post(path, "of a list", `[]`), post(path, "of nothing", ``)}
}

func responses() []request {
	response := func(name, fields string) request { return post(responsesPath, name, withInput(fields)) }
	long := `"input": "` + strings.Repeat(longText, 4) + `"`
	result := lookInResponses + `, "input": [{"role": "user", "content": "Look"}, {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look",
		"arguments": "{\"at\": \"it\"}"}, {"type": "function_call_output", "call_id": "c1", "output": "seen"}]`
	return []request{
		response("plain", helloInput),
		response("of a long prompt", long),
		response("of the long prompt again", long),
		response("of the long prompt again, streamed", streamedResponse+long),
		response("with instructions", `"instructions": "Be brief.", `+helloInput),
		response("of a message", `"input": [{"role": "user", "content": "Say hello to the judge."}]`),
		response("of parts", `"input": [{"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]}]`),
		response("with turns", `"input": [{"role": "user", "content": "Hi"}, {"type": "message", "role": "assistant", "content": [{"type": "output_text",
			"text": "Hello"}]}, {"role": "user", "content": "Again"}]`),
		response("of a developer", `"input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]`),
		response("with tools", lookInResponses+`, `+helloInput),
		response("with tools, streamed", streamedResponse+lookInResponses+`, `+helloInput),
		response("with a tool that is not chosen", lookInResponses+`, "tool_choice": "none", `+helloInput),
		response("with a tool result", result),
		response("streamed", streamedResponse+helloInput),
		response("streamed in a chunk", `"stream": true, "max_output_tokens": 1, `+helloInput),
		response("with its messages", `"enable_response_messages": true, `+helloInput),
		response("with its messages, streamed", streamedResponse+`"enable_response_messages": true, `+helloInput),
		response("that is not stored", `"store": false, `+helloInput),
		response("with a request id", `"request_id": "mine", `+helloInput),
		response("with a salt", `"cache_salt": "s", `+long),
		response("with metadata", `"metadata": {"a": "b"}, `+helloInput),
		response("with unknown fields", `"unheard_of": 1, `+helloInput),
		response("with truncation", `"truncation": "auto", `+helloInput),
		post(responsesPath, "without a model", `{"temperature": 0, "max_output_tokens": 3, `+helloInput+`}`),
	}
}

func wrongResponses() []request {
	wrong := func(name, fields string) request { return post(responsesPath, name, withInput(fields)) }
	words := strings.Repeat("word ", 16*MaxModelLen+1)
	out := []request{
		wrong("of a wrong model", `"model": "huge", `+helloInput),
		wrong("of a wrong model, streamed", `"stream": true, "model": "huge", `+helloInput),
		wrong("without input", `"top_p": 1`),
		wrong("of an empty list", `"input": []`),
		wrong("of a number", `"input": 5`),
		wrong("of an unknown role", `"input": [{"role": "judge", "content": "Hi"}]`),
		wrong("with an unknown part", `"input": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]`),
		wrong("of a wrong type", `"max_output_tokens": "many", `+helloInput),
		wrong("of a wrong stream", `"stream": "perhaps", `+helloInput),
		wrong("of a wrong temperature", `"temperature": -1, `+helloInput),
		wrong("without tokens", `"max_output_tokens": 0, `+helloInput),
		wrong("with an empty salt", `"cache_salt": "", `+helloInput),
		wrong("that is too long", `"input": "`+words+`"`),
		wrong("that is too long, streamed", `"stream": true, "input": "`+words+`"`),
		wrong("that continues an unknown one", `"previous_response_id": "`+unknownResponseID+`", `+helloInput),
		wrong("in the background", `"background": true, `+helloInput),
		wrong("in the background without a store", `"background": true, "store": false, `+helloInput),
		wrong("of a stored prompt", `"prompt": {"id": "p"}, `+helloInput),
	}
	return append(out, malformed(responsesPath)...)
}

// apiRenderings are the routes that return the ids of Messages and Responses.
func apiRenderings() []request {
	equal := func(path, name, body string) request {
		r := post(path+"/render", name, body)
		r.ids = true
		return r
	}
	return []request{
		equal(messagesPath, "plain", withMessage(helloMessage)),
		equal(messagesPath, "with a system prompt", withMessage(`"system": "Be brief.", `+helloMessage)),
		equal(messagesPath, "with tools", withMessage(lookInMessages+`, `+helloMessage)),
		equal(messagesPath, "of a wrong model", withMessage(`"model": "huge", `+helloMessage)),
		equal(messagesPath, "of no messages", withMessage(noMessages)),
		equal(responsesPath, "plain", withInput(helloInput)),
		equal(responsesPath, "with instructions", withInput(`"instructions": "Be brief.", `+helloInput)),
		equal(responsesPath, "with tools", withInput(lookInResponses+`, `+helloInput)),
		equal(responsesPath, "of a wrong model", withInput(`"model": "huge", `+helloInput)),
		equal(responsesPath, "without input", withInput(`"top_p": 1`)),
	}
}

// apiOthers are methods and keys.
func apiOthers() []request {
	get := func(path string) request { return request{name: "GET " + path, method: http.MethodGet, path: path} }
	keyed := func(r request, name string, headers ...string) request {
		r.name, r.headers = r.name+" "+name, append([]string{"Authorization", ""}, headers...)
		return r
	}
	return []request{
		get(messagesPath), get(countPath), get(responsesPath), get(responsesPath + "/" + unknownResponseID),
		get(responsesPath + "/another"),
		post(responsesPath+"/"+unknownResponseID+"/cancel", "", ""),
		keyed(post(messagesPath, "", withMessage(helloMessage)), "without a key"),
		keyed(post(messagesPath, "", withMessage(helloMessage)), "with the key as Anthropic's clients show it", "X-Api-Key", Key),
		keyed(post(countPath, "", withMessage(helloMessage)), "without a key"),
		keyed(post(responsesPath, "", withInput(helloInput)), "without a key"),
	}
}

// refusable are requests of other APIs that are sent while the engine takes none: plain and as a stream.
func refusable() []request {
	return []request{
		post(messagesPath, "plain", withMessage(helloMessage)),
		post(messagesPath, "streamed", withMessage(`"stream": true, `+helloMessage)),
		post(responsesPath, "plain", withInput(helloInput)),
		post(responsesPath, "streamed", withInput(`"stream": true, `+helloInput)),
	}
}

// pooling are the requests to a model that generates nothing.
func pooling() []request {
	const embed, score, rerank = "/v1/embeddings", "/v1/score", "/v1/rerank"
	out := []request{
		post(embed, "of text", `{"model": "m", "input": "Say hello to the judge."}`),
		post(embed, "of the same text", `{"model": "m", "input": "Say hello to the judge."}`),
		post(embed, "of a long text", fmt.Sprintf(`{"model": "m", "input": %q}`, strings.Repeat(longText, 4))),
		post(embed, "of the long text again", fmt.Sprintf(`{"model": "m", "input": %q}`, strings.Repeat(longText, 4))),
		post(embed, "of texts", `{"model": "m", "input": ["one", "two words"]}`),
		post(embed, "of ids", `{"model": "m", "input": [5, 6, 7]}`),
		post(embed, "of lists of ids", `{"model": "m", "input": [[5, 6, 7], [8, 9]]}`),
		post(embed, "in base64", `{"model": "m", "input": "one", "encoding_format": "base64"}`),
		post(embed, "without a model", `{"input": "one"}`),
		post(embed, "of messages", `{"model": "m", `+hello+`}`),
		post(embed, "of a wrong model", `{"model": "huge", "input": "one"}`),
		post(embed, "without input", `{"model": "m"}`),
		post(embed, "of an empty text", `{"model": "m", "input": ""}`),
		post(embed, "of an empty list", `{"model": "m", "input": []}`),
		post(embed, "of a number", `{"model": "m", "input": 5}`),
		post(embed, "in an unknown form", `{"model": "m", "input": "one", "encoding_format": "smell"}`),
		post(embed, "of a wrong size", `{"model": "m", "input": "one", "dimensions": 0}`),
		post(embed, "that is too long", `{"model": "m", "input": `+ids(MaxModelLen+1)+`}`),
		post("/v1/completions", "from a model that generates nothing", with(`"prompt": [5, 6, 7]`)),
		post("/v1/chat/completions", "from a model that generates nothing", with(hello)),
		post(messagesPath, "from a model that generates nothing", withMessage(helloMessage)),
		post(responsesPath, "from a model that generates nothing", withInput(helloInput)),
		post("/tokenize", "text", `{"model": "m", "prompt": "Say hello to the judge."}`),
		{name: "GET /v1/models", method: http.MethodGet, path: "/v1/models"},
	}
	out = append(out, malformed(embed)...)
	for _, path := range []string{score, "/score"} {
		out = append(out, post(path, "of two texts", `{"model": "m", "text_1": "cats and dogs", "text_2": "cats and dogs"}`))
	}
	out = append(out,
		post(score, "of a text and some", `{"model": "m", "text_1": "cats and dogs", "text_2": ["cats and dogs", "a car"]}`),
		post(score, "of queries and documents", `{"model": "m", "queries": ["cats", "dogs"], "documents": ["cats", "a car"]}`),
		post(score, "of too few texts", `{"model": "m", "text_1": ["a", "b"], "text_2": ["c", "d", "e"]}`),
		post(score, "without texts", `{"model": "m"}`),
		post(score, "of a wrong model", `{"model": "huge", "text_1": "a", "text_2": "b"}`))
	for _, path := range []string{rerank, "/rerank", "/v2/rerank"} {
		out = append(out, post(path, "of documents", `{"model": "m", "query": "cats and dogs", "documents": ["cats and dogs"]}`))
	}
	return append(out,
		post(rerank, "of the best", `{"model": "m", "query": "cats and dogs", "documents": ["a car", "cats and dogs", "a house"], "top_n": 1}`),
		post(rerank, "without documents", `{"model": "m", "query": "cats"}`),
		post(rerank, "of no documents", `{"model": "m", "query": "cats", "documents": []}`),
		post(rerank, "of a wrong model", `{"model": "huge", "query": "cats", "documents": ["cats"]}`))
}
