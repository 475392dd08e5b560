//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestANodeIsKnownByItsBirth(t *testing.T) {
	c := &cluster{state: t.TempDir()}
	n := nodes[0]
	if err := os.Mkdir(c.file(n.name), 0o700); err != nil {
		t.Fatal(err)
	}
	note := func(pid int, birth string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(c.state, n.name, "pid"), fmt.Appendf(nil, "%d %s", pid, birth), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	birth, err := birthOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	note(cmd.Process.Pid, birth)
	if c.pid(n) != cmd.Process.Pid {
		t.Error("a process that runs is not found")
	}
	note(cmd.Process.Pid, birth+"0")
	if c.pid(n) != 0 {
		t.Error("another process of that number would be killed")
	}
	note(cmd.Process.Pid, birth)
	if err := c.end(n); err != nil { // it is not waited for: it stays as a zombie
		t.Error(err)
	}
	if c.pid(n) != 0 {
		t.Error("the process is still there")
	}
	_ = cmd.Wait() // it was killed
}
