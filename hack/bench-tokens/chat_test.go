package benchtokens

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokenizer"
)

// chat is a chat request, the newest turn of it about 100 tokens that are different every time.
type chat struct {
	body []byte
	last int // where the newest turn's words are
}

func newChat(turns, turnBytes int) *chat {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}}
	for i := range turns - 1 {
		messages = append(messages, message{[]string{"user", "assistant"}[i%2], excerpt(i, turnBytes)})
	}
	messages = append(messages, message{"user", strings.Repeat("@", newestBytes)})
	body, err := json.Marshal(map[string]any{"model": "Qwen/Qwen2.5-7B-Instruct", "messages": messages, "stream": true, "max_tokens": 500})
	if err != nil {
		panic(err)
	}
	return &chat{body: body, last: strings.Index(string(body), strings.Repeat("@", newestBytes))}
}

// turn is the request with the i-th newest turn, valid until the next one.
func (c *chat) turn(i int) []byte {
	src := corpus()
	at := (i*1009 + 7) * 131 % (len(src) - newestBytes)
	n := copy(c.body[c.last:c.last+newestBytes], src[at:])
	for j := range n {
		if b := &c.body[c.last+j]; *b >= 0x80 || *b < ' ' || *b == '"' || *b == '\\' {
			*b = ' '
		}
	}
	return c.body
}

// BenchmarkChat goes from the bytes of a chat request to the keys of its blocks, as the picker does.
func BenchmarkChat(b *testing.B) {
	ctx := context.Background()
	chain := tokenizer.Chain{Root: 42, BlockTokens: 16}
	c := newChat(24, 1180)
	t := model(b, models+"/qwen2_5")
	r, err := chatprompt.New(chatprompt.Options{Dir: models + "/qwen2_5", Release: "0.17.0", Encoder: t})
	if err != nil {
		b.Fatal(err)
	}
	space := tokenizer.NewCache(256 << 20).Space("")
	var req openai.Request
	var keys []kvblock.Key
	tokens := 0
	route := func(i int) {
		body := c.turn(i)
		if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
			b.Fatal(err)
		}
		p, err := r.Render(ctx, body, &req)
		if err != nil {
			b.Fatal(err)
		}
		if keys, tokens, err = t.AppendKeys(ctx, space, keys[:0], p.Text, p.Special, chain); err != nil {
			b.Fatal(err)
		}
		p.Release()
	}
	b.Run("kvasir", func(b *testing.B) {
		route(1 << 20)
		measure(b, len(c.body), route)
		b.ReportMetric(float64(tokens), "tokens")
		b.ReportMetric(float64(len(keys)), "blocks")
	})
	b.Run("encoding-json/parse", func(b *testing.B) {
		measure(b, len(c.body), func(i int) { parse(b, c.turn(i)) })
	})
	b.Run("parse", func(b *testing.B) {
		measure(b, len(c.body), func(i int) {
			if err := openai.Parse(openai.ChatCompletions, c.turn(i), &req); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("prompt", func(b *testing.B) {
		measure(b, len(c.body), func(i int) {
			p, err := r.Render(ctx, c.turn(i), &req)
			if err != nil {
				b.Fatal(err)
			}
			p.Release()
		})
	})
}
