package clients

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// A client finds the same behind Envoy, which has the paths of the operator's route, as in front of the proxy: every path of an
// engine that is for clients, and none that administers engines.
func TestPathsBehindEnvoy(t *testing.T) {
	h := start(t)
	front := h.behindEnvoy(t)
	ask := func(url, method, path string) (int, string) {
		var body io.Reader = http.NoBody
		if method == http.MethodPost {
			body = strings.NewReader("{}")
		}
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	paths := append(openai.ClientPaths(), "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses",
		"/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/unknown")
	closed := []string{"/", "/metrics", "/sleep", "/v1/sleep", "/v1/../sleep", "/v1/load_lora_adapter", "/reset_prefix_cache",
		"/pause", "/load", "/health/x", "/inference/v1/abort_requests"}
	for i, path := range append(paths, closed...) {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if post, known := openai.ClientPath(path); known && (post || path == openai.Health) && post != (method == http.MethodPost) {
				continue // an engine may refuse the method in its own way
			}
			direct, said := ask(h.url, method, path)
			status, text := ask(front.url, method, path)
			if status != direct {
				t.Errorf("%s %s: Envoy answers %d, %.200s; the proxy %d, %.200s", method, path, status, text, direct, said)
			}
			if i >= len(paths) && status != http.StatusNotFound {
				t.Errorf("%s %s: status %d, %.200s; want 404", method, path, status, text)
			}
		}
	}
	for _, url := range []string{h.url, front.url} {
		if status, text := ask(url, http.MethodGet, openai.Health); status != http.StatusOK || text != "" {
			t.Errorf("%s%s: status %d, body %q", url, openai.Health, status, text)
		}
	}
}
