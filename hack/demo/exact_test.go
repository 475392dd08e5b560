//go:build unix

package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/fleet"
)

// gpt2 is the tokenizer that `make demo` gives engines and picker.
const gpt2 = "../../internal/tokens/tokenizer/testdata/gpt2"

// TestThePickerMakesTheTokensOfTheDemoItself: the proof of the tokens passes against simulated engines with a model's
// files, and chats cost no call of an engine.
func TestThePickerMakesTheTokensOfTheDemoItself(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f, err := fleet.Start(ctx, fleet.Options{
		Bin: bin(t), Dir: t.TempDir(), Pods: 1, Strategy: "MarginalCost", Profile: "8b-h100", Blocks: 10_000, SpeedUp: 50,
		StreamInterval: 16, Tokenizer: gpt2,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, _, err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	ask := func(method, url, body string) (string, http.Header) {
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text), resp.Header
	}
	for {
		status, _ := ask(http.MethodGet, f.MetricsURL+"/status?output=json", "")
		if strings.Contains(status, `"type":"TokensExact","status":"True"`) {
			break
		}
		if strings.Contains(status, "ProbeFailed") {
			t.Fatalf("the proof of tokens failed:\n%s", status)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the proof of tokens has not passed:\n%s", status)
		}
	}
	answer, header := ask(http.MethodPost, f.ProxyURL+"/v1/chat/completions",
		`{"model": "`+fleet.Model+`", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello, demo."}]}`)
	if source := header.Get("X-Kvasir-Tokens"); !strings.HasPrefix(source, "exact") {
		t.Errorf("tokens are %q: %s", source, answer)
	}
}
