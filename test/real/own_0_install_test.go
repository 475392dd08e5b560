package real

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheEnvironmentHasTheRelease: what was installed calls itself vLLM, of the tested release, for the CPU.
func TestTheEnvironmentHasTheRelease(t *testing.T) {
	need(t)
	out, err := exec.Command(filepath.Join(run.venv, "bin", "python"), "-c", "from importlib.metadata import version; print(version('vllm'))").CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != run.release+"+cpu" {
		t.Errorf("the installed version is %q, %v", got, err)
	}
}

// TestAnAbortedInstallationIsRedone: the remains of an installation that did not end are no environment.
func TestAnAbortedInstallationIsRedone(t *testing.T) {
	root := t.TempDir()
	partial := filepath.Join(root, "0.0.1", "partial")
	if err := os.MkdirAll(partial, 0o700); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	installer := filepath.Join(bin, "uv")
	if err := os.WriteFile(installer, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if venv, err := install(root, "0.0.1"); err == nil {
		t.Errorf("installed %s", venv)
	}
	for _, dir := range []string{"venv", "partial"} {
		if _, err := os.Stat(filepath.Join(root, "0.0.1", dir)); err == nil {
			t.Errorf("%s is there after a failed installation", dir)
		}
	}
}
