package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// slowParse is what Parse must find, by way of a tree. The error is "syntax", a field's name, or empty.
func slowParse(route Route, body []byte) (want seen, bad string) {
	if !json.Valid(body) || !utf8.Valid(body) || depthOf(body) > MaxDepth {
		return want, "syntax"
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return want, "syntax"
	}
	o, ok := doc.(map[string]any)
	if !ok {
		return want, "body"
	}
	str := func(name string) string { s, _ := o[name].(string); return s }
	flag := func(name string) bool { b, _ := o[name].(bool); return b }
	isNumber := func(name string) bool { _, ok := o[name].(json.Number); return ok }
	whole := func(name string, least int) int {
		n, _ := o[name].(json.Number)
		x, err := strconv.ParseFloat(string(n), 64)
		if err != nil && math.Abs(x) <= 1 || x != math.Trunc(x) {
			x = 0
		}
		return max(int(min(max(x, math.MinInt32), math.MaxInt32)), least)
	}
	want.Model = str("model")
	if want.Model == "" {
		return want, "model"
	}
	want.CacheSalt, want.User = str("cache_salt"), str("user")
	want.Stream, want.Echo = flag("stream"), flag("echo")
	if so, ok := o["stream_options"].(map[string]any); ok {
		want.IncludeUsage, _ = so["include_usage"].(bool)
	}
	if b, ok := o["add_special_tokens"].(bool); ok {
		want.AddSpecialTokens = &b
	}
	switch o["prompt_embeds"].(type) {
	case string, []any:
		want.Embeds = true
	}
	if _, ok := o["tools"].([]any); ok {
		want.Tools = "set"
	}
	want.N, want.Truncate, want.PrefixLen = whole("n", 1), whole("truncate_prompt_tokens", -1), whole("prefix_len", 0)
	want.Priority = whole("priority", math.MinInt32)
	want.MaxTokens = whole("max_tokens", 0)
	logprobs := isNumber("logprobs")
	if route == ChatCompletions {
		logprobs = isNumber("top_logprobs")
		if o["max_completion_tokens"] != nil {
			want.MaxTokens = whole("max_completion_tokens", 0)
		}
	}
	want.PromptLogprobs = o["prompt_logprobs"] != nil || want.Echo && logprobs
	if route == ChatCompletions {
		return want, slowMessages(o["messages"], &want)
	}
	return want, slowPrompt(o["prompt"], &want)
}

func slowIDs(v any) (ids []uint32, ok bool) {
	list, ok := v.([]any)
	for _, e := range list {
		n, isNumber := e.(json.Number)
		x, err := strconv.ParseFloat(string(n), 64)
		if !isNumber || err != nil || x < 0 || x > math.MaxUint32 || x != math.Trunc(x) {
			return nil, false
		}
		ids = append(ids, uint32(x))
	}
	return ids, ok
}

func slowPrompt(v any, want *seen) string {
	switch v := v.(type) {
	case nil:
		if !want.Embeds {
			return "prompt"
		}
		return ""
	case string:
		want.Prompts = []Prompt{{Text: v}}
	case []any:
		if len(v) == 0 {
			return "prompt"
		}
		if ids, ok := slowIDs(v); ok {
			want.Prompts = []Prompt{{Tokens: ids, IsTokens: true}}
			break
		}
		for _, e := range v {
			if s, ok := e.(string); ok {
				want.Prompts = append(want.Prompts, Prompt{Text: s})
			} else if ids, ok := slowIDs(e); ok {
				want.Prompts = append(want.Prompts, Prompt{Tokens: ids, IsTokens: true})
			} else {
				return "prompt"
			}
			if want.Prompts[0].IsTokens != want.Prompts[len(want.Prompts)-1].IsTokens {
				return "prompt"
			}
		}
	default:
		return "prompt"
	}
	return ""
}

func slowMessages(v any, want *seen) string {
	list, ok := v.([]any)
	if !ok {
		return "messages"
	}
	want.Messages, want.NumMessages = "set", len(list)
	system, user, haveUser := "", "", false
	for _, e := range list {
		m, ok := e.(map[string]any)
		if !ok {
			return "messages"
		}
		text := ""
		switch c := m["content"].(type) {
		case string:
			text = c
		case []any:
			for _, e := range c {
				s, isText := slowPart(e)
				text += s
				want.Multimodal = want.Multimodal || !isText
			}
		}
		switch m["role"] {
		case "system", "developer":
			if !haveUser {
				system += text
			}
		case "user":
			if !haveUser {
				user, haveUser = text, true
			}
		}
	}
	want.Stable = system + "\x00" + user
	return ""
}

func slowPart(e any) (text string, isText bool) {
	switch e := e.(type) {
	case string:
		return e, true
	case map[string]any:
		text, haveText := e["text"].(string)
		if typ, ok := e["type"].(string); ok {
			switch typ {
			case "text", "input_text", "output_text", "refusal", "thinking":
				return text, true
			}
			return "", false
		}
		for k := range e {
			if k != "type" && k != "text" {
				return "", false
			}
		}
		if !haveText {
			return "", false
		}
		return text, true
	}
	return "", true
}

func depthOf(body []byte) int {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	depth, deepest := 0, 0
	for {
		tok, err := dec.Token()
		if err != nil {
			return deepest
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// checkParse compares Parse with slowParse.
func checkParse(t *testing.T, route Route, body []byte, r *Request) {
	t.Helper()
	before := bytes.Clone(body)
	err := Parse(route, body, r)
	if !bytes.Equal(before, body) {
		t.Fatalf("the body was changed: %q", before)
	}
	want, bad := slowParse(route, body)
	got := ""
	var syntax *SyntaxError
	var field *FieldError
	switch {
	case errors.As(err, &syntax):
		got = "syntax"
		if syntax.Offset < 0 || syntax.Offset > len(body) {
			t.Fatalf("offset %d of a body of %d bytes", syntax.Offset, len(body))
		}
	case errors.As(err, &field):
		got = field.Field
		if got == "" {
			got = "body"
		}
	case err != nil:
		t.Fatalf("error of type %T", err)
	}
	if got != bad {
		t.Fatalf("error is %v, want one about %q\nbody: %q", err, bad, body)
	}
	if err != nil {
		return
	}
	have := see(r)
	for _, raw := range []*string{&have.Messages, &have.Tools} {
		if *raw == "" {
			continue
		}
		if !json.Valid([]byte(*raw)) {
			t.Fatalf("a span that is no JSON: %q\nbody: %q", *raw, body)
		}
		*raw = "set"
	}
	// The model neither cuts texts nor knows how many pieces are kept.
	if route == Completions || len(want.Stable) > 64 || strings.Count(string(body), "text") > 4 || want.NumMessages > 4 {
		have.Stable, want.Stable = "", ""
	}
	if d := cmp.Diff(want, have, cmp.Transformer("empty", func(ids []uint32) []uint32 { return append([]uint32{}, ids...) })); d != "" {
		t.Fatalf("request differs (-want +got):\n%s\nbody: %q", d, body)
	}
	var model string
	if err := json.Unmarshal(body[r.ModelAt:r.ModelEnd], &model); err != nil || model != r.Model {
		t.Fatalf("the model lies at %q", body[r.ModelAt:r.ModelEnd])
	}
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	for name, v := range fields {
		if name == "prompt" || name == "messages" || len(name) >= maxName || len(r.fields) == maxFields {
			continue
		}
		wantValue, wantOK := v.(string)
		if value, ok := r.Field(name); value != wantValue || ok != wantOK {
			t.Fatalf("Field(%q) = %q, %v; want %q, %v\nbody: %q", name, value, ok, wantValue, wantOK, body)
		}
	}
}

func TestParseAgreesWithATree(t *testing.T) {
	w := &writer{rng: rand.New(rand.NewPCG(1, 2))}
	var r Request
	good := 0
	const rounds = 4_000
	for range rounds {
		route := Route(w.rng.IntN(2))
		checkParse(t, route, w.request(), &r)
		if r.Model != "" {
			good++
		}
	}
	if good < rounds/10 {
		t.Errorf("only %d of %d requests were sound", good, rounds)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":[1,2,3],"stream":true}`,
		`{"model":"m","prompt":["a","\ud83d\ude00"],"user":"\u0000"}`,
		`{"model":"m","prompt":[[1],[2.0]],"stream_options":{"include_usage":true}}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]}],"tools":[]}`,
		"{\"model\":\"\xff\",\"prompt\":1e5}",
		strings.Repeat("[", 200),
	} {
		f.Add(false, []byte(s))
		f.Add(true, []byte(s))
	}
	f.Fuzz(func(t *testing.T, chat bool, body []byte) {
		route := Completions
		if chat {
			route = ChatCompletions
		}
		checkParse(t, route, body, new(Request))
	})
}

func TestEveryCutOfARequestIsRefused(t *testing.T) {
	body := `{"model":"m\u0041","prompt":[1,2,3],"a":{"b":[true,false,null,-1.5e+3,"\ud83d\ude00"]},"messages":[{"role":"user","content":["x"]}]}`
	for _, route := range []Route{Completions, ChatCompletions} {
		for i := range len(body) {
			var r Request
			var syntax *SyntaxError
			if err := Parse(route, []byte(body[:i]), &r); !errors.As(err, &syntax) {
				t.Errorf("%q: error is %v", body[:i], err)
			} else if syntax.Offset != i {
				t.Errorf("%q: ends at %d, not at %d", body[:i], i, syntax.Offset)
			}
		}
	}
}
