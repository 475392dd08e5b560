package main

import "syscall"

// child keeps a terminal's Ctrl-C from a child, and ends the child when this program is killed.
func child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
