//go:build !unix

package top

import "os"

// notifyResized does nothing: Windows has no such signal, and the next refresh has the new size.
func notifyResized(chan<- os.Signal) {}
