package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// policyOfThePage is the policy in docs/hooks.md.
func policyOfThePage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "hooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text2, found := strings.Cut(string(text), "```yaml\n")
	policy, _, ended := strings.Cut(text2, "```\n")
	if !found || !ended {
		t.Fatal("docs/hooks.md has no policy")
	}
	return policy
}

// TestHooksOfThePageHold: with the policy of the page, requests are answered as the page says, and metrics count the steps.
func TestHooksOfThePageHold(t *testing.T) {
	t.Parallel()
	others := strings.Replace(manyModelsPolicy, "{name: llama}, {name: llama-next}, {name: small}", "{name: llama-next}, {name: small}", 1)
	m := startManyModels(t, map[string]string{"policy.yaml": others, "llama.yaml": policyOfThePage(t)})
	ask := func(plan, fields string) (status int, steps, pool, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.proxy+"/v1/completions",
			strings.NewReader(fmt.Sprintf(`{"model": "llama", "max_tokens": 4, %s}`, fields)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Plan", plan)
		r.Header.Set("X-Kvasir-Explain", "true")
		answer, err := m.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		endpoint := answer.Header.Get("X-Kvasir-Endpoint")
		return answer.StatusCode, answer.Header.Get("X-Kvasir-Hooks"), endpoint[:max(0, strings.LastIndex(endpoint, "-"))], string(text)
	}
	status, steps, pool, body := ask("free", `"prompt": "Hello"`)
	const page = "default/llama one-answer=skipped long-prompts=skipped small-model=applied conversation=applied"
	if status != http.StatusOK || steps != page || pool != "small" {
		t.Errorf("free: %d %q by %s: %s", status, steps, pool, body)
	}
	if status, _, pool, body = ask("paid", `"prompt": "Hello"`); status != http.StatusOK || pool != "llama" {
		t.Errorf("paid: %d by %s: %s", status, pool, body)
	}
	if status, _, _, body = ask("paid", `"prompt": "Hello", "n": 2`); status != http.StatusBadRequest || !strings.Contains(body, "one answer at a time") {
		t.Errorf("two answers: %d %s", status, body)
	}
	if status, _, _, body = ask("free", `"prompt": "`+strings.Repeat("long ", 8000)+`"`); status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(body, "prompts of 8000 tokens") {
		t.Errorf("a long prompt: %d %s", status, body)
	}
	if n := m.metric("kvasir_hook_steps_total", `step="small-model"`, `outcome="applied"`); n != 1 {
		t.Errorf("small-model was applied %v times", n)
	}
	if n := m.metric("kvasir_hook_steps_total", `step="one-answer"`, `outcome="refused"`); n != 1 {
		t.Errorf("one-answer has refused %v times", n)
	}
}
