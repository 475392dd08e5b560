// Package benchtokens measures the way from a request to its tokens and block keys beside others; see run.sh.
package benchtokens

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	tiktoken "github.com/tiktoken-go/tokenizer"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

const textBytes = 400_000

// chain is how all block keys here are made.
var chain = tokenizer.Chain{Root: 42, BlockTokens: 16}

// cacheBytes is the size of the caches here.
const cacheBytes = 256 << 20

func o200k(b *testing.B) func(text string) {
	b.Helper()
	t, err := tiktoken.Get(tiktoken.O200kBase)
	if err != nil {
		b.Fatal(err)
	}
	return func(text string) {
		if _, _, err := t.Encode(text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCold encodes text that has not been seen before.
func BenchmarkCold(b *testing.B) {
	ctx := context.Background()
	for _, c := range corpora {
		for _, dir := range dirs(b) {
			b.Run(c.name+"/kvasir/"+filepath.Base(dir), func(b *testing.B) {
				t := model(b, dir)
				text := c.text()
				var ids []uint32
				measure(b, textBytes, func(i int) {
					var err error
					if ids, err = t.EncodeContext(ctx, ids[:0], excerpt(text, i, textBytes), false); err != nil {
						b.Fatal(err)
					}
				})
			})
		}
		b.Run(c.name+"/tiktoken-go/o200k", func(b *testing.B) {
			encode, text := o200k(b), c.text()
			measure(b, textBytes, func(i int) { encode(excerpt(text, i, textBytes)) })
		})
		b.Run(c.name+"/encoding-json", func(b *testing.B) {
			text := c.text()
			var raw [32][]byte
			for i := range raw {
				raw[i] = completion(excerpt(text, i, textBytes))
			}
			measure(b, textBytes, func(i int) { parse(b, raw[i%len(raw)]) })
		})
	}
}

// BenchmarkWarm copies the ids of text that is all known.
func BenchmarkWarm(b *testing.B) {
	ctx := context.Background()
	for _, dir := range dirs(b) {
		b.Run("kvasir/"+filepath.Base(dir), func(b *testing.B) {
			t := model(b, dir)
			space := tokenizer.NewCache(cacheBytes).Space("")
			text := excerpt(sources(), 0, textBytes)
			var ids []uint32
			measure(b, len(text), func(int) {
				var err error
				if ids, err = t.EncodeCached(ctx, space, ids[:0], text, false); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// completion is a request with one prompt.
func completion(prompt string) []byte {
	raw, err := json.Marshal(map[string]any{"model": "m", "prompt": prompt, "max_tokens": 500, "stream": true})
	if err != nil {
		panic(err)
	}
	return raw
}

// parse reads a request as a server without a scanner would.
func parse(b *testing.B, raw []byte) {
	b.Helper()
	var r struct {
		Model, Prompt string
		Messages      []struct{ Role, Content string }
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		b.Fatal(err)
	}
}

// promptTokens is the length of a long prompt, as the beginning of the text has it.
const promptTokens = 103_000 // so that the shortest has 100k

// longPrompt is the i-th piece of code of about promptTokens tokens.
func longPrompt(t *tokenizer.Tokenizer, i int) string {
	text := excerpt(sources(), 0, textBytes)
	ids, err := t.Encode(nil, text, false)
	if err != nil {
		panic(err)
	}
	return excerpt(sources(), i, textBytes*promptTokens/len(ids))
}

// BenchmarkPrompt goes from the bytes of a completion request with a prompt of 100k tokens to its block keys.
func BenchmarkPrompt(b *testing.B) {
	ctx := context.Background()
	for _, warm := range []bool{false, true} {
		state := map[bool]string{false: "cold", true: "warm"}[warm]
		for _, dir := range dirs(b) {
			b.Run(fmt.Sprintf("%s/kvasir/%s", state, filepath.Base(dir)), func(b *testing.B) {
				t := model(b, dir)
				fresh := func() *chatprompt.Prompter {
					return chatprompt.NewPrompter(t, tokenizer.NewCache(cacheBytes), nil, nil)
				}
				prompter := fresh()
				bodies := make([][]byte, 40)
				for i := range bodies {
					bodies[i] = completion(longPrompt(t, i))
				}
				var req openai.Request
				var keys []kvblock.Key
				tokens := 0
				route := func(body []byte) {
					if err := openai.Parse(openai.Completions, body, &req); err != nil {
						b.Fatal(err)
					}
					var err error
					if keys, tokens, err = prompter.AppendKeys(ctx, keys[:0], body, &req, chain); err != nil {
						b.Fatal(err)
					}
				}
				route(bodies[0])
				measure(b, len(bodies[0]), func(i int) {
					switch {
					case warm:
						i = 0
					case i%len(bodies) == 0:
						prompter = fresh()
					}
					route(bodies[i%len(bodies)])
				})
				b.ReportMetric(float64(tokens), "tokens")
				b.ReportMetric(float64(len(keys)), "blocks")
			})
		}
	}
	t := model(b, models+"/qwen2_5")
	b.Run("tiktoken-go/o200k", func(b *testing.B) {
		encode, text := o200k(b), longPrompt(t, 0)
		measure(b, len(text), func(int) { encode(text) })
	})
	b.Run("encoding-json", func(b *testing.B) {
		body := completion(longPrompt(t, 0))
		measure(b, len(body), func(int) { parse(b, body) })
	})
}

// BenchmarkWorst encodes a MiB of what is worst.
func BenchmarkWorst(b *testing.B) {
	for _, dir := range dirs(b) {
		for _, piece := range []string{"a", "ab", "A", " ", "\n ", "<", "'", "中文字", "a\u0301", "🙂", "\x00"} {
			b.Run(fmt.Sprintf("kvasir/%s/%q", filepath.Base(dir), piece), func(b *testing.B) {
				t := model(b, dir)
				text := strings.Repeat(piece, 1<<20/len(piece))
				var ids []uint32
				measure(b, len(text), func(int) {
					var err error
					if ids, err = t.Encode(ids[:0], text, false); err != nil {
						b.Fatal(err)
					}
				})
			})
		}
	}
}
