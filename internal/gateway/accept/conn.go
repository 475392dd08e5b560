package accept

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// fieldCost is what a field of a header takes besides its bytes: net/http keeps it in a map, with slices. A header of 64 KiB
// with the shortest fields takes 1 MiB and more.
const fieldCost = 128

// errNoRoom ends a connection whose requests' headers exceed the budget. net/http closes it without an answer, as for any failed
// read.
var errNoRoom = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("no room for the header of the request")}

// preface is how connections of HTTP/2 begin.
var preface = []byte("PRI * HTTP/2.0\r\n")

// Conn is a connection that is counted until it is closed. One of LimitHTTP accounts for the headers of its requests:
//
//	header arrives          -> what is read, and fieldCost for each line
//	Begin, the handler runs -> Cost of the header, in place of that
//	the handler has ended   -> nothing
//
// Requests of HTTP/2 share the connection, and their frames are read in pieces of bounded size, so that Begin alone counts.
type Conn struct {
	net.Conn
	leave   func()
	account *budget.Account // nil without a budget
	headers bool

	mu      sync.Mutex
	reading bool  // a header is being read, in HTTP/1
	taken   int64 // for it
}

// Read reads what the client sends. It fails when that is a header for which there is no room.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.headers && !c.count(p[:n]) {
		return 0, errNoRoom
	}
	return n, err
}

// count accounts for what was read, and reports whether there was room for it.
func (c *Conn) count(p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading && c.taken == 0 && bytes.HasPrefix(p, preface) {
		c.reading = false
	}
	if !c.reading {
		return true
	}
	n := int64(len(p)) + int64(bytes.Count(p, []byte{'\n'}))*fieldCost
	if !c.account.Take(n) {
		return false
	}
	c.taken += n
	return true
}

// Begin accounts for the header of a request whose handler begins, until the returned function is called. It fails if there is
// no room. Connections that do not account for headers always have room.
func (c *Conn) Begin(r *http.Request) (end func(), room bool) {
	if c == nil || c.account == nil {
		return func() {}, true
	}
	c.read(false)
	cost := headerCost(r)
	if !c.account.Take(cost) {
		c.read(r.ProtoMajor < 2)
		return nil, false
	}
	return func() {
		c.account.Put(cost)
		c.read(r.ProtoMajor < 2)
	}, true
}

// read begins or ends the reading of a header.
func (c *Conn) read(header bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = header && c.headers
	c.account.Put(c.taken)
	c.taken = 0
}

// headerCost is about what the header of a request takes in memory, in bytes.
func headerCost(r *http.Request) int64 {
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		n += len(name) + fieldCost
		for _, v := range values {
			n += len(v) + 16
		}
	}
	return int64(n)
}

// Close closes the connection.
func (c *Conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite closes our half of the connection, which lets net/http end it without a reset.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// SyscallConn gives access to the socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if socket, ok := c.Conn.(syscall.Conn); ok {
		return socket.SyscallConn()
	}
	return nil, errors.New("the connection has no socket")
}
