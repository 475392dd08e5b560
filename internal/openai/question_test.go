package openai

import (
	"encoding/json"
	"strings"
	"testing"
)

// without is the text of a request without its question; empty if it has none.
func without(t testing.TB, route Route, body string) (question, rest string) {
	t.Helper()
	var r Request
	if err := ParseFor(route, []byte(body), "m", &r); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	q, ok := r.Question(100)
	if !ok {
		return "", ""
	}
	var w written
	if !r.WriteCanonicalWithout(&w, &q) {
		return q.Text, ""
	}
	return q.Text, string(w.text)
}

// TestTheQuestionOfARequest: its text, and what is left of the body.
func TestTheQuestionOfARequest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		route                Route
		body, question, rest string
	}{
		"a chat": {ChatCompletions, `{"model":"m", "messages":[{"role":"system","content":"s"}, { "content" : "How \u00e4re\n\"you\"?" , "role":"user"} ]}`,
			"How äre\n\"you\"?", `{"messages":[{"role":"system","content":"s"},{"content":"","role":"user"}],"model":"m"}`},
		"parts": {ChatCompletions, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"text":"b\"","type":"text","x":1}]}],"model":"m"}`,
			"a\nb\"", `{"messages":[{"role":"user","content":[{"type":"text","text":""},{"text":"","type":"text","x":1}]}],"model":"m"}`},
		"Messages": {Messages, `{"system":"x","messages":[{"role":"user","content":"a","name":"n"}],"model":"m"}`,
			"a", `{"messages":[{"role":"user","content":"","name":"n"}],"model":"m","system":"x"}`},
		"an input":         {Responses, `{"input" : "a" ,"model":"m"}`, "a", `{"input":"","model":"m"}`},
		"items":            {Responses, `{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]}],"model":"m"}`, "a", `{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":""}]}],"model":"m"}`},
		"a completion":     {Completions, `{"prompt":"a","model":"m"}`, "", ""},
		"an embedding":     {Embeddings, `{"messages":[{"role":"user","content":"a"}],"model":"m"}`, "", ""},
		"a tool's answer":  {ChatCompletions, `{"messages":[{"role":"user","content":"a"},{"role":"tool","content":"b"}],"model":"m"}`, "", ""},
		"an assistant":     {ChatCompletions, `{"messages":[{"role":"assistant","content":"a"}],"model":"m"}`, "", ""},
		"no role":          {ChatCompletions, `{"messages":[{"content":"a"}],"model":"m"}`, "", ""},
		"two roles":        {ChatCompletions, `{"messages":[{"role":"user","content":"a","role":"tool"}],"model":"m"}`, "", ""},
		"two contents":     {ChatCompletions, `{"messages":[{"role":"user","content":"a","content":"b"}],"model":"m"}`, "", ""},
		"an escaped name":  {ChatCompletions, `{"messages":[{"role":"user","content":"a","cont\u0065nt":"b"}],"model":"m"}`, "", ""},
		"an escaped role":  {ChatCompletions, `{"messages":[{"role":"us\u0065r","content":"a"}],"model":"m"}`, "", ""},
		"an image":         {ChatCompletions, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}],"model":"m"}`, "", ""},
		"an image as text": {ChatCompletions, `{"messages":[{"role":"user","content":[{"type":"image_url","text":"a"}]}],"model":"m"}`, "", ""},
		"a tool's output":  {Responses, `{"input":[{"type":"function_call_output","role":"user","content":"a"}],"model":"m"}`, "", ""},
		"blank":            {ChatCompletions, `{"messages":[{"role":"user","content":" \n"}],"model":"m"}`, "", ""},
		"long":             {ChatCompletions, `{"messages":[{"role":"user","content":"` + strings.Repeat("a", 101) + `"}],"model":"m"}`, "", ""},
		"no messages":      {ChatCompletions, `{"messages":[],"model":"m"}`, "", ""},
		"messages twice":   {ChatCompletions, `{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}],"model":"m"}`, "b", ""},
	} {
		if question, rest := without(t, tc.route, tc.body); question != tc.question || rest != tc.rest {
			t.Errorf("%s: %q %s, want %q %s", name, question, rest, tc.question, tc.rest)
		}
	}
}

// FuzzTheQuestionIsWhatParsersRead: the question is the content of the last message as encoding/json reads it, and another question in its
// place leaves the same rest.
func FuzzTheQuestionIsWhatParsersRead(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"user","content":"a"}]}`, "b")
	f.Add(`{"messages":[{"role":"user","content":"0"}]}`, strings.Repeat("&", 20)) // is 120 bytes as JSON
	f.Add(`{"model":"m","messages":[{"role":"system","content":""},{"role":"user","content":[{"type":"text","text":"a"}, {"text":"\"" , "type":"text"}]}],"seed":1}`, "\\\"")
	f.Fuzz(func(t *testing.T, body, other string) {
		var r Request
		if ParseFor(ChatCompletions, []byte(body), "m", &r) != nil {
			return
		}
		q, ok := r.Question(1 << 10)
		var w written
		if !ok || !r.WriteCanonicalWithout(&w, &q) {
			return
		}
		var read struct {
			Messages []struct {
				Role    string          `json:"role"`
				Content json.RawMessage `json:"content"`
			} `json:"messages"`
		}
		if err := json.Unmarshal([]byte(body), &read); err != nil {
			t.Skip() // names in other cases, of other types
		}
		last := read.Messages[len(read.Messages)-1]
		var content string
		if last.Role != "user" {
			t.Skip()
		}
		if json.Unmarshal(last.Content, &content) == nil && content != q.Text {
			t.Errorf("the question is %q, and the content %q", q.Text, content)
		}
		quoted, err := json.Marshal(other)
		if err != nil {
			t.Fatal(err)
		}
		if len(q.strings) != 1 || strings.TrimSpace(other) == "" || len(quoted) > 100 { // without takes no longer ones
			return
		}
		s := q.strings[0]
		changed := body[:s.beg-1] + string(quoted) + body[s.end+1:]
		if _, rest := without(t, ChatCompletions, changed); rest != string(w.text) {
			t.Errorf("%s leaves %s, and %s %s", body, w.text, changed, rest)
		}
	})
}
