package vllmsim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestErrors(t *testing.T) {
	e := start(t, Config{MaxModelLen: 64, LoRAs: []string{"l"}})
	many := "[" + strings.Repeat(`"x",`, maxPrompts) + `"x"]`
	cases := map[string]struct {
		path, body string
		status     int
		param      string
	}{
		"broken JSON":                      {"/v1/completions", `{"prompt": `, 400, "body.11"},
		"nothing":                          {"/v1/completions", ``, 400, "body"},
		"a list for a body":                {"/v1/completions", `[1]`, 400, "body"},
		"no prompt":                        {"/v1/completions", `{}`, 400, "prompt"},
		"a prompt of null":                 {"/v1/completions", `{"prompt": null}`, 400, "prompt"},
		"a prompt of a number":             {"/v1/completions", `{"prompt": 7}`, 400, "body.prompt"},
		"no prompts":                       {"/v1/completions", `{"prompt": []}`, 400, ""},
		"an empty prompt":                  {"/v1/completions", `{"prompt": ""}`, 400, "prompt"},
		"a negative token":                 {"/v1/completions", `{"prompt": [1, -2]}`, 400, "body.prompt.1"},
		"a token with a fraction":          {"/v1/completions", `{"prompt": [1.5]}`, 400, "body.prompt.0"},
		"a token of 33 bits":               {"/v1/completions", `{"prompt": [4294967296]}`, 400, "body.prompt.0"},
		"a token with an exponent":         {"/v1/completions", `{"prompt": [1e3]}`, 400, "body.prompt.0"},
		"mixed prompts":                    {"/v1/completions", `{"prompt": ["a", 1]}`, 400, "body.prompt.1"},
		"nested too deep":                  {"/v1/completions", `{"prompt": [[[1]]]}`, 400, "body.prompt.0"},
		"too many prompts":                 {"/v1/completions", `{"prompt": ` + many + `}`, 400, "prompt"},
		"unknown model":                    {"/v1/completions", `{"model": "gpt", "prompt": "x"}`, 404, "model"},
		"unknown model in chat":            {"/v1/chat/completions", `{"model": "gpt", "messages": [{"role": "user", "content": "x"}]}`, 404, "model"},
		"unknown model in tokenize":        {"/tokenize", `{"model": "gpt", "prompt": "x"}`, 404, "model"},
		"unknown model in detokenize":      {"/detokenize", `{"model": "gpt", "tokens": [1]}`, 404, "model"},
		"no choices":                       {"/v1/completions", `{"prompt": "x", "n": 0}`, 400, ""},
		"no output":                        {"/v1/completions", `{"prompt": "x", "max_tokens": 0}`, 400, "max_tokens"},
		"no output in chat":                {"/v1/chat/completions", `{"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0}`, 400, "max_completion_tokens"},
		"an empty salt":                    {"/v1/completions", `{"prompt": "x", "cache_salt": ""}`, 400, "cache_salt"},
		"options of a stream without one":  {"/v1/completions", `{"prompt": "x", "stream_options": {}}`, 400, "stream_options"},
		"a prompt longer than the context": {"/v1/completions", `{"prompt": "` + strings.Repeat(".", 64) + `"}`, 400, "max_tokens"},
		"messages that are missing":        {"/v1/chat/completions", `{"model": null}`, 400, "body.messages"},
		"a negative temperature":           {"/v1/completions", `{"prompt": "x", "temperature": -1}`, 400, "temperature"},
		"two greedy choices":               {"/v1/completions", `{"prompt": "x", "n": 2, "temperature": 0}`, 400, ""},
		"no tokens to detokenize":          {"/detokenize", `{}`, 400, "body.tokens"},
		"nothing to tokenize":              {"/tokenize", `{}`, 400, "body.prompt"},
		"no messages":                      {"/v1/chat/completions", `{"messages": []}`, 400, ""},
		"an image":                         {"/v1/chat/completions", `{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`, 400, ""},
		"content of a number":              {"/v1/chat/completions", `{"messages": [{"role": "user", "content": 3}]}`, 400, ""},
		"messages of numbers in tokenize":  {"/tokenize", `{"messages": [3]}`, 400, "body.messages"},
		"tokens of text in detokenize":     {"/detokenize", `{"tokens": ["a"]}`, 400, "body.tokens"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			status, b := post(t, e, tc.path, tc.body)
			r := parse(t, b)
			if status != tc.status || r.Error == nil || r.Error.Code != tc.status || r.Error.Message == "" || r.Error.Type == "" {
				t.Fatalf("status %d, want %d: %s", status, tc.status, b)
			}
			if got := r.Error.Param; (got == nil) != (tc.param == "") || got != nil && *got != tc.param {
				t.Errorf("param of %s, want %q", b, tc.param)
			}
		})
	}
	if s := e.Stats(); s.Running+s.Waiting != 0 || s.Finished+s.Aborted != 0 {
		t.Errorf("refused requests reached the engine: %+v", s)
	}
}

func TestBodyOverTheLimit(t *testing.T) {
	e := start(t, Config{MaxBody: 1000})
	for n, want := range map[int]int{1000: http.StatusOK, 1001: http.StatusBadRequest} {
		body := `{"prompt": "x"}`
		status, _ := post(t, e, "/v1/completions", body+strings.Repeat(" ", n-len(body)))
		if status != want {
			t.Errorf("%d bytes: status %d, want %d", n, status, want)
		}
	}
}

func TestFormsOfPrompts(t *testing.T) {
	e := start(t, Config{})
	hello, err := e.Encode("hello, world")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		prompt any
		want   [][]uint32
	}{
		"text":           {"hello, world", [][]uint32{hello}},
		"token ids":      {hello, [][]uint32{hello}},
		"several texts":  {[]string{"hello, world", "hello, world"}, [][]uint32{hello, hello}},
		"lists of ids":   {[][]uint32{{1, 2}, hello}, [][]uint32{{1, 2}, hello}},
		"ids and a text": {[]any{[]uint32{4294967295}, "hello, world"}, [][]uint32{{4294967295}, hello}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			body := object{"prompt": tc.prompt, "max_tokens": 3, "return_token_ids": true}
			r := complete(t, e, "/v1/completions", body)
			var got [][]uint32
			n := 0
			for i, c := range r.Choices {
				if c.Index != i || len(c.TokenIDs) != 3 {
					t.Errorf("choice %d: %+v", i, c)
				}
				got = append(got, c.PromptIDs)
				n += len(c.PromptIDs)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || r.Usage.PromptTokens != n {
				t.Errorf("usage %+v, prompts (-want +got):\n%s", r.Usage, diff)
			}
			// Rendered, the same request gives the same ids.
			status, b := post(t, e, "/v1/completions/render", body)
			var rendered []generateRequest
			if err := json.Unmarshal(b, &rendered); err != nil || status != http.StatusOK {
				t.Fatalf("render: %d %s", status, b)
			}
			for i, g := range rendered {
				if !slices.Equal(g.TokenIDs, tc.want[i]) || g.Model != DefaultModel || g.SamplingParams["max_tokens"] != 3.0 {
					t.Errorf("rendered %d: %+v", i, g)
				}
			}
			// And streamed, the same tokens under the same index.
			body["stream"] = true
			resp := open(context.Background(), t, e, "/v1/completions", body)
			defer closeBody(t, resp)
			streamed := make([][]uint32, len(r.Choices))
			for _, c := range chunks(t, resp.Body) {
				streamed[c.Choices[0].Index] = append(streamed[c.Choices[0].Index], c.Choices[0].TokenIDs...)
			}
			for i, c := range r.Choices {
				if !slices.Equal(streamed[i], c.TokenIDs) {
					t.Errorf("choice %d: streamed %v, plain %v", i, streamed[i], c.TokenIDs)
				}
			}
		})
	}
}

func chatMessages(turns ...string) []object {
	roles := []string{"system", "user", "assistant"}
	var out []object
	for i, turn := range turns {
		role := roles[min(i, 1)]
		if i > 1 && i%2 == 0 {
			role = "assistant"
		}
		out = append(out, object{"role": role, "content": turn})
	}
	return out
}

func TestNextTurnFindsThePreviousAnswer(t *testing.T) {
	e := start(t, Config{})
	body := object{"messages": chatMessages("You help.", "How are you?"), "max_tokens": 100, "return_token_ids": true}
	first := complete(t, e, "/v1/chat/completions", body)
	m := first.Choices[0].Message
	if m.Role != "assistant" || len(first.Choices[0].TokenIDs) != 100 || first.Object != "chat.completion" {
		t.Fatalf("answer %+v", first)
	}
	body["messages"] = chatMessages("You help.", "How are you?", m.Content, "And now?")
	second := complete(t, e, "/v1/chat/completions", body)
	// The last token of the answer was never computed.
	prefix := append(slices.Clone(first.PromptIDs), first.Choices[0].TokenIDs...)
	if !slices.Equal(second.PromptIDs[:len(prefix)], prefix) {
		t.Fatal("the second prompt does not begin with the first and its answer")
	}
	if want := (len(prefix) - 1) / 16 * 16; second.Usage.Details.Cached != want {
		t.Errorf("%d tokens cached, want %d", second.Usage.Details.Cached, want)
	}
	status, b := post(t, e, "/v1/chat/completions/render", body)
	var rendered generateRequest
	if err := json.Unmarshal(b, &rendered); err != nil || status != http.StatusOK || !slices.Equal(rendered.TokenIDs, second.PromptIDs) {
		t.Errorf("render: %d, not the ids of the prompt: %s", status, b)
	}
}

func TestChatStream(t *testing.T) {
	e := start(t, Config{DefaultOutput: 5})
	body := object{"messages": chatMessages("s", "u"), "stream": true, "return_token_ids": true}
	resp := open(context.Background(), t, e, "/v1/chat/completions", body)
	defer closeBody(t, resp)
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
	all := chunks(t, resp.Body)
	if d := all[0].Choices[0].Delta; d.Role != "assistant" || d.Content != "" || len(all[0].PromptIDs) == 0 {
		t.Errorf("first chunk %+v", all[0])
	}
	var text string
	for _, c := range all {
		if c.Usage != nil || !strings.HasPrefix(c.ID, "chatcmpl-") || c.Object != "chat.completion.chunk" {
			t.Errorf("chunk %+v", c)
		}
		text += c.Choices[0].Delta.Content
	}
	last := all[len(all)-1].Choices[0].FinishReason
	if last == nil || *last != finishStop {
		t.Error("an answer of the engine's own length does not end with stop")
	}
	delete(body, "stream")
	if plain := complete(t, e, "/v1/chat/completions", body); plain.Choices[0].Message.Content != text || plain.Usage.CompletionTokens != 5 {
		t.Errorf("streamed %q, plain %+v", text, plain)
	}
}

func TestChatTemplate(t *testing.T) {
	cases := map[string]struct{ body, want string }{
		"a conversation": {
			`{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}`,
			"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n",
		},
		"parts and no generation": {
			`{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "add_generation_prompt": false}`,
			"<|im_start|>user\na\nb<|im_end|>\n",
		},
		"tools make a system turn": {
			`{"messages": [{"role": "user", "content": "U"}], "tools": [{"a": 1}, {"b": 2}]}`,
			"<|im_start|>system\n\n{\"a\": 1}\n{\"b\": 2}<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n",
		},
		"tool calls": {
			`{"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "x"}]}]}`,
			"<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n\n[{\"id\": \"x\"}]<|im_end|>\n<|im_start|>assistant\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var req chatRequest
			if err := json.Unmarshal([]byte(tc.body), &req); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, req.render()); diff != "" {
				t.Errorf("prompt (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTokenizeAndBack(t *testing.T) {
	e := start(t, Config{MaxModelLen: 4096})
	status, b := post(t, e, "/tokenize", `{"prompt": "a t17 t18", "return_token_strs": true}`)
	var got struct {
		Count, MaxModelLen int
		Tokens             []uint32
		Strs               []string `json:"token_strs"`
		Max                int      `json:"max_model_len"`
	}
	if err := json.Unmarshal(b, &got); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, b)
	}
	if got.Count != 3 || got.Max != 4096 || !slices.Equal(got.Tokens[1:], []uint32{17, 18}) || got.Strs[2] != " t18" {
		t.Errorf("tokenize: %s", b)
	}
	if _, b = post(t, e, "/detokenize", `{"tokens": [17, 18, 0]}`); string(b) != `{"prompt":" t17 t18\u003c|im_start|\u003e"}` {
		t.Errorf("detokenize: %s", b)
	}
	_, chat := post(t, e, "/tokenize", `{"messages": [{"role": "user", "content": "x"}]}`)
	_, text := post(t, e, "/tokenize", `{"prompt": "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"}`)
	if string(chat) != string(text) {
		t.Errorf("chat %s, text %s", chat, text)
	}
}

func TestModelsAndSmallRoutes(t *testing.T) {
	e := start(t, Config{ServedModelNames: []string{"base", "alias"}, LoRAs: []string{"sql"}, MaxModelLen: 100})
	_, b := get(t, e, "/v1/models")
	var list struct {
		Data []struct {
			ID     string
			Parent *string
			Max    int `json:"max_model_len"`
		}
	}
	if err := json.Unmarshal([]byte(b), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list.Data {
		parent := "-"
		if m.Parent != nil {
			parent = *m.Parent
		}
		got = append(got, m.ID+" "+parent+" "+strconv.Itoa(m.Max))
	}
	if diff := cmp.Diff([]string{"base - 100", "alias - 100", "sql base 0"}, got); diff != "" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{
		"/health": "", "/ping": "", "/version": `{"version":"` + NewestRelease.String() + `+sim"}`, "/load": `{"server_load":0}`,
	} {
		if status, b := get(t, e, path); status != http.StatusOK || b != want {
			t.Errorf("GET %s: %d %q", path, status, b)
		}
	}
	if status, _ := post(t, e, "/ping", ""); status != http.StatusOK {
		t.Errorf("POST /ping: %d", status)
	}
	if r := complete(t, e, "/v1/completions", object{"model": "alias", "prompt": "x"}); r.Model != "alias" || r.Usage.CompletionTokens != 16 {
		t.Errorf("answer of an alias: %+v", r)
	}
}

func TestAPIKeysGuardV1Only(t *testing.T) {
	e := start(t, Config{APIKeys: []string{"one", "two"}})
	for path, want := range map[string]int{"/v1/models": 401, "/health": 200, "/metrics": 200} {
		if status, b := get(t, e, path); status != want || want == 401 && b != `{"error":"Unauthorized"}` {
			t.Errorf("%s without a key: %d %s", path, status, b)
		}
	}
	for header, want := range map[string]int{"Bearer two": 200, "Bearer three": 401, "two": 401} {
		req, err := http.NewRequest(http.MethodGet, e.URL()+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", header)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		closeBody(t, resp)
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", header, resp.StatusCode, want)
		}
	}
}

// sample finds a metric's value by name and labels as they are written.
func sample(t *testing.T, text, series string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in\n%s", series, text)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestMetrics(t *testing.T) {
	e := start(t, Config{ServedModelNames: []string{`a"b`}, NumBlocks: 101, DataParallelRank: 0})
	for range 2 {
		complete(t, e, "/v1/completions", object{"prompt": ids(1, 40), "max_tokens": 5})
	}
	e.Pause()
	for range 2 {
		openAsync(t, e, "/v1/completions", object{"prompt": ids(500, 33), "max_tokens": 5})
	}
	eventually(t, "two requests wait", func() bool { return e.Stats().Waiting == 2 })
	// Gauges are those of the last step.
	_, text := get(t, e, "/metrics")
	labels := `{engine="0",model_name="a\"b"}`
	if v := sample(t, text, "vllm:num_requests_waiting"+labels); v != 0 {
		t.Errorf("%v wait before a step", v)
	}
	e.Step()
	_, text = get(t, e, "/metrics")
	want := map[string]float64{
		"vllm:num_requests_running" + labels: 2, "vllm:num_requests_waiting" + labels: 0,
		// The second finds the first's two whole blocks in the same step: 3 + 1 of 100, as one of 101 is never written.
		"vllm:kv_cache_usage_perc" + labels:        0.04,
		"vllm:prefix_cache_queries_total" + labels: 146, "vllm:prefix_cache_hits_total" + labels: 64,
		"vllm:prompt_tokens_total" + labels: 146, "vllm:generation_tokens_total" + labels: 12,
		"vllm:num_preemptions_total" + labels:                                               0,
		"vllm:time_to_first_token_seconds_count" + labels:                                   4,
		`vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="a\"b"}`:   4,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="a\"b"}`: 2,
	}
	for series, v := range want {
		if got := sample(t, text, series); got != v {
			t.Errorf("%s = %v, want %v", series, got, v)
		}
	}
	if !regexp.MustCompile(`(?m)^vllm:cache_config_info\{block_size="16",.*num_gpu_blocks="101".*\} 1\.0$`).MatchString(text) {
		t.Errorf("no cache_config_info in\n%s", text)
	}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if !regexp.MustCompile(`^(# (HELP|TYPE) \S+ .+|[a-z0-9_:]+\{.*\} [0-9.e+-]+)$`).MatchString(line) {
			t.Errorf("line %d: %q", i, line)
		}
	}
}

// TestAnswersAreCutToTheContext: unlike a prompt, an answer may be asked for that does not fit.
func TestAnswersAreCutToTheContext(t *testing.T) {
	e := start(t, Config{MaxModelLen: 64})
	if r := complete(t, e, "/v1/completions", object{"prompt": ids(1, 4), "max_tokens": 100}); r.Usage.CompletionTokens != 60 {
		t.Errorf("%d tokens of an answer", r.Usage.CompletionTokens)
	}
}

func TestChoicesShareAPrompt(t *testing.T) {
	e := start(t, Config{})
	r := complete(t, e, "/v1/completions", object{"prompt": []any{ids(1, 20), ids(50, 3)}, "n": 2, "max_tokens": 4})
	if len(r.Choices) != 4 || r.Usage.PromptTokens != 23 || r.Usage.CompletionTokens != 16 {
		t.Errorf("%d choices, %+v", len(r.Choices), r.Usage)
	}
}

func TestAFullQueueRefuses(t *testing.T) {
	e := start(t, Config{MaxQueuedRequests: 1})
	e.Pause()
	openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 5), "max_tokens": 3})
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	if status, b := post(t, e, "/v1/completions", `{"prompt": [5]}`); status != http.StatusServiceUnavailable {
		t.Errorf("status %d: %s", status, b)
	}
	if status, b := post(t, e, "/v1/completions", `{"prompt": [5], "stream": true}`); status != http.StatusServiceUnavailable {
		t.Errorf("a stream: status %d: %s", status, b)
	}
	_, text := get(t, e, "/metrics")
	if n := sample(t, text, `vllm:admission_rejections_total{model_name="sim-model",reason="max_num_queued_reqs"}`); n != 2 {
		t.Errorf("%v rejections", n)
	}
}

func TestGatedRoutes(t *testing.T) {
	old := start(t, Config{Release: 29 << 8, NoScaleOut: true})
	gated := start(t, Config{NoScaleOut: true})
	before := start(t, Config{Release: 14 << 8})
	const path, body = "/v1/completions/render", `{"prompt": [5]}`
	for e, want := range map[*Engine]int{old: http.StatusOK, gated: http.StatusForbidden, before: http.StatusNotFound} {
		if status, b := post(t, e, path, body); status != want {
			t.Errorf("release %v: %d, want %d: %s", e.cfg.Release, status, want, b)
		}
	}
	if status, _ := post(t, gated, "/tokenize", `{"prompt": "x"}`); status != http.StatusOK {
		t.Errorf("tokenize is gated: %d", status)
	}
}

func TestUsageDetailsCanBeOff(t *testing.T) {
	e := start(t, Config{NoPromptTokensDetails: true})
	if r := complete(t, e, "/v1/completions", object{"prompt": "x"}); r.Usage.Details != nil {
		t.Error("details although they are off")
	}
}

func TestRequestIDs(t *testing.T) {
	e := start(t, Config{})
	seen := map[string]bool{}
	for range 3 {
		r := complete(t, e, "/v1/completions", object{"prompt": "x"})
		if !strings.HasPrefix(r.ID, "cmpl-") || seen[r.ID] {
			t.Errorf("id %q", r.ID)
		}
		seen[r.ID] = true
	}
	if r := complete(t, e, "/v1/completions", object{"prompt": "x", "request_id": "mine"}); r.ID != "cmpl-mine" {
		t.Errorf("id %q", r.ID)
	}
	if got := fmt.Sprint(len(seen)); got != "3" {
		t.Errorf("%s ids", got)
	}
}
