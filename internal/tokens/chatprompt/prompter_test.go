package chatprompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
	"github.com/kvasir-dev/kvasir/test/race"
)

// newPrompter is one of Qwen2.5 with a cache of its own.
func newPrompter(t testing.TB) *Prompter {
	t.Helper()
	return newPrompterOf(t, "0.24.0")
}

// newPrompterOf makes prompts as a release does.
func newPrompterOf(t testing.TB, release string) *Prompter {
	t.Helper()
	dir := unpacked(t, qwen)
	enc, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return NewPrompter(enc, tokenizer.NewCache(32<<20), newRenderer(t, "", Options{Dir: dir, Release: release, Encoder: enc}), nil)
}

// growing is a conversation of n turns: each has its own text, and a longer one begins with all of a shorter one.
func growing(n int) []byte {
	messages := []map[string]any{{"role": "system", "content": "You help. " + strings.Repeat("Be careful with what you say. ", 10)}}
	for i := range n {
		role := []string{"user", "assistant"}[i%2]
		text := fmt.Sprintf("Turn %d. ", i) + strings.Repeat(fmt.Sprintf("What number %d is about, nobody knows. ", i), 25)
		messages = append(messages, map[string]any{"role": role, "content": text})
	}
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages, "tools": []any{map[string]any{
		"type": "function", "function": map[string]any{"name": "get", "description": "Gets.", "parameters": map[string]any{"type": "object"}},
	}}})
	if err != nil {
		panic(err) // cannot be: nothing in it is unusual
	}
	return body
}

// TestPrompterKeysAreThoseOfTheIDs: whatever the cache knows, keys and length are those of the ids made without it.
func TestPrompterKeysAreThoseOfTheIDs(t *testing.T) {
	p := newPrompter(t)
	cases := map[string]struct {
		route openai.Route
		body  []byte
	}{
		"text":           {openai.Completions, []byte(`{"model":"m","prompt":"Hello <|im_start|> world` + strings.Repeat(" and more", 100) + `"}`)},
		"several texts":  {openai.Completions, []byte(`{"model":"m","prompt":["One text of some words, and then some more of them","two"]}`)},
		"salted text":    {openai.Completions, []byte(`{"model":"m","cache_salt":"s","prompt":"Hello world, this is long enough to be a whole block or more"}`)},
		"shortened text": {openai.Completions, []byte(`{"model":"m","truncate_prompt_tokens":20,"prompt":"` + strings.Repeat("one two three ", 20) + `"}`)},
		"first of text":  {openai.Completions, []byte(`{"model":"m","truncate_prompt_tokens":20,"truncation_side":"left","prompt":"` + strings.Repeat("one two three ", 20) + `"}`)},
		"embeddings":     {openai.Embeddings, []byte(`{"model":"m","input":"What is to be embedded, in some words that fill a block or two"}`)},
	}
	for n := range 12 {
		cases[fmt.Sprintf("chat of %d turns", n)] = struct {
			route openai.Route
			body  []byte
		}{openai.ChatCompletions, growing(n)}
	}
	cold := NewPrompter(p.tokenizer, nil, p.chats, nil)
	for round := range 3 {
		for name, tc := range cases {
			var req openai.Request
			if err := openai.Parse(tc.route, tc.body, &req); err != nil {
				t.Fatal(err)
			}
			ids, err := cold.AppendTokens(t.Context(), nil, tc.body, &req)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if again, err := p.AppendTokens(t.Context(), []uint32{7}, tc.body, &req); err != nil || !slices.Equal(again, append([]uint32{7}, ids...)) {
				t.Fatalf("%s, round %d: with a cache %d, without %d: %v", name, round, again, ids, err)
			}
			for _, block := range []int{8, 16, 64} {
				root := kvblock.Key(99 + round)
				want := kvblock.AppendKeys([]kvblock.Key{1}, root, ids, block)
				got, n, err := p.AppendKeys(t.Context(), []kvblock.Key{1}, tc.body, &req, tokenizer.Chain{Root: root, BlockTokens: block})
				if err != nil || n != len(ids) || !slices.Equal(got, want) {
					t.Fatalf("%s, round %d, blocks of %d: %d of %d tokens, keys %x, want %x: %v", name, round, block, n, len(ids), got, want, err)
				}
			}
		}
	}
}

func TestPrompterRefuses(t *testing.T) {
	p := newPrompter(t)
	noChats := NewPrompter(p.tokenizer, nil, nil, unsupported("this template"))
	if p.Chats() != nil || !errors.Is(noChats.Chats(), ErrUnsupported) {
		t.Errorf("chats: %v, %v", p.Chats(), noChats.Chats())
	}
	cases := map[string]struct {
		prompter *Prompter
		route    openai.Route
		body     string
	}{
		"chats without a template": {noChats, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"a"}]}`},
		"a template of its own":    {p, openai.ChatCompletions, `{"model":"m","chat_template":"x","messages":[{"role":"user","content":"a"}]}`},
		"the model's length":       {p, openai.Completions, `{"model":"m","prompt":"a","truncate_prompt_tokens":-1}`},
		"embeds":                   {p, openai.Completions, `{"model":"m","prompt_embeds":"AAAA"}`},
		"ids":                      {p, openai.Completions, `{"model":"m","prompt":[1,2,3]}`},
		"a word without an end":    {p, openai.Completions, `{"model":"m","prompt":"` + strings.Repeat("a", tokenizer.MaxWord+1) + `"}`},
	}
	for name, tc := range cases {
		var req openai.Request
		if err := openai.Parse(tc.route, []byte(tc.body), &req); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		keys, n, err := tc.prompter.AppendKeys(t.Context(), []kvblock.Key{1}, []byte(tc.body), &req, tokenizer.Chain{Root: 1, BlockTokens: 16})
		if !errors.Is(err, ErrUnsupported) || len(keys) != 1 || n != 0 {
			t.Errorf("%s: %v, %d keys, %d tokens", name, err, len(keys), n)
		}
	}
}

// TestPrompterAllocations: a conversation whose turns are known but for the newest costs few allocations.
func TestPrompterAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("pools forget under the race detector")
	}
	p := newPrompter(t)
	body := growing(24)
	var req openai.Request
	var keys []kvblock.Key
	chain := tokenizer.Chain{Root: 5, BlockTokens: 16}
	run := func() {
		if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
			t.Fatal(err)
		}
		var err error
		if keys, _, err = p.AppendKeys(t.Context(), keys[:0], body, &req, chain); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(20, run); n > 4 {
		t.Errorf("%v allocations for a known conversation", n)
	}
}

// BenchmarkKeys measures the way from a request's bytes to block keys: a conversation of 24 turns, all of them seen before
// but the newest.
func BenchmarkKeys(b *testing.B) {
	p := newPrompter(b)
	var req openai.Request
	var keys []kvblock.Key
	chain := tokenizer.Chain{Root: 5, BlockTokens: 16}
	tokens := 0
	run := func(body []byte) {
		if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
			b.Fatal(err)
		}
		var err error
		if keys, tokens, err = p.AppendKeys(b.Context(), keys[:0], body, &req, chain); err != nil {
			b.Fatal(err)
		}
	}
	known := string(growing(23))
	run([]byte(known))
	at := strings.LastIndex(known, `"}],"model"`)
	turn := `"},{"role":"assistant","content":"` + strings.Repeat("new 00000000 words, ", 20)
	body := []byte(known[:at] + turn + known[at:])
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		for from := at; ; from += 8 { // the newest turn is new each time
			n := bytes.Index(body[from:], []byte("new "))
			if n < 0 {
				break
			}
			from += n + 4
			copy(body[from:], fmt.Appendf(nil, "%08d", i))
		}
		i++
		run(body)
	}
	b.ReportMetric(float64(tokens), "tokens")
}
