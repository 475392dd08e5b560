package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Stale connections: an engine can close a kept connection at the moment at which a request is sent on it. Such a request is sent
// again on another connection, which can be stale, too, unless it is new. It is no failure of the engine, and no retry, because the
// engine has not received it: the kernel of the engine has sent the end of the connection (FIN) before it had acknowledged a byte of
// the request. A connection that ends in any other way can have ended because of the request; then the request is not sent again here.
// Without this distinction a request that makes an engine drop its connections would be executed once for each kept connection.

// closedAtOnce is how soon after a request was written the end of its connection must be read, if the connection was stale. The
// acknowledgement is the proof; this is in case the engine has closed only its own half and still reads.
const closedAtOnce = 500 * time.Millisecond

// unacknowledged is the number of bytes written to a TCP connection that its peer has not acknowledged; -1 if it is not known, as on
// systems other than Linux. That of a unix socket whose peer has closed it is 0.
func unacknowledged(c net.Conn) int {
	n, known := -1, false
	withSocket(c, func(fd int) {
		var err error
		n, err = unix.IoctlGetInt(fd, unix.TIOCOUTQ)
		known = err == nil
	})
	if !known {
		return -1
	}
	return n
}

// ended reports whether the next read of a connection returns its end.
func ended(c net.Conn) (end bool) {
	withSocket(c, func(fd int) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		end = n == 0 && err == nil
	})
	return end
}

func withSocket(c net.Conn, f func(fd int)) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// traced is a connection of net/http to an engine. It notes whether its peer has received the present request.
type traced struct {
	net.Conn
	end     atomic.Bool // the end of the connection was read
	reset   atomic.Bool // it was reset instead; a read after that returns the end, too
	closing sync.Once

	mu      sync.Mutex // held while something is written
	written int        // bytes of the present request; guarded by mu
	last    time.Time  // when the last of them was; guarded by mu
	unheard bool       // the connection was closed, and its peer had received nothing of the request; guarded by mu
}

func (c *traced) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.Conn.Write(p)
	c.written += n
	c.last = time.Now()
	if errors.Is(err, syscall.ECONNRESET) {
		c.reset.Store(true)
	}
	return n, err
}

func (c *traced) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		c.end.Store(true)
	case err != nil:
		c.reset.Store(true)
	}
	return n, err
}

// Close judges before the socket is gone, and after a write that is interrupted for that.
func (c *traced) Close() error {
	c.closing.Do(func() {
		_ = c.SetWriteDeadline(time.Now())
		c.mu.Lock()
		defer c.mu.Unlock()
		end := !c.reset.Load() && (c.end.Load() || ended(c.Conn)) && time.Since(c.last) <= closedAtOnce
		c.unheard = c.written == 0 || end && unacknowledged(c.Conn) == c.written
	})
	return c.Conn.Close()
}

// begin notes that a request is to be written.
func (c *traced) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = 0
}

// stale closes the connection, and reports whether the engine had closed it before it received any of the request.
func (c *traced) stale() bool {
	_ = c.Close() // net/http is about to do it
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unheard
}

// traceDial has a function make traced connections.
func traceDial(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &traced{Conn: c}, nil
	}
}

// rewinding sends requests over HTTP/1.1 by net/http, which must have traced connections. It sends a request again only after a stale
// connection. By itself, net/http would do so for each kept connection that breaks.
type rewinding struct{ *http.Transport }

// RoundTrip implements http.RoundTripper. Requests without a body are sent as net/http does.
func (t rewinding) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.GetBody == nil {
		return t.Transport.RoundTrip(r)
	}
	body := r.Body
	for {
		answer, stale, err := t.try(r, body)
		if !stale {
			return answer, err
		}
		if body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
}

// try sends a request with a body. stale: on a connection that the engine had closed before.
func (t rewinding) try(r *http.Request, body io.ReadCloser) (answer *http.Response, stale bool, err error) {
	var conn *traced
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if c := tracedOf(got.Conn); c != nil && got.Reused {
			c.begin()
			conn = c
		}
	}})
	one := r.WithContext(ctx)
	one.Body, one.GetBody = body, nil // so that it is not sent again
	answer, err = t.Transport.RoundTrip(one)
	if err == nil {
		return answer, false, nil
	}
	if conn == nil || r.Context().Err() != nil {
		return nil, false, err
	}
	return nil, conn.stale(), err
}

// tracedOf is the traced connection below one of net/http.
func tracedOf(c net.Conn) *traced {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	below, _ := c.(*traced)
	return below
}
