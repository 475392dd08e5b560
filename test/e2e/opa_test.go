package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// block is a block of code of docs/hooks.md, the first in a language that contains a text.
func block(t *testing.T, language, with string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "hooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(page), "```"+language+"\n")[1:] {
		if code, _, _ := strings.Cut(part, "```\n"); strings.Contains(code, with) {
			return code
		}
	}
	t.Fatalf("docs/hooks.md has no %s with %q", language, with)
	return ""
}

// TestTheOpenPolicyAgentDecides runs the policies of docs/hooks.md: that of Kvasir, and that of an agent, the program KVASIR_OPA
// (`make test-opa` installs it). It refuses, sends requests to another pool, and when it is gone, the failure mode decides.
func TestTheOpenPolicyAgentDecides(t *testing.T) {
	program := os.Getenv("KVASIR_OPA")
	if program == "" {
		t.Skip("KVASIR_OPA names no program: run make test-opa")
	}
	address := freeAddress(t)
	rego := filepath.Join(t.TempDir(), "kvasir.rego")
	if err := os.WriteFile(rego, []byte(block(t, "rego", "package kvasir")), 0o600); err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	agent := exec.Command(program, "run", "--server", "--addr", address, "--disable-telemetry", "--log-level", "error", rego)
	agent.Stdout, agent.Stderr = &output, &output
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		_ = agent.Wait()
	}
	t.Cleanup(func() {
		if agent.ProcessState == nil {
			stop()
		}
		if t.Failed() {
			t.Logf("the agent:\n%s", &output)
		}
	})
	policy := strings.NewReplacer("127.0.0.1:8181", address, "timeoutMilliseconds: 100 ", "timeoutMilliseconds: 5000 ").
		Replace(block(t, "yaml", "call:"))
	others := strings.Replace(manyModelsPolicy, "{name: llama}, {name: llama-next}, {name: small}", "{name: llama-next}, {name: small}", 1)
	m := startManyModels(t, map[string]string{"policy.yaml": others, "llama.yaml": policy})
	m.until("the agent answers", func() bool { status, _ := m.get("http://" + address + "/health"); return status == http.StatusOK })
	ask := func(plan string, tokens int) (status int, steps, pool, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.proxy+"/v1/completions",
			strings.NewReader(fmt.Sprintf(`{"model": "llama", "prompt": "Hello", "max_tokens": %d}`, tokens)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Plan", plan)
		answer, err := m.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var text bytes.Buffer
		if _, err := text.ReadFrom(answer.Body); err != nil {
			t.Fatal(err)
		}
		endpoint := answer.Header.Get("X-Kvasir-Endpoint")
		return answer.StatusCode, answer.Header.Get("X-Kvasir-Hooks"), endpoint[:max(0, strings.LastIndex(endpoint, "-"))], text.String()
	}
	for _, tc := range []struct {
		plan   string
		tokens int
		status int
		pool   string // of the endpoint, where it is known
		body   string
	}{
		{"paid", 4, http.StatusOK, "", ""},
		{"free", 4, http.StatusOK, "small", ""},
		{"free", 101, http.StatusTooManyRequests, "", "100 tokens at most"},
		{"paid", 101, http.StatusOK, "", ""},
		{"internal", 4, http.StatusOK, "", ""},
	} {
		if status, _, pool, body := ask(tc.plan, tc.tokens); status != tc.status || tc.pool != "" && pool != tc.pool || !strings.Contains(body, tc.body) {
			t.Errorf("%s, %d tokens: %d by %q: %s", tc.plan, tc.tokens, status, pool, body)
		}
	}
	stop()
	if status, _, _, body := ask("paid", 4); status != http.StatusForbidden || !strings.Contains(body, "policy_step_failed") {
		t.Errorf("without the agent: %d: %s", status, body)
	}
	if status, _, _, body := ask("internal", 4); status != http.StatusOK {
		t.Errorf("a request that is not for the agent, without it: %d: %s", status, body)
	}
}
