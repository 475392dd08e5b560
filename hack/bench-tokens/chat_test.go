package benchtokens

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// chat is a chat request whose newest turn is different every time, about 100 tokens of code.
type chat struct {
	body []byte
	last int // where the newest turn's words are
}

const newestBytes = 340

func newChat(turns, turnBytes int) *chat {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}}
	for i := range turns - 1 {
		messages = append(messages, message{[]string{"user", "assistant"}[i%2], excerpt(sources(), i, turnBytes)})
	}
	mark := strings.Repeat("@", newestBytes)
	messages = append(messages, message{"user", mark})
	body, err := json.Marshal(map[string]any{"model": "Qwen/Qwen2.5-7B-Instruct", "messages": messages, "stream": true, "max_tokens": 500})
	if err != nil {
		panic(err)
	}
	return &chat{body: body, last: bytes.Index(body, []byte(mark))}
}

// turn is the request with the i-th newest turn, valid until the next one.
func (c *chat) turn(i int) []byte {
	src := sources()
	at := (i*1009 + 7) * 131 % (len(src) - newestBytes)
	words := c.body[c.last : c.last+newestBytes]
	copy(words, src[at:])
	for j, b := range words { // nothing that JSON would write otherwise
		if b >= 0x80 || b < ' ' || b == '"' || b == '\\' {
			words[j] = ' '
		}
	}
	return c.body
}

// BenchmarkChat goes from the bytes of a chat request to the keys of its blocks, as the picker does. All but the newest
// turn has been seen before.
func BenchmarkChat(b *testing.B) {
	ctx := context.Background()
	t := model(b, models+"/qwen2_5")
	r, err := chatprompt.New(chatprompt.Options{Dir: models + "/qwen2_5", Release: "0.17.0", Encoder: t})
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []struct {
		name         string
		turns, bytes int
	}{{"8k-24-turns", 24, 1180}, {"32k-48-turns", 48, 2400}} {
		c := newChat(size.turns, size.bytes)
		b.Run(size.name+"/kvasir", func(b *testing.B) {
			prompter := chatprompt.NewPrompter(t, tokenizer.NewCache(cacheBytes), r, nil)
			var req openai.Request
			var keys []kvblock.Key
			tokens := 0
			route := func(i int) {
				body := c.turn(i)
				if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
					b.Fatal(err)
				}
				var err error
				if keys, tokens, err = prompter.AppendKeys(ctx, keys[:0], body, &req, chain); err != nil {
					b.Fatal(err)
				}
			}
			route(1 << 20)
			measure(b, len(c.body), route)
			b.ReportMetric(float64(tokens), "tokens")
			b.ReportMetric(float64(len(keys)), "blocks")
		})
		b.Run(size.name+"/tiktoken-go/o200k", func(b *testing.B) {
			encode := o200k(b)
			measure(b, len(c.body), func(i int) {
				var r struct {
					Messages []struct{ Role, Content string }
				}
				if err := json.Unmarshal(c.turn(i), &r); err != nil {
					b.Fatal(err)
				}
				var text strings.Builder
				for _, m := range r.Messages {
					fmt.Fprintf(&text, "<|im_start|>%s\n%s<|im_end|>\n", m.Role, m.Content)
				}
				encode(text.String())
			})
		})
		b.Run(size.name+"/encoding-json", func(b *testing.B) {
			measure(b, len(c.body), func(i int) { parse(b, c.turn(i)) })
		})
	}
}
