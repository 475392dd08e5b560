package accept

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// fieldCost is what a field of a header takes besides its bytes: net/http keeps it in a map, with slices. A header of 64 KiB
// with the shortest fields takes 1 MiB and more.
const fieldCost = 128

// errNoRoom ends a connection whose requests' headers exceed the budget. net/http closes it without an answer, as for any failed
// read.
var errNoRoom = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("no room for the header of the request")}

// errManyFields ends a connection whose headers have too many fields.
var errManyFields = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("too many fields in the headers of requests")}

// errUnread ends a connection of HTTP/2 whose client makes the server answer, and does not read.
var errUnread = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("too many frames while nothing is read")}

// net/http keeps up to 10,000 answers (to pings, and to data of streams that are over) for a client of HTTP/2 that does not read, of about
// 60 bytes each. So frames that are read while a write waits are counted, and maxUnread of them end the connection. Clients that read
// hardly ever let a write wait. What is written takes frames off the count: writtenPerFrame bytes are the longest such answer, and net/http
// writes them before all else. Time does too, whenever no write waits, because a write can coincide with frames that need no answer.
const maxUnread, writtenPerFrame, unreadPerSecond = 2000, 17, 500

// preface is how connections of HTTP/2 begin.
const (
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	prefaceLine = len("PRI * HTTP/2.0\r\n")
)

// Conn is a connection that is counted until it is closed. One of LimitHTTP accounts for the headers of its requests:
//
//	header arrives          -> what is read, and fieldCost for each line
//	Begin, the handler runs -> Cost of the header, in place of that
//	the handler has ended   -> nothing
//
// Requests of HTTP/2 share the connection, and their frames are read in pieces of bounded size, so that Begin alone counts. In both,
// headers with many fields are read slowly, and so are many light frames.
type Conn struct {
	net.Conn
	listener *Listener
	owner    string          // the network of the client
	address  string          // of the client, with its port
	account  *budget.Account // nil without a budget
	headers  bool
	closed   chan struct{} // once the connection is not counted any more
	wire     *wire         // the socket under TLS; nil without
	// active: the server says that a request is under way. begun: its header was complete. A connection with both is at work. used is the
	// listener's clock when it last was, or began.
	active, begun atomic.Bool
	used          atomic.Int64
	streams       int          // of Listener.Stream; guarded by the listener's mu
	held          atomic.Int64 // bytes of headers, if the listener bounds them

	writing atomic.Bool  // a write waits
	written atomic.Int64 // bytes, since the reading goroutine last looked

	frameReader
	pacer *pacer // of its address
	all   *pacer

	mu      sync.Mutex
	reading bool  // a header is being read, in HTTP/1
	taken   int64 // for it
	lines   lines // of it
}

// frameReader is what the goroutine that reads a connection knows of its frames.
type frameReader struct {
	matched int // how much of the preface was read, -1 in HTTP/1
	counter counter
	light   light
	unread  float64   // frames that were read while a write waited, as far as they count
	looked  time.Time // when time was last taken off unread
}

// Read reads what the client sends. It fails when that is a header for which there is no room, and waits when headers have many
// fields.
func (c *Conn) Read(p []byte) (int, error) {
	if c.wire != nil && !c.wire.shaken {
		if err := c.handshake(); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if n == 0 || !c.headers {
		return n, err
	}
	beyond, room := c.count(p[:n])
	if !room {
		return 0, errNoRoom
	}
	read := c.counter.count(c.frames(p[:n]))
	written := 0
	if read.frames > 0 {
		written = int(c.written.Swap(0))
	}
	if !c.pay(beyond + read.beyond + c.light.cost(read.light+read.short, read.requests, written)) {
		return 0, errManyFields
	}
	if read.frames > 0 && c.owes(read.frames, written) {
		return 0, errUnread
	}
	return n, err
}

// owes counts frames of HTTP/2 that were read after so many bytes were written, and reports whether too many answers to them can wait.
func (c *Conn) owes(frames, written int) bool {
	waits := c.writing.Load()
	paid := float64(written) / writtenPerFrame
	if c.unread == 0 && !waits {
		return false
	}
	now := time.Now()
	if !waits {
		paid += now.Sub(c.looked).Seconds() * unreadPerSecond
		frames = 0
	}
	c.looked = now
	c.unread = max(0, c.unread-paid) + float64(frames)
	return c.unread > maxUnread
}

// Write sends what the server says.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.headers {
		n, err := c.Conn.Write(p)
		c.written.Add(int64(n)) // for Paced
		return n, err
	}
	c.writing.Store(true)
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n)) // before the reading goroutine can see that nothing waits
	c.writing.Store(false)
	return n, err
}

// pause waits, unless the connection is closed.
func (c *Conn) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	}
}

// frames is the part of p that is frames of HTTP/2.
func (c *Conn) frames(p []byte) []byte {
	if c.matched < 0 {
		return nil
	}
	n := min(len(p), len(preface)-c.matched)
	if string(p[:n]) != preface[c.matched:c.matched+n] {
		c.matched = -1
		return nil
	}
	c.matched += n
	return p[n:]
}

// count accounts for what was read in HTTP/1. It returns how many fields are not free, and whether there was room for them.
func (c *Conn) count(p []byte) (beyond int, room bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading && c.taken == 0 && bytes.HasPrefix(p, []byte(preface)[:prefaceLine]) {
		c.reading = false
	}
	if !c.reading {
		return 0, true
	}
	n := int64(len(p)) + int64(bytes.Count(p, []byte{'\n'}))*fieldCost
	if !c.take(n) {
		return 0, false
	}
	c.taken += n
	return c.lines.count(p), true
}

// take takes bytes of the budget, if the connection does not hold as much as one can.
func (c *Conn) take(n int64) bool {
	most := c.listener.each
	if most == 0 {
		return c.account.Take(n)
	}
	if c.held.Add(n) > most || !c.account.Take(n) {
		c.held.Add(-n)
		return false
	}
	return true
}

// put gives bytes back.
func (c *Conn) put(n int64) {
	c.account.Put(n)
	if c.listener.each > 0 {
		c.held.Add(-n)
	}
}

// Begin accounts for the header of a request whose handler begins, until the returned function is called. It fails if there is
// no room. It waits if the header has fields that were not counted when they were read: net/http reads ahead, so those of a request
// that was sent before the last one was answered (pipelining) were taken for a body. Connections that do not account for headers always
// have room.
func (c *Conn) Begin(r *http.Request) (end func(), room bool) {
	if c == nil {
		return func() {}, true
	}
	c.begun.Store(true)
	if c.account == nil {
		return func() {}, true
	}
	counted := c.read(false)
	cost, fields := headerCost(r)
	if !c.take(cost) {
		c.read(r.ProtoMajor < 2)
		return nil, false
	}
	end = func() {
		c.put(cost)
		c.read(r.ProtoMajor < 2)
		if r.ProtoMajor < 2 && !c.pay(max(0, valuesOf(r.Trailer)-FreeFields)) { // they came with the body
			_ = c.hangUp()
		}
	}
	if r.ProtoMajor < 2 && !c.pay(max(0, fields-FreeFields-counted)) {
		end()
		return nil, false
	}
	return end, true
}

// pay takes fields off the credit, and waits as long as that takes. It fails if that is too long.
func (c *Conn) pay(fields int) (room bool) {
	now := time.Now()
	wait, room := c.pacer.wait(fields, now)
	if !room {
		return false // it takes nothing of the others' credit
	}
	waitOfAll, room := c.all.wait(fields, now)
	if wait = max(wait, waitOfAll); wait > 0 {
		c.pause(wait)
	}
	return room
}

// read begins or ends the reading of a header. It returns how many of the fields read before were not free.
func (c *Conn) read(header bool) (beyond int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	beyond = max(0, c.lines.fields-FreeFields)
	c.reading = header && c.headers
	c.put(c.taken)
	c.taken, c.lines = 0, lines{}
	return beyond
}

// headerCost is about what the header of a request takes in memory, in bytes, and its number of fields, with the request line and the
// host, which lines counts too.
func headerCost(r *http.Request) (cost int64, fields int) {
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		n += len(name) + fieldCost
		for _, v := range values {
			n += len(v) + 16
		}
	}
	return int64(n), 2 + valuesOf(r.Header)
}

func valuesOf(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
}

// Paced is plain, which has what arrives on raw without its encryption: HTTP/2 with headers that are read slowly when they have many
// fields, and with light frames, as those of LimitHTTP are. raw is of a Listener; another one is not paced.
func Paced(raw, plain net.Conn) net.Conn {
	if c, ok := raw.(*Conn); ok {
		return &paced{Conn: plain, raw: c}
	}
	return plain
}

type paced struct {
	net.Conn
	raw *Conn
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if n == 0 {
		return n, err
	}
	read := p.raw.counter.count(p.raw.frames(b[:n]))
	if !p.raw.pay(read.beyond + p.raw.light.cost(read.light, read.requests, int(p.raw.written.Swap(0)))) { // short messages are usual in gRPC
		return 0, errManyFields
	}
	return n, err
}

// Close closes the connection.
func (c *Conn) Close() error {
	defer func() {
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.listener.forget(c)
	}()
	return c.hangUp()
}

// hangUp ends the connection, without waiting long for a client that reads nothing. It is counted until Close.
func (c *Conn) hangUp() error {
	if c.wire != nil {
		c.wire.closing.Store(true)
	}
	return c.Conn.Close()
}

// CloseWrite closes our half of the connection, which lets net/http end it without a reset.
func (c *Conn) CloseWrite() error {
	if c.wire != nil {
		c.wire.closing.Store(true)
		defer closeWrite(c.wire.Conn)
	}
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
