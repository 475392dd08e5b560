package real

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

// TestTheEnvironmentHasTheRelease: what was installed calls itself vLLM, of the tested release, for the CPU.
func TestTheEnvironmentHasTheRelease(t *testing.T) {
	need(t)
	out, err := exec.Command(filepath.Join(run.venv, "bin", "python"), "-c", "from importlib.metadata import version; print(version('vllm'))").CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != run.release+"+cpu" {
		t.Errorf("the installed version is %q, %v", got, err)
	}
}

// TestAReleaseThatCannotBeLoadedIsNamed: only the loader's refusal of every library counts, with its words.
func TestAReleaseThatCannotBeLoadedIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		fails  bool
	}{
		"it loads":             {"exit 0", false},
		"no library loads":     {"echo 'CXXABI_1.3.15 not found'; exit 3", true},
		"the probe is no help": {"exit 1", false},
	} {
		t.Run(name, func(t *testing.T) {
			venv := t.TempDir()
			if err := os.Mkdir(filepath.Join(venv, "bin"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(venv, "bin", "python"), []byte("#!/bin/sh\n"+tc.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			err := vllmcpu.Loadable(venv)
			if got := errors.Is(err, vllmcpu.ErrUnloadable); got != tc.fails || got && !strings.Contains(err.Error(), "CXXABI") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestWhetherMadeUpWeightsReload is read from a release's sources, and sources must be there.
func TestWhetherMadeUpWeightsReload(t *testing.T) {
	for name, tc := range map[string]struct {
		path, source string
		can          bool
		fails        bool
	}{
		"any loader":                 {"v1/worker/gpu_model_runner.py", "model_loader.load_weights(model)", true, false},
		"loaders with all weights":   {"v1/worker/gpu_model_runner.py", `if not hasattr(model_loader, "get_all_weights"):`, false, false},
		"the same in a newer layout": {"model_executor/model_loader/reload/inplace.py", `if not hasattr(model_loader, "get_all_weights"):`, false, false},
		"no sources":                 {"version.py", "", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			venv := t.TempDir()
			path := filepath.Join(venv, "lib", "python3.11", "site-packages", "vllm", tc.path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tc.source), 0o600); err != nil {
				t.Fatal(err)
			}
			if can, err := reloadsMadeUpWeights(venv); can != tc.can || (err != nil) != tc.fails {
				t.Errorf("%v, %v", can, err)
			}
		})
	}
}

// TestWhatWasLeftOutIsListed at the end of a run, in order.
func TestWhatWasLeftOutIsListed(t *testing.T) {
	s := totals{notRun: []string{"TestA: the budget is spent", "TestB/c: cannot be tested here"}}
	var out strings.Builder
	s.listNotRun(&out)
	if want := "NOT RUN: TestA: the budget is spent\nNOT RUN: TestB/c: cannot be tested here\n"; out.String() != want {
		t.Errorf("printed %q", out.String())
	}
}

// TestARequiredRunLeavesLittleOut: a budget that leaves out more than some cases fails a required run, and no other.
func TestARequiredRunLeavesLittleOut(t *testing.T) {
	for _, tc := range []struct {
		late           int
		required, fine bool
	}{{0, true, true}, {mostLate, true, true}, {mostLate + 1, true, false}, {mostLate + 1, false, true}} {
		if err := (&totals{late: tc.late}).enoughRun(tc.required); (err == nil) != tc.fine {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// scriptThatFails is an installer that leaves a file in its cache.
const scriptThatFails = `#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --cache-dir ] && mkdir -p "$2" && touch "$2/file"; shift; done
exit 1
`

// TestAnAbortedInstallationIsRedone: the remains of an installation that did not end are no environment.
func TestAnAbortedInstallationIsRedone(t *testing.T) {
	root := t.TempDir()
	partial := filepath.Join(root, "0.0.1", "partial")
	if err := os.MkdirAll(partial, 0o700); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	installer := filepath.Join(bin, "uv")
	if err := os.WriteFile(installer, []byte(scriptThatFails), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if venv, err := vllmcpu.Install(root, "0.0.1"); err == nil {
		t.Errorf("installed %s", venv)
	}
	for _, dir := range []string{"venv", "partial", "cache"} {
		if _, err := os.Stat(filepath.Join(root, "0.0.1", dir)); err == nil {
			t.Errorf("%s is there after a failed installation", dir)
		}
	}
}
