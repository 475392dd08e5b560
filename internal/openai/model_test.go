package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// writer makes random requests: mostly sound ones, in every way that JSON can be written.
type writer struct {
	rng *rand.Rand
	b   []byte
}

func (w *writer) odds(n int) bool { return w.rng.IntN(n) == 0 }

func (w *writer) space() {
	for w.odds(8) {
		w.b = append(w.b, " \n\r\t"[w.rng.IntN(4)])
	}
}

func (w *writer) str(s string) {
	w.b = append(w.b, '"')
	for _, r := range s {
		switch {
		case w.odds(10) && r > 0xffff:
			w.b = fmt.Appendf(w.b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		case w.odds(10) || r < ' ' || r == '"' || r == '\\':
			w.b = fmt.Appendf(w.b, `\u%04x`, min(r, 0xffff))
		default:
			w.b = utf8.AppendRune(w.b, r)
		}
	}
	w.b = append(w.b, '"')
}

func (w *writer) text() string {
	var s []rune
	for range w.rng.IntN(12) {
		s = append(s, []rune("aB \n\t\"\\/é世😀\u2028\x7f\x00")[w.rng.IntN(14)])
	}
	return string(s)
}

func (w *writer) list(n int, each func()) {
	w.b = append(w.b, '[')
	for i := range n {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.space()
		each()
		w.space()
	}
	w.b = append(w.b, ']')
}

func (w *writer) object(keys []string, each func(key string)) {
	w.b = append(w.b, '{')
	for i := range w.rng.IntN(len(keys) + 2) {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		key := keys[w.rng.IntN(len(keys))]
		w.space()
		w.str(key)
		w.space()
		w.b = append(w.b, ':')
		w.space()
		each(key)
		w.space()
	}
	w.b = append(w.b, '}')
}

func (w *writer) number() {
	w.b = append(w.b, [...]string{
		"0", "1", "-1", "17", "4294967295", "4294967296", "1.5", "2.0", "1e3", "-0", "1E+2", "99999999999999999999", "1e400", "1e-400", "0.0",
	}[w.rng.IntN(15)]...)
}

func (w *writer) any(depth int) {
	switch n := w.rng.IntN(8); {
	case n == 0:
		w.number()
	case n == 1:
		w.b = append(w.b, "true"...)
	case n == 2:
		w.b = append(w.b, "false"...)
	case n == 3:
		w.b = append(w.b, "null"...)
	case n < 6 || depth == 0:
		w.str(w.text())
	case n == 6:
		w.list(w.rng.IntN(4), func() { w.any(depth - 1) })
	default:
		w.object([]string{"model", "prompt", "text", "type", "role", "a"}, func(string) { w.any(depth - 1) })
	}
}

func (w *writer) id() {
	if w.odds(40) {
		w.number()
		return
	}
	w.b = strconv.AppendUint(w.b, uint64(w.rng.Uint32N(200_000)), 10)
}

func (w *writer) value(key string) {
	if w.odds(12) {
		w.any(3)
		return
	}
	switch key {
	case "prompt":
		switch w.rng.IntN(4) {
		case 0:
			w.str(w.text())
		case 1:
			w.list(w.rng.IntN(4), func() { w.str(w.text()) })
		case 2:
			w.list(w.rng.IntN(30), w.id)
		default:
			w.list(w.rng.IntN(4), func() { w.list(w.rng.IntN(9), w.id) })
		}
	case "messages":
		w.list(w.rng.IntN(5), func() { w.object([]string{"role", "content", "name"}, w.value) })
	case "role":
		w.str([]string{"user", "system", "developer", "assistant"}[w.rng.IntN(4)])
	case "content":
		if w.odds(2) {
			w.str(w.text())
			break
		}
		w.list(w.rng.IntN(3), func() { w.object([]string{"type", "text", "image_url"}, w.value) })
	case "type":
		w.str([]string{"text", "image_url", "refusal"}[w.rng.IntN(3)])
	case "stream_options":
		w.object([]string{"include_usage", "x"}, w.value)
	case "stream", "include_usage", "echo", "add_special_tokens":
		w.b = append(w.b, []string{"true", "false"}[w.rng.IntN(2)]...)
	case "n", "max_tokens", "max_completion_tokens", "truncate_prompt_tokens", "prefix_len", "priority", "logprobs", "top_logprobs":
		w.number()
	default:
		w.str(w.text())
	}
}

var requestKeys = []string{
	"prompt", "messages", "stream_options", "stream", "echo", "add_special_tokens", "n", "max_tokens", "max_completion_tokens", "truncate_prompt_tokens",
	"prefix_len", "priority", "logprobs", "top_logprobs", "prompt_logprobs", "user", "cache_salt", "tools", "model", "prompt_embeds", "x",
}

// request is a random body, which is now and then damaged.
func (w *writer) request() []byte {
	w.b = append(w.b[:0], `{"model":"m","prompt":[1],"messages":[],"z":`...)
	w.any(3)
	w.b = append(w.b, ',')
	at := len(w.b)
	w.object(requestKeys, w.value)
	if len(w.b) == at+2 {
		w.b = w.b[:at-1]
		w.b = append(w.b, '}')
	} else {
		w.b = append(w.b[:at], w.b[at+1:]...)
	}
	for len(w.b) > 0 && w.odds(6) {
		i := w.rng.IntN(len(w.b))
		switch w.rng.IntN(3) {
		case 0:
			w.b = append(w.b[:i], w.b[i+1:]...)
		case 1:
			w.b[i] = byte(w.rng.Uint32())
		default:
			w.b = w.b[:i+1]
		}
	}
	return w.b
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
