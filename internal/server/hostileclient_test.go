package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// stage is a pool of three simulated engines, with an adapter, behind a picker that explains its answers. The picker makes the
// tokens of texts itself; engines make those of chats.
type stage struct {
	*instance
	engines []*vllmsim.Engine
}

func newStage(t *testing.T) *stage {
	t.Helper()
	packed, err := os.ReadFile("../../internal/tokens/tokenizer/testdata/gpt2/tokenizer.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	put(t, filepath.Join(root, "tokenizer.json"), unzip(t, packed))
	gpt2, err := tokenizer.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{}
	text := poolText("p", "m", ", adapters: {names: [lora]}, tokenizer: {type: Directory, directory: {path: .}}") + `---
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: p}
spec:
  targetRefs: [{name: p}]
  tokens: {budgetMilliseconds: 5000, engineBudgetMilliseconds: 10000}
  decisions: {answerHeaders: Always}
`
	for i := range 3 {
		e, err := vllmsim.Start(vllmsim.Config{ServedModelNames: []string{"m"}, LoRAs: []string{"lora"}, SpeedUp: 1000, MaxModelLen: 4096, Text: gpt2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		s.engines = append(s.engines, e)
		text += "---\n" + sliceText(t, "p", fmt.Sprintf("pod-%d", i), e)
	}
	dir := t.TempDir()
	put(t, filepath.Join(dir, "all.yaml"), text)
	s.instance = runOn(t, dir, "--model-root", root)
	s.awaitReady()
	return s
}

// served is what an answer reports: -1 for what it does not.
type served struct {
	status                    int
	tokens                    string
	prompt, predicted, cached int
}

// send sends a body.
func (s *stage) send(path, body string) served {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url(s.listeners.proxy, path), strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Data-Parallel-Rank", "7") // of an engine that is not there
	answer, err := s.client.Do(r)
	if err != nil {
		s.t.Fatalf("%s: %v", body[:min(len(body), 200)], err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	out := served{answer.StatusCode, answer.Header.Get("x-kvasir-tokens"), -1, -1, -1}
	if n, err := strconv.Atoi(answer.Header.Get("x-kvasir-predicted-tokens")); err == nil {
		out.predicted = n
	}
	if at := bytes.LastIndex(text, []byte("data: {")); at >= 0 {
		text, _, _ = bytes.Cut(text[at+len("data: "):], []byte("\n"))
	}
	var found struct {
		Usage struct {
			Prompt  *int `json:"prompt_tokens"`
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(text, &found) == nil && found.Usage.Prompt != nil {
		out.prompt = *found.Usage.Prompt
		if found.Usage.Details != nil {
			out.cached = found.Usage.Details.Cached
		}
	}
	return out
}

// hangUp sends a stream and leaves, before the answer begins or after its first bytes.
func (s *stage) hangUp(path, body string, early bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url(s.listeners.proxy, path), strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if early {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if answer, err := s.client.Do(r); err == nil {
				_ = answer.Body.Close()
			}
		}()
		cancel()
		<-done
		return
	}
	answer, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	_, _ = answer.Body.Read(make([]byte, 1))
	_ = answer.Body.Close()
}

// words is a text of about n tokens that begins with a word.
func words(first string, n int) string {
	return first + strings.Repeat(" the engine computes a prompt", n/5)
}

// victims are requests of other clients: bodies by their path.
func victims() map[string]string {
	turn := func(text string) string { return fmt.Sprintf(`[{"role":"user","content":%q}]`, text) }
	return map[string]string{
		"a text":            fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1}`, words("victim", 300)),
		"a chat":            `{"model":"m","max_tokens":1,"messages":` + turn(words("victim", 300)) + `}`,
		"a chat of tools":   `{"model":"m","max_tokens":1,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":` + turn(words("victim", 300)) + `}`,
		"for an adapter":    fmt.Sprintf(`{"model":"lora","prompt":%q,"max_tokens":1}`, words("victim", 300)),
		"with a salt":       fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1,"cache_salt":"victim"}`, words("victim", 300)),
		"ids":               `{"model":"m","max_tokens":1,"prompt":[` + idsOf(7) + `]}`,
		"adapter and salt":  fmt.Sprintf(`{"model":"lora","prompt":%q,"max_tokens":1,"cache_salt":"victim"}`, words("victim", 300)),
		"with other fields": fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1,"truncate_prompt_tokens":160}`, words("victim", 300)),
	}
}

// idsOf is a prompt of 300 times one token.
func idsOf(token int) string {
	return strings.TrimSuffix(strings.Repeat(strconv.Itoa(token)+",", 300), ",")
}

func pathOf(body string) string {
	if strings.Contains(body, `"messages":`) {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// tokensOf is where the tokens of a request should come from.
func tokensOf(body string) string {
	switch {
	case strings.Contains(body, `"messages":`):
		return "engine"
	case strings.Contains(body, `"prompt":[`):
		return "given"
	}
	return "exact"
}

// TestHostileClientsChangeNothingForOthers: whatever a client sends, the index is what the engines hold, and what others send is
// predicted exactly, with exact tokens.
func TestHostileClientsChangeNothingForOthers(t *testing.T) {
	victim := words("victim", 300)
	twice := func(fields string) string { return `{"model":"m","max_tokens":1,` + fields + `}` }
	for name, attack := range map[string]func(s *stage, i int){
		// The picker and the engine could take different ones, of the same length, so that the answer's count of cached tokens
		// would be booked for the victim's prompt, at another endpoint.
		"fields given twice": func(s *stage, i int) {
			other := words(fmt.Sprint("mallory", i%4), 300)
			for _, fields := range []string{
				fmt.Sprintf(`"prompt":%q,"prompt":%q`, victim, other),
				fmt.Sprintf(`"prom\u0070t":%q,"prompt":%q`, victim, other),
				`"prompt":[` + idsOf(7) + `],"prompt":[` + idsOf(8+i%4) + `]`,
				fmt.Sprintf(`"prompt":%q,"cache_salt":"victim","cache_salt":"mallory"`, victim),
				fmt.Sprintf(`"prompt":%q,"model":"lora","model":"m"`, other),
				fmt.Sprintf(`"messages":[{"role":"user","content":%q}],"messages":[{"role":"user","content":%q}]`, victim, other),
				fmt.Sprintf(`"messages":[{"role":"user","content":%q,"content":%q}]`, victim, other),
			} {
				s.send(pathOf(fields), twice(fields))
			}
		},
		"text that is no text": func(s *stage, _ int) {
			for _, text := range []string{"\xff\xfe", `\ud800`, `\udc00\ud800`, `\u0000`, "\u2028\u0085", "e\u0301\u212b", "\xed\xa0\x80", "\xf4\x90\x80\x80"} {
				s.send("/v1/completions", twice(`"prompt":"`+text+victim+`"`))
				s.send("/v1/chat/completions", twice(`"messages":[{"role":"user","content":"`+text+victim+`"}]`))
			}
		},
		// The engine refuses them, or leaves them, after the picker has placed them and assumed their blocks.
		"requests that end in an error": func(s *stage, _ int) {
			for _, fields := range []string{
				fmt.Sprintf(`"prompt":%q`, words("victim", 6000)),
				fmt.Sprintf(`"prompt":%q,"top_p":7`, victim),
				fmt.Sprintf(`"prompt":%q,"n":-1`, victim),
				fmt.Sprintf(`"prompt":%q,"temperature":-1`, victim),
				fmt.Sprintf(`"prompt":%q,"truncate_prompt_tokens":-7`, victim),
				fmt.Sprintf(`"prompt":%q,"stream_options":{"include_usage":true}`, victim),
				`"prompt":""`, `"prompt":[]`, `"prompt":[[]]`, `"prompt":[4294967295,-1,1e400]`, `"prompt":[7.5]`, `"prompt":{"a":1}`,
				`"messages":[]`, `"messages":[{"role":"user"}]`, `"messages":[{"role":"mallory","content":"x"}]`,
			} {
				s.send(pathOf(fields), twice(fields))
			}
		},
		"streams that clients leave": func(s *stage, i int) {
			for j, body := range []string{
				fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":64,"prompt":%q}`, words("victim", 300*(1+i%4))),
				fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":64,"n":4,"prompt":%q}`, words(fmt.Sprint("mallory", i), 900)),
				fmt.Sprintf(`{"model":"lora","stream":true,"max_tokens":64,"messages":[{"role":"user","content":%q}]}`, words("victim", 600)),
			} {
				s.hangUp(pathOf(body), body, (i+j)%2 == 0)
			}
		},
		// Usage is that of other prompts than the first, of the last choice, or of no cache.
		"answers that count otherwise": func(s *stage, i int) {
			for _, fields := range []string{
				fmt.Sprintf(`"prompt":%q,"n":3`, victim),
				fmt.Sprintf(`"prompt":[%q,%q]`, victim, words(fmt.Sprint("mallory", i), 300)),
				fmt.Sprintf(`"prompt":%q,"echo":true,"logprobs":1`, victim),
				fmt.Sprintf(`"prompt":%q,"prompt_logprobs":0`, victim),
				fmt.Sprintf(`"prompt":%q,"truncate_prompt_tokens":32`, victim),
				fmt.Sprintf(`"prompt":%q,"add_special_tokens":false`, victim),
				fmt.Sprintf(`"prompt":%q,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, victim),
				fmt.Sprintf(`"prompt":%q,"brand_new_field":{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":4096}}}`, victim),
				fmt.Sprintf(`"messages":[{"role":"user","content":%q}],"echo":true`, victim),
				fmt.Sprintf(`"messages":[{"role":"user","content":%q}],"continue_final_message":true,"add_generation_prompt":false`, victim),
			} {
				s.send(pathOf(fields), twice(fields))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.laws("before")
			for i := range 12 {
				attack(s, i)
			}
			s.laws("afterwards")
		})
	}
}

// laws of others, which hold within patience and stay.
func (s *stage) laws(when string) {
	s.t.Helper()
	for name, body := range victims() {
		var got served
		exact := func() bool {
			got = s.send(pathOf(body), body)
			return got.status == http.StatusOK && got.tokens == tokensOf(body) && got.predicted == got.cached && got.cached >= 100
		}
		last := &got
		defer func() {
			if s.t.Failed() {
				s.t.Logf("%s, %s: %+v", when, name, *last)
			}
		}()
		s.eventually(when+", "+name+" is predicted exactly", exact)
		for range 3 {
			if !exact() {
				s.t.Errorf("%s, %s: %+v", when, name, got)
			}
		}
	}
	s.eventually(when+" the index is what the engines hold", func() bool {
		for i, e := range s.engines {
			if s.metric(fmt.Sprintf(`kvasir_index_held_blocks{endpoint="pod-%d/0"`, i)) != strconv.Itoa(len(e.Blocks())) {
				return false
			}
		}
		return s.metric(`kvasir_index_speculative_blocks{namespace="default",pool="p"}`) == "0"
	})
	for series, want := range map[string]string{
		"kvasir_predictions_trusted": "1", "kvasir_predictions_distrusted_total": "0", "kvasir_tokens_doubts_total": "0",
	} {
		if got := s.metric(series + `{namespace="default",pool="p"}`); got != want {
			s.t.Errorf("%s %s is %s, want %s", when, series, got, want)
		}
	}
	if text := s.logs.String(); strings.Contains(text, "not using them") || strings.Contains(text, "other tokens than") {
		s.t.Errorf("%s tokens are in doubt", when)
	}
}
