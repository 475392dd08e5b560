// Package fault confines a panic to the peer whose message caused it. Code that reads messages of an engine, a reporter or
// a peer runs in Catch: after a panic that message counts as unreadable, and the streams of all others continue.
//
// A panic in the index is different. It is shared by all streams and requests, and its locks can be left locked. Catch
// reports such a panic and lets it end the process.
//
// Backoff is the pause before a peer that has failed is tried again.
package fault

import (
	"bytes"
	"fmt"
	"runtime/debug"
)

// maxStack bounds a Panic's stack, in bytes.
const maxStack = 8 << 10

// Panic is a panic that was caught.
type Panic struct {
	Value any
	// Stack of the goroutine, its first 8 KiB. It has addresses, but no contents of messages.
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// shared is what functions of the index begin with in a stack.
var shared = []byte("/internal/kvindex.")

// Fatal reports whether the panic passed through the index, so that the process must end.
func (p *Panic) Fatal() bool { return bytes.Contains(p.Stack, shared) }

// Catch calls f, and returns the panic that has ended it, nil without one. report is called first, to name the peer and the
// message. A Fatal panic continues after report has returned.
func Catch(f func(), report func(p *Panic)) (caught *Panic) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		stack := debug.Stack()
		p := &Panic{Value: v, Stack: stack}
		fatal := p.Fatal() // before the stack is cut
		p.Stack = stack[:min(len(stack), maxStack)]
		report(p)
		if fatal {
			panic(v)
		}
		caught = p
	}()
	f()
	return nil
}
