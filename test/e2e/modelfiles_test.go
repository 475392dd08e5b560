package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// TestTokensAreFoundInTheEnginesPods: a pool without a setting, a picker without a hub, a volume or an engine that it can ask for ids.
// The reporters of the engines' pods have the model, each in its own way, and two of them have nothing that is right. The ids are those of
// the reference tools, and every block is found.
func TestTokensAreFoundInTheEnginesPods(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	root := t.TempDir()
	cache := filepath.Join(root, "hub")
	snapshot := filepath.Join(cache, "models--org--qwen", "snapshots", commit)
	words := qwenFiles(t, snapshot)
	stolen, wrong := filepath.Join(root, "stolen"), filepath.Join(root, "wrong")
	qwenFiles(t, wrong)
	config, err := os.ReadFile(filepath.Join(wrong, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.Mkdir(filepath.Join(filepath.Dir(filepath.Dir(snapshot)), "refs"), 0o700),
		os.WriteFile(filepath.Join(filepath.Dir(filepath.Dir(snapshot)), "refs", "main"), []byte(commit), 0o600),
		os.WriteFile(filepath.Join(wrong, "tokenizer_config.json"), []byte(strings.ReplaceAll(string(config), "<|im_start|>assistant", "<|im_start|>answerer")), 0o600),
		os.Mkdir(stolen, 0o700),
		os.Symlink(filepath.Join(wrong, "tokenizer.json"), filepath.Join(stolen, "tokenizer.json")),
	); err != nil {
		t.Fatal(err)
	}
	engine := newStranger(t, words)
	reports := freeAddress(t)
	f := newFleetWith(t, 3, vllmsim.Config{SpeedUp: 20, Text: engine, Chat: engine.chat}, "MarginalCost", func(f *fleet) {
		f.args = []string{"--report-address", reports, "--report-insecure"}
		f.write("policy.yaml", strings.Replace(fmt.Sprintf(policyYAML, "MarginalCost"), "tokens: {", "tokens: {engine: Never, budgetMilliseconds: 5000, ", 1))
	})
	report := func(pod int, model ...string) {
		e := f.engines[pod]
		p := &program{t: t, name: "reporter", args: append([]string{
			"--events-connect", e.EventsAddr(), "--replay", e.ReplayAddr(), "--pickers", reports, "--insecure",
			"--state-dir", t.TempDir(), "--status-address", "", "--pod", fmt.Sprintf("uid-%d", pod),
		}, model...)}
		p.start()
		t.Cleanup(func() {
			p.kill()
			if t.Failed() {
				t.Logf("reporter of pod %d:\n%s", pod, &p.logs)
			}
		})
	}
	state := func() string {
		_, status := f.get(f.metrics + "/status?output=json")
		return status
	}
	f.until("it is named that there is no source", func() bool { return strings.Contains(state(), "no reporter has offered any") })
	report(0, "--model-dir", stolen)
	report(1, "--model-dir", wrong)
	f.until("the files of one pod are found wrong", func() bool { return f.metric("kvasir_tokens_mismatches_total") > 0 })
	if a := f.do("/v1/chat/completions", json.RawMessage(toolChat()[0])); a.status != http.StatusOK || a.tokens == "exact" {
		t.Fatalf("with wrong files: status %d, tokens from %q: %s", a.status, a.tokens, a.body)
	}
	report(2, "--model-cache", cache, "--model-repository", "org/qwen")
	f.until("the files of another pod are proven", func() bool { return strings.Contains(state(), `"type":"TokensExact","status":"True"`) })
	page := state()
	for _, want := range []string{"files from the reporter of pod pod-2", "leads out of " + stolen} {
		if !strings.Contains(page, want) {
			t.Errorf("the condition does not say %q:\n%s", want, page)
		}
	}
	for turn, body := range toolChat() {
		a := f.do("/v1/chat/completions", json.RawMessage(body))
		if a.status != http.StatusOK || a.tokens != "exact" {
			t.Fatalf("turn %d: status %d, tokens from %q: %s", turn, a.status, a.tokens, a.body)
		}
		if turn > 0 && (a.predicted == 0 || a.cached != a.predicted) {
			t.Errorf("turn %d: %d tokens predicted, %d delivered", turn, a.predicted, a.cached)
		}
		f.untilIndexed(a.pod)
	}
}
