//go:build unix

package top

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyResized sends a signal when the terminal has another size.
func notifyResized(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }
