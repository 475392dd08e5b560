//go:build linux

// Package coredump keeps the memory of a process out of files: it holds prompts and keys.
package coredump

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Forbid lets the kernel write no core of this process, neither to a file nor to a program that collects cores, and lets other
// processes of the same user not read its memory. Go makes a core only with GOTRACEBACK=crash.
func Forbid() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limiting the size of cores: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbidding cores: %w", err)
	}
	return nil
}
