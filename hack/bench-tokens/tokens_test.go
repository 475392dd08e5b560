// Package benchtokens measures internal/tokenizer beside others; see run.sh.
package benchtokens

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	tiktoken "github.com/tiktoken-go/tokenizer"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/tokenizer"
)

const promptBytes = 400_000 // of 100k tokens or more

// BenchmarkCold encodes text that has not been seen before.
func BenchmarkCold(b *testing.B) {
	ctx := context.Background()
	for _, dir := range dirs(b) {
		b.Run("kvasir/"+filepath.Base(dir), func(b *testing.B) {
			t := model(b, dir)
			var ids []uint32
			corpus()
			measure(b, promptBytes, func(i int) {
				var err error
				if ids, err = t.EncodeContext(ctx, ids[:0], excerpt(i, promptBytes), false); err != nil {
					b.Fatal(err)
				}
			})
			b.ReportMetric(float64(len(ids)), "tokens")
		})
	}
	b.Run("tiktoken-go/o200k", func(b *testing.B) {
		t, err := tiktoken.Get(tiktoken.O200kBase)
		if err != nil {
			b.Fatal(err)
		}
		measure(b, promptBytes, func(i int) {
			if _, _, err := t.Encode(excerpt(i, promptBytes)); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("encoding-json/parse", func(b *testing.B) {
		var raw [32][]byte
		for i := range raw {
			raw[i] = request(excerpt(i, promptBytes))
		}
		measure(b, promptBytes, func(i int) { parse(b, raw[i%len(raw)]) })
	})
}

// request is a chat request with one message.
func request(content string) []byte {
	raw, err := json.Marshal(map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": content}}})
	if err != nil {
		panic(err)
	}
	return raw
}

func parse(b *testing.B, raw []byte) {
	b.Helper()
	var r struct {
		Model    string
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		b.Fatal(err)
	}
}

// conversation is a chat as Qwen's template writes it, the newest turn of it about 100 tokens that are different every
// time.
type conversation struct {
	text []byte
	last int // where the newest turn's words are
}

const newestBytes = 400

func newConversation(turns, turnBytes int) *conversation {
	var out bytes.Buffer
	out.WriteString("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n")
	for i := range turns - 1 {
		fmt.Fprintf(&out, "<|im_start|>%s\n%s<|im_end|>\n", []string{"user", "assistant"}[i%2], excerpt(i, turnBytes))
	}
	out.WriteString("<|im_start|>user\n")
	c := &conversation{last: out.Len()}
	out.WriteString(strings.Repeat(" ", newestBytes))
	out.WriteString("<|im_end|>\n<|im_start|>assistant\n")
	c.text = out.Bytes()
	return c
}

// turn is the conversation with the i-th newest turn, valid until the next one.
func (c *conversation) turn(i int) string {
	src := corpus()
	at := (i*1009 + 7) * 131 % (len(src) - newestBytes)
	n := copy(c.text[c.last:c.last+newestBytes], src[at:])
	for j := range n { // the copy may begin and end inside a character
		if c.text[c.last+j] >= 0x80 {
			c.text[c.last+j] = 'x'
		}
	}
	return unsafe.String(&c.text[0], len(c.text))
}

// BenchmarkConversation makes block keys of a chat of which all but the newest turn is known.
func BenchmarkConversation(b *testing.B) {
	ctx := context.Background()
	chain := tokenizer.Chain{Root: 42, BlockTokens: 16}
	for name, size := range map[string]struct{ turns, bytes int }{"8k": {24, 1180}, "32k": {48, 2400}} {
		c := newConversation(size.turns, size.bytes)
		b.Run("kvasir/text-to-keys/"+name, func(b *testing.B) {
			t := model(b, models+"/qwen2_5")
			space := tokenizer.NewCache(256 << 20).Space("")
			var keys []kvblock.Key
			tokens := 0
			encode := func(i int) {
				var err error
				if keys, tokens, err = t.AppendKeys(ctx, space, keys[:0], c.turn(i), false, chain); err != nil {
					b.Fatal(err)
				}
			}
			encode(1 << 20)
			measure(b, len(c.text), encode)
			b.ReportMetric(float64(tokens), "tokens")
			b.ReportMetric(float64(len(keys)), "blocks")
		})
		b.Run("kvasir/text-to-ids/"+name, func(b *testing.B) {
			t := model(b, models+"/qwen2_5")
			space := tokenizer.NewCache(256 << 20).Space("")
			var ids []uint32
			measure(b, len(c.text), func(i int) {
				var err error
				if ids, err = t.EncodeCached(ctx, space, ids[:0], c.turn(i), false); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run("tiktoken-go/o200k/"+name, func(b *testing.B) {
			t, err := tiktoken.Get(tiktoken.O200kBase)
			if err != nil {
				b.Fatal(err)
			}
			measure(b, len(c.text), func(i int) {
				if _, _, err := t.Encode(c.turn(i)); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run("encoding-json/parse/"+name, func(b *testing.B) {
			raw := request(c.turn(0))
			measure(b, len(c.text), func(int) { parse(b, raw) })
		})
	}
}

// BenchmarkPrompt makes block keys of long prompts: never seen, and seen.
func BenchmarkPrompt(b *testing.B) {
	ctx := context.Background()
	chain := tokenizer.Chain{Root: 42, BlockTokens: 16}
	for _, dir := range dirs(b) {
		for _, warm := range []bool{false, true} {
			b.Run(fmt.Sprintf("kvasir/%s/warm=%v", filepath.Base(dir), warm), func(b *testing.B) {
				t := model(b, dir)
				space := tokenizer.NewCache(256 << 20).Space("")
				var keys []kvblock.Key
				tokens := 0
				text := excerpt(0, promptBytes)
				encode := func(i int) {
					if !warm {
						text = excerpt(i, promptBytes)
						if n := len(corpus()) / promptBytes; i%n == n-1 {
							space = tokenizer.NewCache(256 << 20).Space("")
						}
					}
					var err error
					if keys, tokens, err = t.AppendKeys(ctx, space, keys[:0], text, false, chain); err != nil {
						b.Fatal(err)
					}
				}
				encode(0)
				measure(b, len(text), encode)
				b.ReportMetric(float64(tokens), "tokens")
			})
		}
	}
}

// BenchmarkWarmIDs copies the ids of text that is all known.
func BenchmarkWarmIDs(b *testing.B) {
	ctx := context.Background()
	for _, dir := range dirs(b) {
		b.Run("kvasir/"+filepath.Base(dir), func(b *testing.B) {
			t := model(b, dir)
			space := tokenizer.NewCache(256 << 20).Space("")
			text := excerpt(0, promptBytes)
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

// BenchmarkLoad loads a tokenizer, and tells what it keeps and the most it needed.
func BenchmarkLoad(b *testing.B) {
	for _, dir := range dirs(b) {
		b.Run("kvasir/"+filepath.Base(dir), func(b *testing.B) {
			folder := b.TempDir()
			size := unpack(b, dir, folder)
			var t *tokenizer.Tokenizer
			load := func(int) {
				var err error
				if t, err = tokenizer.Load(folder); err != nil {
					b.Fatal(err)
				}
			}
			kept, peak := memory(func() { load(0) })
			measure(b, size, load)
			runtime.KeepAlive(t)
			b.ReportMetric(float64(size)/1e6, "file-MB")
			b.ReportMetric(float64(kept)/1e6, "kept-MB")
			b.ReportMetric(float64(peak)/float64(size), "peak/file")
		})
	}
	b.Run("encoding-json/qwen2_5", func(b *testing.B) {
		raw := unzip(b, models+"/qwen2_5/tokenizer.json.gz")
		measure(b, len(raw), func(int) {
			var all any
			if err := json.Unmarshal(raw, &all); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// unpack writes a model's tokenizer.json into folder, and tells its size.
func unpack(b *testing.B, dir, folder string) int {
	b.Helper()
	raw := unzip(b, filepath.Join(dir, "tokenizer.json.gz"))
	if err := os.WriteFile(filepath.Join(folder, "tokenizer.json"), raw, 0o600); err != nil {
		b.Fatal(err)
	}
	return len(raw)
}
