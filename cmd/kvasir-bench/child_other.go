//go:build unix && !linux

package main

import "syscall"

// child keeps a terminal's Ctrl-C from a child.
func child() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
