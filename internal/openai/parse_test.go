package openai

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

// seen is what a test compares of a Request.
type seen struct {
	Model, CacheSalt, User                      string
	Stream, IncludeUsage, Echo, Embeds          bool
	NoCacheRead, CacheUnreported, ForcesTool    bool
	Multimodal, KeepFirst, SideGiven            bool
	Stateful, Background                        bool
	Prompts                                     []Prompt
	Messages, Tools, System                     string
	NumMessages                                 int
	AddSpecialTokens                            *bool
	N, MaxTokens, Truncate, PrefixLen, Priority int
	Stable                                      string
	Items                                       []seenItem
}

// seenItem is what a test compares of an Item.
type seenItem struct {
	Kind    ItemKind
	Message int
	UUID    string
	// Part is its JSON, Content what is hashed; "-" where there is nothing.
	Part, Content string
}

// contentOf is what the item's hash is of.
func contentOf(r *Request, it *Item) string {
	if !it.data.have {
		return "-"
	}
	raw := it.data.of(r.body)
	if it.data.raw {
		return string(raw)
	}
	text := string(appendString(nil, raw, -1))
	if rest, ok := strings.CutPrefix(text, "data:"); ok {
		if _, data, ok := strings.Cut(rest, ","); ok {
			return data
		}
	}
	return text
}

func see(r *Request) seen {
	stable, _ := r.AppendStable(nil)
	text := string(stable[len(r.Model)+1:])
	var items []seenItem
	for i := range r.Items {
		it := &r.Items[i]
		items = append(items, seenItem{it.Kind, it.Message, it.UUID, string(r.body[it.At:it.End]), contentOf(r, it)})
	}
	return seen{
		Model: r.Model, CacheSalt: r.CacheSalt, User: r.User,
		Stream: r.Stream, IncludeUsage: r.IncludeUsage, Echo: r.Echo, Embeds: r.Embeds,
		NoCacheRead: r.NoCacheRead, CacheUnreported: r.CacheUnreported, ForcesTool: r.ForcesTool, Multimodal: r.Multimodal, KeepFirst: r.KeepFirst, SideGiven: r.SideGiven,
		Stateful: r.Stateful, Background: r.Background,
		Prompts:  append([]Prompt(nil), r.Prompts...),
		Messages: string(r.Messages), Tools: string(r.Tools), System: string(r.System), NumMessages: r.NumMessages,
		AddSpecialTokens: r.AddSpecialTokens,
		N:                r.N, MaxTokens: r.MaxTokens, Truncate: r.TruncatePrompt, PrefixLen: r.PrefixLen, Priority: r.Priority,
		Stable: text, Items: items,
	}
}

func TestParse(t *testing.T) {
	text := func(s ...string) (p []Prompt) {
		for _, s := range s {
			p = append(p, Prompt{Text: s})
		}
		return p
	}
	tokens := func(l ...[]uint32) (p []Prompt) {
		for _, l := range l {
			p = append(p, Prompt{Tokens: l, IsTokens: true})
		}
		return p
	}
	for name, tc := range map[string]struct {
		route Route
		body  string
		want  seen
	}{
		"a text prompt": {
			body: `{"model":"m","prompt":"hello"}`,
			want: seen{Model: "m", Prompts: text("hello"), N: 1, Stable: "hello"},
		},
		"every number and flag": {
			body: ` { "model" : "m" , "prompt" : "x" , "stream" : true , "stream_options" : { "a" : [1] , "include_usage" : true } ,
				"echo":true,"logprobs":1,"add_special_tokens":false,"n":3,"max_tokens":7,"truncate_prompt_tokens":-1,
				"prefix_len":64,"cache_salt":"s","user":"u","priority":-5 } `,
			want: seen{
				Model: "m", Prompts: text("x"), N: 3, Stable: "x", Stream: true, IncludeUsage: true, Echo: true, NoCacheRead: true,
				AddSpecialTokens: ptr(false), MaxTokens: 7, Truncate: -1, PrefixLen: 64, CacheSalt: "s", User: "u", Priority: -5,
			},
		},
		"several texts, one with escapes": {
			body: `{"prompt":["a","\u00e9\n\"\\\/\b\f\r\t",""],"model":"m"}`,
			want: seen{Model: "m", Prompts: text("a", "é\n\"\\/\b\f\r\t", ""), N: 1, Stable: "a"},
		},
		"surrogate pairs, and halves of them": {
			body: `{"model":"m","prompt":"\ud83d\ude00 \ud83d \ude00 \ud83d\ud83d\ude00 \ud83dx"}`,
			want: seen{Model: "m", Prompts: text("😀 � � �😀 �x"), N: 1, Stable: "😀 � � �😀 �x"},
		},
		"token ids": {
			body: `{"model":"m","prompt":[1,0 , 4294967295,` + "\n\t" + `7]}`,
			want: seen{Model: "m", Prompts: tokens([]uint32{1, 0, 4294967295, 7}), N: 1, Stable: "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x07\x00\x00\x00"},
		},
		"token ids written as a float": {
			body: `{"model":"m","prompt":[1.0,2e1,-0]}`,
			want: seen{Model: "m", Prompts: tokens([]uint32{1, 20, 0}), N: 1, Stable: "\x01\x00\x00\x00\x14\x00\x00\x00\x00\x00\x00\x00"},
		},
		"lists of token ids": {
			body: `{"model":"m","prompt":[[1,2],[ ],[3]]}`,
			want: seen{Model: "m", Prompts: tokens([]uint32{1, 2}, []uint32{}, []uint32{3}), N: 1, Stable: "\x01\x00\x00\x00\x02\x00\x00\x00"},
		},
		"of a key given twice the last one counts, whatever it was before": {
			body: `{"model":7,"prompt":[[1],["x"]],"stream":true,"user":"u","stream_options":{"include_usage":true},"prompt":[5],"model":"m",` +
				`"stream":null,"user":null,"stream_options":{}}`,
			want: seen{Model: "m", Prompts: tokens([]uint32{5}), N: 1, Stable: "\x05\x00\x00\x00"},
		},
		"keys written with escapes": {
			body: `{"m\u006fdel":"m","\u0070rompt":"x","str\u0065am":true}`,
			want: seen{Model: "m", Prompts: text("x"), N: 1, Stream: true, Stable: "x"},
		},
		"keys of nested objects are not the request's": {
			body: `{"a":{"model":"x","prompt":[1],"stream":true},"model":"m","prompt":"p","b":[{"model":"y"}]}`,
			want: seen{Model: "m", Prompts: text("p"), N: 1, Stable: "p"},
		},
		"wrong types of other fields are the engine's business": {
			body: `{"model":"m","prompt":"x","stream":"ja","n":"3.5","max_tokens":1.5,"priority":[],"user":1,"cache_salt":{},` +
				`"stream_options":3,"echo":null,"prompt_logprobs":null,"tools":{}}`,
			want: seen{Model: "m", Prompts: text("x"), N: 1, Stable: "x"},
		},
		"flags and numbers in other forms that engines take": {
			body: `{"model":"m","prompt":"x","stream":"yes","n":"3","max_tokens":" 1_000 ","add_special_tokens":"off","truncate_prompt_tokens":"150",` +
				`"truncation_side":"left"}`,
			want: seen{Model: "m", Prompts: text("x"), Stream: true, N: 3, MaxTokens: 1000, AddSpecialTokens: ptr(false), Truncate: 150, SideGiven: true,
				Stable: "x"},
		},
		"numbers out of range are clamped": {
			body: `{"model":"m","prompt":"x","n":-2,"max_tokens":1e300,"priority":-99999999999,"prefix_len":12.0}`,
			want: seen{Model: "m", Prompts: text("x"), N: 1, MaxTokens: 1<<31 - 1, Priority: -1 << 31, PrefixLen: 12, Stable: "x"},
		},
		"prompt log-probabilities": {
			body: `{"model":"m","prompt":"x","prompt_logprobs":0}`,
			want: seen{Model: "m", Prompts: text("x"), N: 1, NoCacheRead: true, Stable: "x"},
		},
		"an echo with log-probabilities": {
			body: `{"model":"m","prompt":"x","echo":true,"logprobs":0}`,
			want: seen{Model: "m", Prompts: text("x"), N: 1, Echo: true, NoCacheRead: true, Stable: "x"},
		},
		"an echo alone reads the cache": {
			body: `{"model":"m","prompt":"x","echo":true,"logprobs":null}`,
			want: seen{Model: "m", Prompts: text("x"), N: 1, Echo: true, Stable: "x"},
		},
		"an echo of a chat reads no cache: its log-probabilities are 0 by default": {
			route: ChatCompletions, body: `{"model":"m","messages":[],"echo":"Yes"}`,
			want: seen{Model: "m", N: 1, Messages: "[]", Echo: true, NoCacheRead: true, Stable: "\x00"},
		},
		"an echo of a chat whose log-probabilities are null, which some releases take for 0": {
			route: ChatCompletions, body: `{"model":"m","messages":[],"echo":1,"top_logprobs":null}`,
			want: seen{Model: "m", N: 1, Messages: "[]", Echo: true, NoCacheRead: true, Stable: "\x00"},
		},
		"a search with beams": {
			body: `{"model":"m","prompt":"x","use_beam_search":true}`,
			want: seen{Model: "m", Prompts: text("x"), N: 1, CacheUnreported: true, Stable: "x"},
		},
		"embeddings instead of a prompt": {
			body: `{"model":"m","prompt":null,"prompt_embeds":"AAAA"}`,
			want: seen{Model: "m", N: 1, Embeds: true},
		},
		"a chat": {
			route: ChatCompletions,
			body: `{"model":"m","messages":[{"role":"system","content":"S\n"},{"role":"user","content":"U"},{"role":"assistant","content":null},` +
				`{"role":"user","content":"V"}],"tools":[{"type":"function"}],"max_tokens":5,"max_completion_tokens":6,"prompt":3}`,
			want: seen{
				Model: "m", N: 1, MaxTokens: 6, NumMessages: 4, Tools: `[{"type":"function"}]`, Stable: "S\n\x00U",
				Messages: `[{"role":"system","content":"S\n"},{"role":"user","content":"U"},{"role":"assistant","content":null},{"role":"user","content":"V"}]`,
			},
		},
		"text parts": {
			route: ChatCompletions,
			body:  `{"model":"m","messages":[{"content":[{"text":"a","type":"text"},"b",{"text":"c"}],"role":"user"}]}`,
			want: seen{
				Model: "m", N: 1, NumMessages: 1, Stable: "\x00abc",
				Messages: `[{"content":[{"text":"a","type":"text"},"b",{"text":"c"}],"role":"user"}]`,
			},
		},
		"an image part": {
			route: ChatCompletions,
			body:  `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]}]}`,
			want: seen{
				Model: "m", N: 1, NumMessages: 1, Stable: "\x00a", Multimodal: true,
				Messages: `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]}]`,
				Items:    []seenItem{{Image, 0, "", `{"type":"image_url","image_url":{"url":"data:"}}`, "data:"}},
			},
		},
		"an image part that does not name its type": {
			route: ChatCompletions,
			body:  `{"model":"m","messages":[{"role":"user","content":[{"text":"a","image_url":{"url":"data:"}}]}]}`,
			want: seen{
				Model: "m", N: 1, NumMessages: 1, Stable: "\x00", Multimodal: true,
				Messages: `[{"role":"user","content":[{"text":"a","image_url":{"url":"data:"}}]}]`,
				Items:    []seenItem{{Image, 0, "", `{"text":"a","image_url":{"url":"data:"}}`, "data:"}},
			},
		},
		"a content given twice, first with an image": {
			route: ChatCompletions,
			body:  `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}],"content":"t"}]}`,
			want: seen{
				Model: "m", N: 1, NumMessages: 1, Stable: "\x00t",
				Messages: `[{"role":"user","content":[{"type":"image_url"}],"content":"t"}]`,
			},
		},
		"no messages": {
			route: ChatCompletions,
			body:  `{"model":"m","messages":[]}`,
			want:  seen{Model: "m", N: 1, Messages: `[]`, Stable: "\x00"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r Request
			if err := Parse(tc.route, []byte(tc.body), &r); err != nil {
				t.Fatalf("Parse: %v", err)
			}
			if d := cmp.Diff(tc.want, see(&r)); d != "" {
				t.Errorf("request differs (-want +got):\n%s", d)
			}
			if got := tc.body[r.ModelAt:r.ModelEnd]; got != `"m"` {
				t.Errorf("the model lies at %q", got)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1)
	for name, tc := range map[string]struct {
		route Route
		body  string
		want  string // the error; empty for none
	}{
		"nothing":                       {body: ``, want: "invalid JSON at byte 0: unexpected end"},
		"no object":                     {body: `[1]`, want: "the body must be a JSON object"},
		"trailing bytes":                {body: `{"model":"m","prompt":""} x`, want: "invalid JSON at byte 26: unexpected bytes after the end"},
		"two values":                    {body: `{}{}`, want: "invalid JSON at byte 2: unexpected bytes after the end"},
		"an open string":                {body: `{"model":"m`, want: "invalid JSON at byte 11: unexpected end in a string"},
		"an open object":                {body: `{"model":"m"`, want: "invalid JSON at byte 12: unexpected end"},
		"a bad escape":                  {body: `{"model":"\x00000"}`, want: "invalid JSON at byte 10: invalid escape in a string"},
		"a bad hex escape":              {body: `{"model":"\u00g0"}`, want: "invalid JSON at byte 10: invalid escape in a string"},
		"a control character":           {body: "{\"model\":\"\n\"}", want: "invalid JSON at byte 10: control character in a string"},
		"bytes that are not UTF-8":      {body: "{\"model\":\"aaaaaaaaaaé\xff\"}", want: "invalid JSON at byte 22: invalid UTF-8 in a string"},
		"an encoded surrogate":          {body: "{\"model\":\"\xed\xa0\x80\"}", want: "invalid JSON at byte 10: invalid UTF-8 in a string"},
		"a byte order mark":             {body: "\xef\xbb\xbf{\"model\":\"m\",\"prompt\":\"x\"}"},
		"two byte order marks":          {body: "\xef\xbb\xbf\xef\xbb\xbf{}", want: "invalid JSON at byte 3: expected a value"},
		"a byte order mark and an end":  {body: "\xef\xbb\xbf", want: "invalid JSON at byte 3: unexpected end"},
		"a comma too many":              {body: `{"model":"m",}`, want: "invalid JSON at byte 13: expected a key"},
		"no number":                     {body: `{"a":-}`, want: "invalid JSON at byte 6: invalid number"},
		"a leading zero":                {body: `{"a":01}`, want: "invalid JSON at byte 6: a number cannot begin with 0"},
		"a leading zero among ids":      {body: `{"prompt":[1,02]}`, want: "invalid JSON at byte 14: a number cannot begin with 0"},
		"a comma too many among ids":    {body: `{"prompt":[1,]}`, want: "invalid JSON at byte 13: expected a value"},
		"ids without a comma":           {body: `{"prompt":[1 2]}`, want: "invalid JSON at byte 13: expected a comma or the end of the list or object"},
		"NaN":                           {body: `{"a":NaN}`, want: "invalid JSON at byte 5: expected a value"},
		"the deepest that is allowed":   {body: `{"model":"m","prompt":"","a":` + deep + `}`},
		"one level deeper":              {body: `{"model":"m","prompt":"","a":[` + deep + `]}`, want: "the JSON nests deeper than the 128 levels that are accepted, at byte 156"},
		"no model":                      {body: `{"prompt":"x"}`, want: "model: is missing"},
		"a null model":                  {body: `{"model":null,"prompt":"x"}`, want: "model: is missing"},
		"an empty model":                {body: `{"model":"","prompt":"x"}`, want: "model: is empty"},
		"a model that is a number":      {body: `{"model":5,"prompt":"x"}`, want: "model: must be a string"},
		"a model replaced by a number":  {body: `{"model":"m","prompt":"x","model":5}`, want: "model: must be a string"},
		"no prompt":                     {body: `{"model":"m"}`, want: "prompt: is missing"},
		"a null prompt":                 {body: `{"model":"m","prompt":null}`, want: "prompt: is missing"},
		"an empty prompt list":          {body: `{"model":"m","prompt":[ ]}`, want: "prompt: is empty"},
		"a prompt that is a number":     {body: `{"model":"m","prompt":5}`, want: "prompt: " + wrongPrompt},
		"a prompt that is an object":    {body: `{"model":"m","prompt":{"a":[1]}}`, want: "prompt: " + wrongPrompt},
		"texts and ids mixed":           {body: `{"model":"m","prompt":["a",1]}`, want: "prompt: " + wrongPrompt},
		"ids and texts mixed":           {body: `{"model":"m","prompt":[1,"a"]}`, want: "prompt: " + wrongPrompt},
		"lists and ids mixed":           {body: `{"model":"m","prompt":[[1],2]}`, want: "prompt: " + wrongPrompt},
		"ids and lists mixed":           {body: `{"model":"m","prompt":[1,[2]]}`, want: "prompt: " + wrongPrompt},
		"lists of lists of lists":       {body: `{"model":"m","prompt":[[[1]]]}`, want: "prompt: " + wrongPrompt},
		"a negative id":                 {body: `{"model":"m","prompt":[1,-1]}`, want: "prompt: " + wrongToken},
		"an id beyond 32 bits":          {body: `{"model":"m","prompt":[4294967296]}`, want: "prompt: " + wrongToken},
		"an id with a fraction":         {body: `{"model":"m","prompt":[1.5]}`, want: "prompt: " + wrongToken},
		"a prompt replaced by null":     {body: `{"model":"m","prompt":"x","prompt":null}`, want: "prompt: is missing"},
		"no messages":                   {route: ChatCompletions, body: `{"model":"m","prompt":"x"}`, want: "messages: is missing"},
		"messages that are a text":      {route: ChatCompletions, body: `{"model":"m","messages":"x"}`, want: "messages: must be a list"},
		"a message that is a text":      {route: ChatCompletions, body: `{"model":"m","messages":[{},"x"]}`, want: "messages: every message must be an object"},
		"no input":                      {route: Responses, body: `{"model":"m","messages":[]}`, want: "input: is missing"},
		"an input that is a number":     {route: Responses, body: `{"model":"m","input":5}`, want: "input: must be a string or a list"},
		"an input item that is a text":  {route: Responses, body: `{"model":"m","input":["x"]}`, want: "input: every message must be an object"},
		"nothing to embed":              {route: Embeddings, body: `{"model":"m","prompt":"x"}`, want: "input: is missing"},
		"an object to embed":            {route: Embeddings, body: `{"model":"m","input":{}}`, want: "input: " + wrongPrompt},
		"texts and chats mixed":         {route: Embeddings, body: `{"model":"m","input":["x",{}]}`, want: "input: " + wrongPrompt},
		"chats and texts mixed":         {route: Embeddings, body: `{"model":"m","input":[{},"x"]}`, want: "input: " + mixedChats},
		"chats to complete":             {body: `{"model":"m","prompt":[{}]}`, want: "prompt: " + wrongPrompt},
		"a bad chat to embed":           {route: Embeddings, body: `{"model":"m","messages":["x"]}`, want: "messages: every message must be an object"},
		"lists of lists to chat":        {route: ChatCompletions, body: `{"model":"m","messages":[[{}]]}`, want: "messages: every message must be an object"},
		"Anthropic without messages":    {route: Messages, body: `{"model":"m","system":"x","input":"x"}`, want: "messages: is missing"},
		"a syntax error behind a field": {body: `{"model":5,"prompt":7,}`, want: "invalid JSON at byte 22: expected a key"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			var r Request
			if err := Parse(tc.route, []byte(tc.body), &r); err != nil {
				got = err.Error()
				var s *SyntaxError
				var f *FieldError
				if !errors.As(err, &s) && !errors.As(err, &f) {
					t.Errorf("error is a %T", err)
				}
			}
			if got != tc.want {
				t.Errorf("error is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestARequestThatNamesNoModelIsForTheGivenOne(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":"x"}`:              "given",
		`{"model":null,"prompt":"x"}`: "given",
		`{"model":"m","prompt":"x"}`:  "m",
		`{"model":"","prompt":"x"}`:   "model: is empty",
		`{"model":7,"prompt":"x"}`:    "model: must be a string",
		`{"model":null}`:              "prompt: is missing",
	} {
		var r Request
		err := ParseFor(Completions, []byte(body), "given", &r)
		got := r.Model
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
		err = Parse(Completions, []byte(body), &r)
		if none := errors.Is(err, ErrNoModel); none != (want == "given" || want == "prompt: is missing") {
			t.Errorf("%s without a given model: %v", body, err)
		}
	}
}

// TestTextAt: long texts of chats are known, with what their escapes stand for; halves of surrogate pairs are not.
func TestTextAt(t *testing.T) {
	long := strings.Repeat("x", minText)
	body := strings.ReplaceAll(`{"model":"a\n-","messages":[{"role":"system","content":"-"},{"content":"dropped-","content":[{"type":"text","text":"\ud83d\ude00\n\u00e9-"},`+
		`{"type":"text","text":"\ud83d-"},{"type":"image_url","image_url":{"url":"-"}},"y\\-","short"]}]}`, "-", long)
	for route, want := range map[Route][]string{ChatCompletions: {long, "dropped" + long, "😀\né" + long, `y\` + long}, Messages: nil} {
		var r Request
		if err := Parse(route, []byte(body), &r); err != nil {
			t.Fatal(err)
		}
		var got []string
		for at := range body {
			if text, end, ok := r.TextAt(at); ok {
				got = append(got, text)
				if body[at] != '"' || body[end-1] != '"' {
					t.Errorf("%q lies at %q", text, body[at:end])
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", route, diff)
		}
	}
	many := `{"model":"m","messages":[{"role":"user","content":[""` + strings.Repeat(`,"`+long+`"`, 2*maxTexts) + `]}]}`
	var r Request
	if err := Parse(ChatCompletions, []byte(many), &r); err != nil || len(r.texts) != maxTexts {
		t.Errorf("%d texts, %v", len(r.texts), err)
	}
}
