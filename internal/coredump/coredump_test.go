//go:build linux

package coredump

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

const crashes = "KVASIR_TEST_CRASH"

// TestMain crashes in place of the tests if the environment says so.
func TestMain(m *testing.M) {
	switch os.Getenv(crashes) {
	case "forbidden":
		if err := Forbid(); err != nil {
			panic(err)
		}
		if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 0 {
			os.Exit(0) // no crash, which fails the test
		}
		fallthrough
	case "allowed":
		panic("crash")
	}
	os.Exit(m.Run())
}

// TestNoCoreIsWritten: of a process that would write one without.
func TestNoCoreIsWritten(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cores := func(kind string) int {
		dir := t.TempDir()
		cmd := exec.Command("sh", "-c", `ulimit -c unlimited; exec "$0"`, self)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOTRACEBACK=crash", crashes+"="+kind)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Fatalf("it did not crash:\n%s", out)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	if cores("allowed") == 0 {
		t.Log("cores go elsewhere on this machine: only the settings are checked")
	}
	if n := cores("forbidden"); n > 0 {
		t.Errorf("%d files were written", n)
	}
}
