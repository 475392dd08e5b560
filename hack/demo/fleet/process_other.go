//go:build unix && !linux

package fleet

import "syscall"

// groupOfItsOwn keeps a terminal's Ctrl-C from a child.
func groupOfItsOwn() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
