package fleet

import "syscall"

// groupOfItsOwn keeps a terminal's Ctrl-C from a child, and kills the child when this process dies.
func groupOfItsOwn() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
