package h2stream

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
)

// readAhead is how much a wire reads at once, in bytes.
const readAhead = 32 << 10

// wire is a socket below TLS. It reads ahead, and keeps what is written until it is flushed.
type wire struct {
	socket net.Conn
	raw    syscall.RawConn // nil when the socket cannot be written to without waiting
	// before is called before a read that can wait.
	before func()

	in   []byte // of readAhead bytes; in[r:w] are read and not consumed
	r, w int

	mu     sync.Mutex
	out    []byte // guarded by mu
	direct bool   // guarded by mu: nothing is kept; while TLS shakes hands
	try    func(fd uintptr) bool
	tried  int   // of try: the bytes written
	failed error // of try
}

func newWire(socket net.Conn) *wire {
	w := &wire{socket: socket, in: make([]byte, readAhead), before: func() {}, direct: true}
	if s, ok := socket.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			w.raw = raw
		}
	}
	w.try = func(fd uintptr) bool {
		w.tried, w.failed = syscall.Write(int(fd), w.out) // a file descriptor
		return true
	}
	return w
}

// Read implements io.Reader.
func (w *wire) Read(p []byte) (int, error) {
	if w.r == w.w {
		w.before()
		n, err := w.socket.Read(w.in)
		if n <= 0 {
			return 0, err
		}
		w.r, w.w = 0, n
	}
	n := copy(p, w.in[w.r:w.w])
	w.r += n
	return n, nil
}

// Write implements io.Writer. It never waits, once keep was called.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.direct {
		return w.socket.Write(p)
	}
	w.out = append(w.out, p...)
	return len(p), nil
}

// keep makes Write keep what it is given, from now on.
func (w *wire) keep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.direct = false
}

// flush passes to the socket what it takes without waiting, and reports whether that is everything.
func (w *wire) flush() (all bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.out) == 0 {
		return true, nil
	}
	if w.raw == nil {
		return false, nil
	}
	if err := w.raw.Write(w.try); err != nil {
		return false, err
	}
	switch {
	case errors.Is(w.failed, syscall.EAGAIN), errors.Is(w.failed, syscall.EINTR):
		return false, nil
	case w.failed != nil:
		return false, w.failed
	case w.tried == 0:
		return false, io.ErrShortWrite
	}
	left := copy(w.out, w.out[w.tried:])
	w.out = w.out[:left]
	return left == 0, nil
}

// take exchanges what is kept for an empty buffer.
func (w *wire) take(empty []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.out
	w.out = empty[:0]
	return taken
}

// tlsWire is a wire as TLS wants it.
type tlsWire struct {
	net.Conn
	*wire
}

func (t tlsWire) Read(p []byte) (int, error)  { return t.wire.Read(p) }
func (t tlsWire) Write(p []byte) (int, error) { return t.wire.Write(p) }
