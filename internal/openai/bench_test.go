package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// idsBody is a completion request with n token ids, written as sep says.
func idsBody(n int, sep string) []byte {
	rng := rand.New(rand.NewPCG(3, 4))
	b := []byte(`{"model":"meta-llama/Llama-3.1-8B-Instruct","prompt":[`)
	for i := range n {
		if i > 0 {
			b = append(b, sep...)
		}
		b = strconv.AppendUint(b, uint64(rng.Uint32N(128_000)), 10)
	}
	return append(b, `],"max_tokens":200,"stream":true,"stream_options":{"include_usage":true}}`...)
}

// chatBody is a chat request of about n bytes, with code and other languages in it.
func chatBody(n int) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	msgs := []message{{"system", "You are a helpful assistant. Answer briefly, and say so when you do not know."}}
	text := strings.Repeat("func main() {\n\tfmt.Println(\"hello\")\n}\nPlease explain this function — auf Deutsch, für Anfänger. 你好。\n", 8)
	size := 0
	for i := 0; size < n; i++ {
		msgs = append(msgs, message{[]string{"user", "assistant"}[i%2], text})
		size += len(text)
	}
	b, err := json.Marshal(map[string]any{"model": "meta-llama/Llama-3.1-8B-Instruct", "messages": msgs, "stream": true, "user": "u-1"})
	if err != nil {
		panic(err)
	}
	return b
}

// agentBody is a Messages request of about n bytes as coding agents send them: tools, system parts, tool calls and
// their answers.
func agentBody(n int) []byte {
	var b []byte
	b = append(b, `{"model":"m","max_tokens":32000,"stream":true,"system":[{"type":"text","text":"You are a coding agent.","cache_control":{"type":"ephemeral"}}],"messages":[`...)
	b = append(b, `{"role":"user","content":[{"type":"text","text":"Please fix the bug."}]}`...)
	code := strings.Repeat(`\tif err != nil {\n\t\treturn fmt.Errorf(\"reading %s: %w\", name, err)\n\t}\n`, 20)
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, `,{"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"c2ln"},{"type":"tool_use","id":"toolu_%d","name":"read","input":{"path":"a/b.go"}}]}`, i)
		b = fmt.Appendf(b, `,{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_%d","content":[{"type":"text","text":"%s"}]}]}`, i, code)
	}
	b = append(b, `],"tools":[{"name":"read","description":"Reads a file.","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}]`...)
	return append(b, `,"metadata":{"user_id":"user_1_session_2"}}`...)
}

// plainRequest is what a server without a scanner would decode into.
type plainRequest struct {
	Model    string   `json:"model"`
	Prompt   []uint32 `json:"prompt"`
	Messages []struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
	} `json:"messages"`
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens int    `json:"max_tokens"`
	User      string `json:"user"`
}

func BenchmarkParse(b *testing.B) {
	for _, tc := range []struct {
		name  string
		route Route
		body  []byte
	}{
		{"12k-ids", Completions, idsBody(12_000, ", ")},
		{"100k-ids", Completions, idsBody(100_000, ",")},
		{"32KB-chat", ChatCompletions, chatBody(32 << 10)},
		{"1MB-chat", ChatCompletions, chatBody(1 << 20)},
		{"100KB-agent", Messages, agentBody(100 << 10)},
	} {
		b.Run(tc.name+"/scan", func(b *testing.B) {
			b.SetBytes(int64(len(tc.body)))
			b.ReportAllocs()
			var r Request
			for b.Loop() {
				if err := Parse(tc.route, tc.body, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(tc.name+"/encoding-json", func(b *testing.B) {
			b.SetBytes(int64(len(tc.body)))
			b.ReportAllocs()
			for b.Loop() {
				var r plainRequest
				if err := json.Unmarshal(tc.body, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkItemHash is of an image of 1 MB.
func BenchmarkItemHash(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("aGVs", 1<<18) + `"}}]}]}`)
	var r Request
	if err := Parse(ChatCompletions, body, &r); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r.ItemHash(&r.Items[0])
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		route Route
		body  []byte
	}{
		"token ids":           {Completions, idsBody(12_000, ", ")},
		"lists of token ids":  {Completions, []byte(`{"model":"m","prompt":[[1,2],[3]],"cache_salt":"s","user":"u"}`)},
		"a text with escapes": {Completions, []byte(`{"model":"m","prompt":"a\nb","add_special_tokens":true}`)},
		"a chat":              {ChatCompletions, chatBody(32 << 10)},
		"an agent's turns":    {Messages, agentBody(32 << 10)},
		"an image":            {ChatCompletions, []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"},"uuid":"u"}]}]}`)},
		"a text to embed":     {Embeddings, []byte(`{"model":"m","input":["a"],"user":"u"}`)},
		"a response":          {Responses, []byte(`{"model":"m","input":[{"type":"function_call_output","output":"x"}],"instructions":"s"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			var r Request
			if n := testing.AllocsPerRun(20, func() {
				if err := Parse(tc.route, tc.body, &r); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestHugeBodies bounds what is allocated for a body of some megabytes of each kind, as a multiple of its size. The race
// detector doubles what slices.Grow takes; growing in small steps would take more than that.
func TestHugeBodies(t *testing.T) {
	const n = 2 << 20
	for name, tc := range map[string]struct {
		route Route
		body  string
		most  float64
		bad   bool
	}{
		"one text":                {body: `{"model":"m","prompt":"` + strings.Repeat("a", n) + `"}`, most: 0.01},
		"one text with escapes":   {body: `{"model":"m","prompt":"` + strings.Repeat(`\n`, n/2) + `"}`, most: 2.2},
		"the shortest ids":        {body: `{"model":"m","prompt":[1` + strings.Repeat(",1", n/2) + `]}`, most: 4.4},
		"ids spread over lines":   {body: `{"model":"m","prompt":[1` + strings.Repeat(",\n 1", n/4) + `]}`, most: 2.2},
		"lists of one id":         {body: `{"model":"m","prompt":[[1]` + strings.Repeat(",[1]", n/4) + `]}`, most: 8, bad: true},
		"more texts than allowed": {body: `{"model":"m","prompt":[""` + strings.Repeat(`,""`, n/3) + `]}`, most: 6, bad: true},
		"one key many times":      {body: `{"model":"m"` + strings.Repeat(`,"prompt":"x"`, n/13) + `}`, most: 0.1},
		"an image":                {route: ChatCompletions, body: `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + strings.Repeat("aGVs", n/4) + `"}}]}]}`, most: 0.01},
		"messages":                {route: ChatCompletions, body: `{"model":"m","messages":[{}` + strings.Repeat(",{}", n/3) + `]}`, most: 0.01},
		"images":                  {route: ChatCompletions, body: `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}` + strings.Repeat(`,{"type":"image_url"}`, n/21) + `]}]}`, most: 1},
		"tools' answers, nested":  {route: Messages, body: `{"model":"m","messages":[{"role":"user","content":[` + strings.Repeat(`{"type":"tool_result","content":[`, 50) + `""` + strings.Repeat(`,""`, n/3) + strings.Repeat("]}", 50) + `]}]}`, most: 0.01},
		"content parts":           {route: ChatCompletions, body: `{"model":"m","messages":[{"role":"user","content":[""` + strings.Repeat(`,""`, n/3) + `]}]}`, most: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(tc.body)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var r Request
			err := Parse(tc.route, body, &r)
			runtime.ReadMemStats(&after)
			if (err != nil) != tc.bad {
				t.Errorf("error is %v", err)
			}
			if got := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(body)); got > tc.most {
				t.Errorf("%.2f bytes allocated per byte of the body, want at most %v", got, tc.most)
			}
		})
	}
}

func TestResetGivesHugeBuffersBack(t *testing.T) {
	var r Request
	if err := Parse(Completions, []byte(`{"model":"m","prompt":[1`+strings.Repeat(",1", 2*keepTokens)+`]}`), &r); err != nil {
		t.Fatal(err)
	}
	if got := len(r.Prompts[0].Tokens); got != 2*keepTokens+1 {
		t.Fatalf("%d ids", got)
	}
	r.Reset()
	if cap(r.tokens) != 0 {
		t.Errorf("%d ids are kept", cap(r.tokens))
	}
	if r.Model != "" || len(r.Prompts) != 0 || r.Prompts[:1][0].Tokens != nil {
		t.Errorf("something of the request is kept")
	}
}

func TestFieldOfTooManyFields(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"model":"m","prompt":"x","session_id":"s"`)
	for i := range maxFields - 3 {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	var r Request
	if err := Parse(Completions, []byte(b.String()+"}"), &r); err != nil {
		t.Fatal(err)
	}
	if s, ok := r.Field("session_id"); s != "s" || !ok {
		t.Errorf("Field = %q, %v at the limit", s, ok)
	}
	if err := Parse(Completions, []byte(b.String()+`,"a":1}`), &r); err != nil {
		t.Fatal(err)
	}
	if s, ok := r.Field("session_id"); ok {
		t.Errorf("Field = %q beyond the limit", s)
	}
}

// BenchmarkWriteCut is a stream of 1,000 events of a chat that arrive one by one, beside the same through Write.
func BenchmarkWriteCut(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-1f0c8d","object":"chat.completion.chunk","created":1780000000,"model":"m",` +
		`"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	last := []byte(usageEvent + "\n\ndata: [DONE]\n\n")
	buf := make([]byte, 2*MaxCut)
	for _, cuts := range []bool{false, true} {
		b.Run(map[bool]string{false: "write", true: "cut"}[cuts], func(b *testing.B) {
			var a AnswerScanner
			b.ReportAllocs()
			for b.Loop() {
				a.Reset(ChatCompletions, true)
				for i := range 1001 {
					p := event
					if i == 1000 {
						p = last
					}
					if p = buf[:copy(buf, p)]; cuts {
						a.WriteCut(p, 0)
					} else {
						a.Write(p)
					}
				}
			}
		})
	}
}

func TestCuttingAllocatesNothing(t *testing.T) {
	var a AnswerScanner
	event := []byte(usageEvent + "\n\n")
	buf := make([]byte, 2*MaxCut)
	a.Reset(ChatCompletions, true)
	a.Write(event)
	if n := testing.AllocsPerRun(100, func() { a.WriteCut(buf[:copy(buf, event)], 0) }); n != 0 {
		t.Errorf("%v allocations for each event", n)
	}
}
