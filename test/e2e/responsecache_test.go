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

// TestTheSemanticCacheOfThePage: with the policy of the page, a similar question is answered from the cache; the vectors are those of a
// simulated engine.
func TestTheSemanticCacheOfThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "response-cache.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "## Similar questions\n")
	_, rest, begun := strings.Cut(rest, "```yaml\n")
	policy, rest, ended := strings.Cut(rest, "   ```\n")
	var bodies []string
	for _, part := range strings.Split(rest, " -d '")[1:3] {
		body, _, _ := strings.Cut(part, "'")
		bodies = append(bodies, body)
	}
	if !found || !begun || !ended {
		t.Fatal("docs/response-cache.md has no semantic policy")
	}
	others := strings.Replace(manyModelsPolicy, "{name: llama}, {name: llama-next}, {name: small}", "{name: llama-next}, {name: small}", 1)
	m := startManyModels(t, map[string]string{"policy.yaml": others})
	m.write("llama.yaml", strings.NewReplacer("\n   ", "\n", "embeddings.models:8000", m.pools["small"][0].Addr(), "BAAI/bge-m3", "small",
		"minSimilarityPercent: 95", "minSimilarityPercent: 90", "timeoutMilliseconds: 200", "timeoutMilliseconds: 5000").Replace("\n"+policy))
	ask := func(body string) (status int, header http.Header) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.proxy+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		if _, err := io.Copy(io.Discard, got.Body); err != nil {
			t.Fatal(err)
		}
		return got.StatusCode, got.Header
	}
	// Without its Secret, the service is not called.
	m.until("the policy is in force without its Secret", func() bool {
		ask(bodies[0])
		return m.metric("kvasir_response_cache_embeddings_total", `pool="llama"`, `result="not_called"`) > 0
	})
	m.write("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: embeddings}\nstringData: {token: k-embed}\n")
	m.until("a question is stored with its vector", func() bool {
		ask(bodies[0])
		return m.metric("kvasir_response_cache_vectors", `pool="llama"`) == 1
	})
	status, header := ask(bodies[1])
	if status != http.StatusOK || header.Get("X-Kvasir-Cache") != "hit" || header.Get("X-Kvasir-Cache-Similarity") < "0.9" || header.Get("Age") == "" {
		t.Errorf("%d %v", status, header)
	}
	if n := m.metric("kvasir_response_cache_requests_total", `pool="llama"`, `result="similar"`); n != 1 {
		t.Errorf("%v similar questions are counted", n)
	}
}
