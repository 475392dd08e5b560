package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheCacheOfThePage: with the policy of the page, the second request is answered from the cache, to the byte, by no engine.
func TestTheCacheOfThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "response-cache.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```yaml\n")
	policy, rest, ended := strings.Cut(rest, "```\n")
	_, rest, quoted := strings.Cut(rest, " -d '")
	body, _, closed := strings.Cut(rest, "'")
	if !found || !ended || !quoted || !closed {
		t.Fatal("docs/response-cache.md has no policy or no request")
	}
	others := strings.Replace(manyModelsPolicy, "{name: llama}, {name: llama-next}, {name: small}", "{name: llama-next}, {name: small}", 1)
	m := startManyModels(t, map[string]string{"policy.yaml": others, "llama.yaml": policy})
	ask := func() (answer, cache string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.proxy+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", got.StatusCode, text)
		}
		return string(text), got.Header.Get("X-Kvasir-Cache")
	}
	first, cache := ask()
	if cache != "miss" {
		t.Fatalf("the first answer says %q", cache)
	}
	// It is stored after its client has it, and its request is counted after that.
	completed := func() float64 { return m.metric("kvasir_requests_total", `pool="llama"`, `outcome="completed"`) }
	m.until("the answer is stored, and its request over", func() bool {
		return m.metric("kvasir_response_cache_answers_total", `pool="llama"`, `result="stored"`) == 1 && completed() == 1
	})
	if second, cache := ask(); cache != "hit" || second != first {
		t.Errorf("%q %s, want %s", cache, second, first)
	}
	if n := m.metric("kvasir_response_cache_requests_total", `pool="llama"`, `result="hit"`); n != 1 {
		t.Errorf("%v hits are counted", n)
	}
	if n := completed(); n != 1 {
		t.Errorf("the hit is counted as a request of an engine: %v, before 1", n)
	}
}
