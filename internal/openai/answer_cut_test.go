package openai

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

const usageEvent = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],` +
	`"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`

// cut is what a client gets of a stream that arrives in the given pieces.
func cut(a *AnswerScanner, route Route, pieces ...[]byte) []byte {
	var got []byte
	buf, seen := make([]byte, 2*MaxCut), 0
	a.Reset(route, true)
	for _, piece := range pieces {
		for len(piece) > 0 {
			n := copy(buf[seen:], piece)
			piece = piece[n:]
			out, rest, _ := a.WriteCut(buf[:seen+n], seen)
			got = append(got, out...)
			seen = copy(buf, rest)
		}
	}
	out, _ := a.CloseCut(buf[:seen])
	return append(got, out...)
}

// split cuts a text into random pieces.
func split(rng *rand.Rand, text string, most int) (pieces [][]byte) {
	for b := []byte(text); len(b) > 0; {
		n := min(len(b), 1+rng.IntN(most))
		pieces = append(pieces, b[:n])
		b = b[n:]
	}
	return pieces
}

// TestOnlyTheUsageEventIsCut: however a stream arrives, the client gets it without its usage event, byte for byte.
func TestOnlyTheUsageEventIsCut(t *testing.T) {
	const (
		first  = `data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}`
		second = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"hé"},"finish_reason":"stop"},{"index":1}]}`
		done   = `data: [DONE]`
	)
	long := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 3*MaxCut) + `"}}]}`
	failed := `data: {"choices":[],"usage":{"prompt_tokens":1},"error":{"message":"x","code":500}}`
	both := `data: {"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":1}}`
	huge := strings.TrimSuffix(usageEvent, "}") + `,"x":"` + strings.Repeat("x", 2*MaxCut) + `"}`
	type stream struct {
		events  []string // of lines that end in a line feed
		dropped int      // index of the event that is not for the client; -1 for none
	}
	for name, s := range map[string]stream{
		"a chat":                          {[]string{first, second, usageEvent, done}, 2},
		"usage at the end":                {[]string{first, usageEvent}, 1},
		"usage at once":                   {[]string{usageEvent, done}, 0},
		"no usage":                        {[]string{first, second, done}, -1},
		"comments":                        {[]string{": ping", first, ": ping", usageEvent, ": ping", done}, 3},
		"usage beside choices":            {[]string{first, both, done}, -1},
		"an error":                        {[]string{first, failed, done}, -1},
		"a long event":                    {[]string{first, long, usageEvent, long, done}, 2},
		"a huge event of usage":           {[]string{first, huge, done}, -1},
		"usage with a comment":            {[]string{first, ": x\n" + usageEvent, done}, -1},
		"usage on two lines":              {[]string{first, strings.Replace(usageEvent, `"model"`, "\ndata: \"model\"", 1), done}, -1},
		"null for usage":                  {[]string{`data: {"choices":[],"usage":null}`, done}, -1},
		"a byte order mark and no spaces": {[]string{"\ufeff" + first, strings.Replace(usageEvent, ": ", ":", 1), done}, 1},
		"no events":                       {nil, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(1, uint64(len(name))))
			var a AnswerScanner
			for _, end := range []string{"\n", "\r\n", "\r"} {
				var all, want strings.Builder
				for i, event := range s.events {
					event = strings.ReplaceAll(event+"\n\n", "\n", end)
					all.WriteString(event)
					if i != s.dropped {
						want.WriteString(event)
					}
				}
				for _, tail := range []string{"", "data: half", end} {
					for try := range 60 {
						most := []int{1, 2, 7, 300, 100000}[try%5]
						if got := cut(&a, ChatCompletions, split(rng, all.String()+tail, most)...); string(got) != want.String()+tail {
							t.Fatalf("lines end in %q, pieces of up to %d bytes, end %q:\ngot  %q\nwant %q", end, most, tail, got, want.String()+tail)
						}
						if s.dropped >= 0 && (a.Usage.PromptTokens != 9 || a.Usage.CachedTokens != 8) {
							t.Fatalf("usage %+v", a.Usage)
						}
					}
				}
			}
		})
	}
}

// TestTheFingerprintStaysInTheLastEvent: vLLM names it in the usage event, and without one in the event that finishes the answer.
func TestTheFingerprintStaysInTheLastEvent(t *testing.T) {
	const (
		sign   = `,"system_fingerprint":"v-\"1"`
		first  = `data: {"choices":[{"index":0,"delta":{"content":"}"},"finish_reason":null}]}`
		last   = `data: {"choices":[{"index":0,"delta":{"content":"}"},"finish_reason":"stop"}]}`
		signed = `data: {"choices":[{"index":0,"delta":{"content":"}"},"finish_reason":"stop"}]` + sign + "}"
	)
	usage := strings.TrimSuffix(usageEvent, "}") + sign + "}"
	null := strings.TrimSuffix(usageEvent, "}") + `,"system_fingerprint":null}`
	long := strings.Replace(last, "}", strings.Repeat("x", MaxCut), 1)
	wide := strings.Replace(last, "}", strings.Repeat("x", MaxCut-300), 1)
	for name, tc := range map[string]struct{ events, want []string }{
		"a chat":                    {[]string{first, last, usage, "data: [DONE]"}, []string{first, signed, "data: [DONE]"}},
		"no end mark":               {[]string{first, last, usage}, []string{first, signed}},
		"no fingerprint":            {[]string{last, usageEvent}, []string{last}},
		"null":                      {[]string{last, null}, []string{last}},
		"one in both":               {[]string{signed, usage}, []string{signed}},
		"no usage":                  {[]string{first, last, "data: [DONE]"}, []string{first, last, "data: [DONE]"}},
		"nothing behind it":         {[]string{first, last}, []string{first, last}},
		"several answers":           {[]string{last, last, usage}, []string{last, signed}},
		"an event in between":       {[]string{last, first, usage}, []string{last, first}},
		"nothing finished":          {[]string{first, usage}, []string{first}},
		"a comment":                 {[]string{": x\n" + last, usage}, []string{": x\n" + last}},
		"a long last event":         {[]string{long, usage}, []string{long}},
		"too much for both at once": {[]string{wide, last, usage}, []string{wide, signed}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(2, uint64(len(name))))
			var a AnswerScanner
			for _, end := range []string{"\n", "\r\n", "\r"} {
				all, want := "", ""
				for _, event := range tc.events {
					all += strings.ReplaceAll(event+"\n\n", "\n", end)
				}
				for _, event := range tc.want {
					want += strings.ReplaceAll(event+"\n\n", "\n", end)
				}
				for try := range 60 {
					most := []int{1, 2, 7, 300, 100000}[try%5]
					if got := cut(&a, ChatCompletions, split(rng, all, most)...); string(got) != want {
						t.Fatalf("lines end in %q, pieces of up to %d bytes:\ngot  %q\nwant %q", end, most, got, want)
					}
				}
			}
		})
	}
}

// TestAnUnfinishedUsageEventIsCut: the stream ends without the blank line, or without the line's end.
func TestAnUnfinishedUsageEventIsCut(t *testing.T) {
	for _, end := range []string{"", "\n", "\r\n", "\r"} {
		var a AnswerScanner
		if got := cut(&a, Completions, []byte("data: x\n\n"+usageEvent+end)); string(got) != "data: x\n\n" {
			t.Errorf("end %q: %q", end, got)
		}
	}
}

// TestEventsPassAtOnce: what is complete is not held back, whatever follows it.
func TestEventsPassAtOnce(t *testing.T) {
	var a AnswerScanner
	a.Reset(Completions, true)
	whole := "data: {\"choices\":[{\"text\":\"x\"}]}\n\n"
	buf := []byte(whole + "data: {\"cho")
	if out, rest, first := a.WriteCut(buf, 0); string(out) != whole || string(rest) != "data: {\"cho" || !first {
		t.Errorf("%q, %q, %v", out, rest, first)
	}
}

// FuzzCut: the client gets the stream or a part of it, and nothing is lost without a usage event.
func FuzzCut(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{}]}\r\n\r\n"+usageEvent+"\r\n\r\ndata: [DONE]\n\n"), uint64(1))
	f.Add([]byte(usageEvent+"\r\r\n\ndata: x"), uint64(2))
	f.Add([]byte("data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\r\n\r\n"+strings.TrimSuffix(usageEvent, "}")+
		",\"system_fingerprint\":\"x\"}\n\n"), uint64(3))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var a, b AnswerScanner
		got := cut(&a, ChatCompletions, split(rng, string(stream), 1+rng.IntN(50))...)
		b.Reset(ChatCompletions, true)
		b.Write(stream)
		b.Close()
		if !b.Usage.Have && !bytes.Equal(got, stream) {
			t.Fatalf("%q became %q", stream, got)
		}
		if a.Usage != b.Usage || a.FirstToken != b.FirstToken || a.Finished != b.Finished || a.Failed != b.Failed || a.Done != b.Done {
			t.Fatalf("%q was read as %+v in pieces, as %+v at once", stream, a, b)
		}
		if bytes.Contains(stream, []byte("fingerprint")) {
			return // it can be in another place
		}
		for i := 0; len(got) > 0; i++ {
			if i == len(stream) {
				t.Fatalf("%q became %q", stream, got)
			}
			if stream[i] == got[0] {
				got = got[1:]
			}
		}
	})
}
