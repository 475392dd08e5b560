package accept

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// A handshake takes a fraction of a millisecond of the server for its signature, so each costs a client as much as handshakeFields fields
// of headers: all connections of an address together can begin 512 a second.
const handshakeFields = 64

// SecureCost is what TLS takes of a connection besides Cost, in bytes: its keys, the client's certificates, and the buffer of a record,
// which stays as large as the largest record was.
const SecureCost = 32 << 10

// closeWithin is how long the end of a connection can wait until the client has room for the message that says so.
const closeWithin = 50 * time.Millisecond

// plainAnswer is for clients that do not speak TLS, in net/http's words.
const plainAnswer = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" +
	"Client sent an HTTP request to an HTTPS server.\n"

// Handshakes counts those of a port, and has what they are made with.
type Handshakes struct {
	// Config of the server. Its protocols can have HTTP/2.
	Config *tls.Config
	// Timeout of what the server writes. What it reads is bounded by the deadline that the server sets before its first read.
	Timeout time.Duration
	// Failed is called with the reason of each that failed; nil for nothing.
	Failed func(from net.Addr, err error)

	done, failed atomic.Uint64
}

// Counts returns how many have succeeded and failed.
func (h *Handshakes) Counts() (done, failed uint64) {
	if h == nil {
		return 0, 0
	}
	return h.done.Load(), h.failed.Load()
}

// Securing has clients speak TLS. What is inside is counted as it is without TLS. The handshake takes place in the first read.
func (l *Listener) Securing(h *Handshakes) *Listener {
	if h == nil {
		return l
	}
	l.handshakes = h
	l.config = h.Config.Clone()
	asked := l.config.GetConfigForClient
	l.config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if w, ok := hello.Conn.(*wire); ok && !w.of.pay(handshakeFields) {
			return nil, errManyHandshakes
		}
		if asked == nil {
			return nil, nil // the configuration itself
		}
		return asked(hello)
	}
	return l
}

var (
	errManyHandshakes = errors.New("too many handshakes of this address")
	errHandshakeRoom  = errors.New("no room for the messages of the handshake")
)

// wire is the socket under TLS. Until the handshake is over, what arrives draws on the budget.
type wire struct {
	net.Conn
	of      *Conn
	taken   int64 // for the handshake; of the goroutine that reads
	shaken  bool  // the handshake is over; of the goroutine that reads
	closing atomic.Bool
	state   *tls.ConnectionState // nil before; of the goroutine that reads until it is set
}

// Read reads what is encrypted.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 && !w.shaken && w.of.account != nil {
		if !w.of.account.Take(int64(n)) {
			return 0, errHandshakeRoom
		}
		w.taken += int64(n)
	}
	return n, err
}

// SetWriteDeadline bounds what TLS writes at the end of the connection more tightly than TLS itself does.
func (w *wire) SetWriteDeadline(t time.Time) error {
	if w.closing.Load() {
		if soon := time.Now().Add(closeWithin); t.IsZero() || t.After(soon) {
			t = soon
		}
	}
	return w.Conn.SetWriteDeadline(t)
}

// secure begins TLS on a connection of the listener, which has been counted.
func (l *Listener) secure(c *Conn) {
	c.wire = &wire{Conn: c.Conn, of: c}
	c.Conn = tls.Server(c.wire, l.config)
}

// handshake is done by the first read. It fails with an error that net/http does not answer.
func (c *Conn) handshake() error {
	h, secured := c.listener.handshakes, c.Conn.(*tls.Conn)
	if h.Timeout > 0 {
		_ = c.wire.SetWriteDeadline(time.Now().Add(h.Timeout))
	}
	err := secured.HandshakeContext(context.Background()) // deadlines bound it
	c.wire.shaken = true
	c.account.Put(c.wire.taken)
	if err == nil {
		_ = c.wire.SetWriteDeadline(time.Time{})
		state := secured.ConnectionState()
		c.wire.state = &state
		h.done.Add(1)
		return nil
	}
	h.failed.Add(1)
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) && plain.Conn != nil && looksLikeHTTP(plain.RecordHeader) {
		err = errors.New("the client does not speak TLS")
		_, _ = c.wire.Write([]byte(plainAnswer))
		closeWrite(c.wire.Conn)
	}
	if h.Failed != nil {
		h.Failed(c.RemoteAddr(), err)
	}
	return &net.OpError{Op: "read", Net: "tcp", Err: err}
}

// looksLikeHTTP reports whether the first bytes of a client are of a request, or of HTTP/2's preface.
func looksLikeHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH", "PRI *":
		return true
	}
	return false
}

// Secured is the state of the connection's TLS; nil without TLS. It must not be called before the first read has returned.
func (c *Conn) Secured() *tls.ConnectionState {
	if c == nil || c.wire == nil {
		return nil
	}
	return c.wire.state
}

// closeWrite closes our half of a connection.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
