package vllmsim

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// asked posts a body and returns the status and the answer.
func asked(t *testing.T, e *Engine, path, body string) (int, map[string]any) {
	t.Helper()
	response, err := http.Post(e.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return response.StatusCode, out
}

// at is the value at a path of keys and indices.
func at(v any, path ...any) any {
	for _, p := range path {
		switch key := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[key]
		case int:
			l, _ := v.([]any)
			if key >= len(l) {
				return nil
			}
			v = l[key]
		}
	}
	return v
}

// events are those of a stream, with their types.
func eventsOf(t *testing.T, e *Engine, path, body string) (types []string, all []map[string]any) {
	t.Helper()
	response, err := http.Post(e.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var event map[string]any
			if err := json.Unmarshal([]byte(data), &event); err != nil {
				t.Fatal(err)
			}
			types, all = append(types, event["type"].(string)), append(all, event)
		}
	}
	return types, all
}

// TestOtherAPIsRunTheChatThatTheyStandFor: the same chat finds its blocks whatever API it comes by.
func TestOtherAPIsRunTheChatThatTheyStandFor(t *testing.T) {
	e := start(t, Config{SpeedUp: 1000})
	long := strings.Repeat("a few words of a prompt ", 20)
	body := func(rest string) string { return `{"model":"` + DefaultModel + `",` + rest + `}` }
	status, chat := asked(t, e, "/v1/chat/completions", body(`"max_tokens":3,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"`+long+`"}]`))
	if status != http.StatusOK {
		t.Fatal(status, chat)
	}
	prompt := at(chat, "usage", "prompt_tokens").(float64)

	message := body(`"max_tokens":3,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":"` + long + `"}]`)
	status, got := asked(t, e, "/v1/messages", message)
	cached, _ := at(got, "usage", "cache_read_input_tokens").(float64)
	if status != http.StatusOK || at(got, "stop_reason") != "max_tokens" || at(got, "content", 0, "text") == "" || cached < prompt/2 ||
		at(got, "usage", "input_tokens").(float64)+cached != prompt || at(got, "usage", "output_tokens") != 3.0 {
		t.Errorf("status %d, %v", status, got)
	}
	if status, got := asked(t, e, "/v1/messages/count_tokens", message); status != http.StatusOK || at(got, "input_tokens") != prompt {
		t.Errorf("status %d, %v, want %v tokens", status, got, prompt)
	}
	response := body(`"max_output_tokens":3,"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"` + long + `"}]}]`)
	status, got = asked(t, e, "/v1/responses", response)
	if status != http.StatusOK || at(got, "status") != "incomplete" || at(got, "usage", "input_tokens") != prompt ||
		at(got, "usage", "input_tokens_details", "cached_tokens") != cached || at(got, "output", 0, "content", 0, "text") == "" {
		t.Errorf("status %d, %v", status, got)
	}

	_, got = asked(t, e, "/v1/responses", strings.Replace(response, "{", `{"enable_response_messages":true,`, 1))
	if ids, ok := at(got, "input_messages", 0, "tokens").([]any); !ok || float64(len(ids)) != prompt {
		t.Errorf("%v tokens of %v are returned: %v", len(ids), prompt, got)
	}

	types, all := eventsOf(t, e, "/v1/messages", strings.Replace(message, "{", `{"stream":true,`, 1))
	if n := len(types); n < 6 || types[0] != "message_start" || types[1] != "content_block_start" || types[2] != "content_block_delta" || types[n-1] != "message_stop" ||
		at(all[n-2], "usage", "cache_read_input_tokens") != cached || at(all[n-2], "delta", "stop_reason") != "max_tokens" {
		t.Errorf("%v: %v", types, all)
	}
	types, all = eventsOf(t, e, "/v1/responses", strings.Replace(response, "{", `{"stream":true,`, 1))
	if n := len(types); n < 7 || types[0] != "response.created" || types[4] != "response.output_text.delta" || types[n-1] != "response.completed" ||
		at(all[n-1], "response", "usage", "total_tokens") != prompt+3 || at(all[n-1], "sequence_number") != float64(n-1) {
		t.Errorf("%v: %v", types, all)
	}
}

// TestAgentsAreServedWithoutAModel: calls of tools and their results are part of the prompt, whatever their form.
func TestAgentsAreServedWithoutAModel(t *testing.T) {
	e := start(t, Config{SpeedUp: 1000})
	for path, turns := range map[string][2]string{
		"/v1/messages": {`"max_tokens":3,"messages":[{"role":"user","content":"look"}`, `,{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"look",
			"input":{"at":"it"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"seen"}]}`},
		"/v1/responses": {`"max_output_tokens":3,"input":[{"role":"user","content":"look"}`, `,{"type":"function_call","call_id":"c","name":"look",
			"arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"seen"}`},
	} {
		length := func(body string) float64 {
			status, got := asked(t, e, path, `{"model":"`+DefaultModel+`",`+body+`]}`)
			if status != http.StatusOK {
				t.Fatalf("%s: status %d, %v", path, status, got)
			}
			cached, _ := at(got, "usage", "cache_read_input_tokens").(float64)
			created, _ := at(got, "usage", "cache_creation_input_tokens").(float64)
			return at(got, "usage", "input_tokens").(float64) + cached + created
		}
		if short, long := length(turns[0]), length(turns[0]+turns[1]); long < short+5 {
			t.Errorf("%s: a prompt of %v tokens has %v with a call and its result", path, short, long)
		}
	}
}

// TestTheTextsOfARequestAreItsPromptWhereItsAPIIsUnknown, as in releases whose conversion of other APIs is not known.
func TestTheTextsOfARequestAreItsPromptWhereItsAPIIsUnknown(t *testing.T) {
	known := map[openai.Route]bool{openai.ChatCompletions: true}
	e := start(t, Config{SpeedUp: 1000, Chat: func(route openai.Route, body []byte) ([]uint32, error) {
		if !known[route] {
			return nil, fmt.Errorf("%w: %v", chatprompt.ErrUnsupported, route)
		}
		return make([]uint32, len(body)), nil
	}})
	const body = `{"model":"` + DefaultModel + `","max_tokens":3,"messages":[{"role":"user","content":"look"}],"ignored":"` + "a long text that no chat has, and that no prompt contains" + `"}`
	count := func() float64 {
		status, got := asked(t, e, "/v1/messages/count_tokens", body)
		if status != http.StatusOK {
			t.Fatalf("status %d, %v", status, got)
		}
		return at(got, "input_tokens").(float64)
	}
	if n := count(); n >= float64(len(body)) || n < 10 {
		t.Errorf("%v tokens", n)
	}
	known[openai.Messages] = true
	if n := count(); n != float64(len(body)) {
		t.Errorf("%v tokens of a request that is known", n)
	}
}

// TestErrorsHaveTheFormOfTheirAPI: what the engine finds before it knows the API looks as everywhere, all else as Anthropic's.
func TestErrorsHaveTheFormOfTheirAPI(t *testing.T) {
	e := start(t, Config{SpeedUp: 1000})
	for body, anthropic := range map[string]bool{
		`{"model":"another","max_tokens":3,"messages":[{"role":"user","content":"x"}]}`: true,
		`{"model":"` + DefaultModel + `","max_tokens":3,"messages":[]}`:                 true,
		`{"model":"` + DefaultModel + `","max_tokens":3}`:                               false,
		`{"model":`: false,
	} {
		status, got := asked(t, e, "/v1/messages", body)
		if status/100 != 4 || (got["type"] == "error") != anthropic || at(got, "error", "message") == nil || (at(got, "error", "code") == nil) != anthropic {
			t.Errorf("%s: status %d, %v", body, status, got)
		}
	}
}

// TestOtherAPIsAreRendered by the releases that have a route for it.
func TestOtherAPIsAreRendered(t *testing.T) {
	for release, want := range map[Release][2]int{28 << 8: {404, 404}, 29 << 8: {200, 404}, 30 << 8: {200, 200}} {
		e := start(t, Config{SpeedUp: 1000, Release: release})
		for i, request := range []string{`"max_tokens":3,"messages":[{"role":"user","content":"look"}]`, `"input":"look"`} {
			path := []string{"/v1/messages", "/v1/responses"}[i]
			status, got := asked(t, e, path+"/render", `{"model":"`+DefaultModel+`",`+request+`}`)
			if ids, _ := at(got, "token_ids").([]any); status != want[i] && (want[i] != 404 || status != 405) || (len(ids) > 0) != (want[i] == 200) {
				t.Errorf("%v: %s/render: status %d, %v", release, path, status, got)
			}
		}
	}
}

// TestPoolingRoutes answer by the tokens and words alone, and count prompts.
func TestPoolingRoutes(t *testing.T) {
	e := start(t, Config{SpeedUp: 1000})
	status, got := asked(t, e, "/v1/embeddings", `{"input":["one two three","one two three","something else"],"dimensions":8}`)
	if status != http.StatusOK || len(at(got, "data", 0, "embedding").([]any)) != 8 || at(got, "usage", "prompt_tokens").(float64) < 8 {
		t.Fatalf("status %d, %v", status, got)
	}
	text := func(i int) string { b, _ := json.Marshal(at(got, "data", i, "embedding")); return string(b) }
	if text(0) != text(1) || text(0) == text(2) {
		t.Errorf("embeddings %s, %s, %s", text(0), text(1), text(2))
	}
	_, got = asked(t, e, "/v1/embeddings", `{"input":"one two three","encoding_format":"base64"}`)
	if raw, err := base64.StdEncoding.DecodeString(at(got, "data", 0, "embedding").(string)); err != nil || len(raw) != 4*embeddingSize {
		t.Errorf("%v, %d bytes", err, len(raw))
	}
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		status, got := asked(t, e, path, `{"query":"cats and dogs","documents":["a car","dogs and cats","cats"],"top_n":2}`)
		if status != http.StatusOK || at(got, "results", 0, "index") != 1.0 || at(got, "results", 1, "index") != 2.0 || at(got, "results", 2) != nil {
			t.Errorf("%s: status %d, %v", path, status, got)
		}
	}
	for _, path := range []string{"/score", "/v1/score"} {
		status, got := asked(t, e, path, `{"text_1":"cats and dogs","text_2":["cats and dogs","a car"]}`)
		if status != http.StatusOK || at(got, "data", 0, "score") != 1.0 || at(got, "data", 1, "score") != 0.0 {
			t.Errorf("%s: status %d, %v", path, status, got)
		}
	}
	for path, body := range map[string]string{
		"/v1/embeddings": `{"input":"x","dimensions":0}`, "/v1/rerank": `{"query":"x"}`, "/v1/score": `{"text_1":["a","b"],"text_2":["c","d","e"]}`,
		"/v1/responses": `{"input":"x","prompt":{"id":"p"}}`, "/v1/messages": `{"max_tokens":3}`,
	} {
		if status, got := asked(t, e, path, body); status != http.StatusBadRequest || at(got, "error", "message") == "" {
			t.Errorf("%s: status %d, %v", path, status, got)
		}
	}
	if status, got := asked(t, e, "/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`); status != http.StatusNotFound || at(got, "error", "param") != "response_id" {
		t.Errorf("continuing an unknown response: status %d, %v", status, got)
	}
	if status, _ := asked(t, e, "/v1/embeddings", `{"model":"another","input":"x"}`); status != http.StatusNotFound {
		t.Errorf("another model: status %d", status)
	}
}
