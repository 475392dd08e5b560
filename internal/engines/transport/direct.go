package transport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// maxDirect is the largest body that is sent before the answer is read, bytes. A connection takes that much even if the
	// engine answers without reading it.
	maxDirect = 64 << 10
	// keepBuffer is the largest buffer that is kept for further requests, bytes.
	keepBuffer = 2 * maxDirect
	// maxHeader is the largest header of an answer where nothing else is set, bytes.
	maxHeader = 1 << 20
	// maxFields is how many fields the header of an answer can have, those of interim answers included. A field takes more than 100 bytes
	// besides its own, and is kept while the rest of the header is awaited.
	maxFields = 256
	// maxInterim is the number of interim answers (1xx) that are skipped.
	maxInterim = 5
	// lateAnswer is how long an answer can take to arrive after the engine has closed the connection to the request.
	lateAnswer = 50 * time.Millisecond
)

// direct speaks HTTP/1.1 without TLS, in the goroutine that sends the request and reads the answer. net/http has two
// goroutines for each connection instead, and each hand-over to one of them can wake a thread; that was a large part of the
// cost of a request. Requests with large bodies, or bodies of unknown length, are left to net/http. It is safe for
// concurrent use.
type direct struct {
	base    rewinding // with the options, and for the other requests
	dial    Dial
	readers sync.Pool // of connections that are idle

	mu    sync.Mutex
	idle  map[string][]*directConn // by host, the least recently used first; guarded by mu
	count int                      // of idle; guarded by mu
	sweep *time.Timer              // runs while a connection is idle; guarded by mu
}

// newDirect takes from base the function to dial, the bounds on idle connections, and the bound on headers.
func newDirect(base *http.Transport) *direct {
	if base.MaxResponseHeaderBytes <= 0 {
		base.MaxResponseHeaderBytes = maxHeader
	}
	if base.MaxIdleConnsPerHost <= 0 {
		base.MaxIdleConnsPerHost = http.DefaultMaxIdleConnsPerHost
	}
	if base.ReadBufferSize <= 0 {
		base.ReadBufferSize = 4 << 10
	}
	d := &direct{base: rewinding{base}, dial: base.DialContext, idle: map[string][]*directConn{}}
	base.DialContext = traceDial(base.DialContext)
	d.readers.New = func() any { return bufio.NewReaderSize(nil, base.ReadBufferSize) }
	return d
}

// directConn is a connection to an engine.
type directConn struct {
	net.Conn
	reader *bufio.Reader // nil while it is idle
	left   int64         // bytes that can be read before the header of the answer ends
	lines  int           // of the header, so far
	text   bool          // the present line of the header has some
	since  time.Time     // it is idle
	used   bool          // it has carried a request before
}

var errHeaderTooLarge = errors.New("the header of the answer is too large")

// Read reads from the connection.
func (c *directConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHeaderTooLarge
	}
	n, err := c.Conn.Read(p)
	if c.left -= int64(n); c.left < math.MaxInt32 && !c.fits(p[:n]) { // else it is of the body
		c.left = 0
		return 0, errHeaderTooLarge
	}
	return n, err
}

// fits counts the lines of the header in what was read, and reports whether they are not too many. What follows the header is not
// looked at, unless it is another one, after that of an interim answer.
func (c *directConn) fits(p []byte) bool {
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			c.text = c.text || len(bytes.TrimRight(p, "\r")) > 0
			return true
		}
		empty := !c.text && len(bytes.TrimRight(p[:i], "\r")) == 0
		c.text, p = false, p[i+1:]
		if c.lines++; c.lines > maxFields+maxInterim {
			return false
		}
		if empty && !bytes.HasPrefix(p, []byte("HTTP/1.")) {
			return true
		}
	}
}

var requestBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// RoundTrip implements http.RoundTripper.
func (d *direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "http" || r.Body != nil && (r.ContentLength <= 0 || r.ContentLength > maxDirect) {
		return d.base.RoundTrip(r)
	}
	ctx, host := r.Context(), r.URL.Host
	if r.URL.Port() == "" {
		host = net.JoinHostPort(r.URL.Hostname(), "80")
	}
	c, err := d.take(ctx, host)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	answer, stale, err := d.exchange(ctx, c, host, r)
	if !stale {
		return answer, err
	}
	if r.Body != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		one := *r
		r, one.Body = &one, body
	}
	if c, err = d.connect(ctx, host); err != nil { // another kept connection could be stale, too
		closeBody(r)
		return nil, err
	}
	answer, _, err = d.exchange(ctx, c, host, r)
	return answer, err
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// CloseIdleConnections closes the connections without a request.
func (d *direct) CloseIdleConnections() {
	d.base.CloseIdleConnections()
	d.closeIdle(time.Time{})
}

// closeIdle closes the connections that have been idle since a time, or all if it is zero.
func (d *direct) closeIdle(since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for host, idle := range d.idle {
		n := 0
		for n < len(idle) && (since.IsZero() || !idle[n].since.After(since)) {
			_ = idle[n].Close()
			n++
			d.count--
		}
		if n == len(idle) {
			delete(d.idle, host)
			continue
		}
		clear(idle[:n])
		d.idle[host] = idle[n:]
	}
	if d.sweep != nil {
		d.sweep.Stop()
		d.sweep = nil
	}
	if len(d.idle) > 0 {
		d.sweepLater()
	}
}

// sweepLater has connections closed that stay idle. d.mu is held.
func (d *direct) sweepLater() {
	timeout := d.base.IdleConnTimeout
	d.sweep = time.AfterFunc(timeout, func() { d.closeIdle(time.Now().Add(-timeout)) })
}

// take returns a connection to a host: the one used last, or a new one.
func (d *direct) take(ctx context.Context, host string) (*directConn, error) {
	for {
		c := d.pop(host)
		if c == nil {
			break
		}
		if time.Since(c.since) < d.base.IdleConnTimeout && quietConn(c.Conn) {
			return c, nil
		}
		_ = c.Close()
	}
	return d.connect(ctx, host)
}

// connect makes a connection to a host.
func (d *direct) connect(ctx context.Context, host string) (*directConn, error) {
	conn, err := d.dial(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	return &directConn{Conn: conn}, nil
}

// pop takes the connection of a host that was used last, nil if there is none.
func (d *direct) pop(host string) *directConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	idle := d.idle[host]
	if len(idle) == 0 {
		return nil
	}
	d.count--
	c := idle[len(idle)-1]
	idle[len(idle)-1] = nil
	if d.idle[host] = idle[:len(idle)-1]; len(idle) == 1 {
		delete(d.idle, host)
	}
	return c
}

// put keeps a connection for the next request.
func (d *direct) put(host string, c *directConn) {
	c.reader.Reset(nil)
	d.readers.Put(c.reader)
	c.reader = nil
	c.since, c.used = time.Now(), true
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.idle[host]) >= d.base.MaxIdleConnsPerHost || d.base.MaxIdleConns > 0 && d.count >= d.base.MaxIdleConns {
		_ = c.Close()
		return
	}
	d.count++
	d.idle[host] = append(d.idle[host], c)
	if d.sweep == nil {
		d.sweepLater()
	}
}

// exchange sends a request and waits for the header of its answer. stale: the engine had closed a kept connection before it
// received any of the request, which can be sent again. The request's body is closed.
func (d *direct) exchange(
	ctx context.Context, c *directConn, host string, r *http.Request,
) (answer *http.Response, stale bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	fail := func(err error) (*http.Response, bool, error) {
		stop()
		_ = c.Close()
		if ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
		return nil, false, err
	}
	c.left, c.lines, c.text, c.reader = d.base.MaxResponseHeaderBytes, 0, false, d.readers.Get().(*bufio.Reader)
	c.reader.Reset(c)
	written, err := c.send(r)
	sentAt := time.Now()
	if err != nil {
		if written < 0 { // by the caller's fault
			return fail(err)
		}
		_ = c.SetReadDeadline(sentAt.Add(lateAnswer)) // it might have answered before it closed
	}
	sent := err
	if _, err = c.reader.Peek(1); err != nil {
		rewinds := r.Body == nil || r.GetBody != nil
		if c.used && rewinds && ctx.Err() == nil && time.Since(sentAt) <= closedAtOnce && c.unheard(written, sent, err) {
			stop()
			_ = c.Close()
			return nil, true, nil
		}
		if sent != nil {
			err = sent
		}
		return fail(err)
	}
	for range maxInterim {
		answer, err = http.ReadResponse(c.reader, r)
		if err != nil {
			return fail(err)
		}
		if answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			break
		}
	}
	c.left = math.MaxInt64
	body := &directBody{ReadCloser: answer.Body, direct: d, conn: c, ctx: ctx, stop: stop, host: host}
	body.keep = sent == nil && !answer.Close && answer.StatusCode >= 200
	if answer.Body == http.NoBody {
		body.end(body.keep)
		return answer, false, nil
	}
	answer.Body = body
	return answer, false, nil
}

// unheard reports whether the engine had closed the connection before it received any of what was written to it. The errors are
// those of the write and of the read after it. The write can have taken a reset away from the read.
func (c *directConn) unheard(written int, writing, reading error) bool {
	return written == 0 ||
		errors.Is(reading, io.EOF) && !errors.Is(writing, syscall.ECONNRESET) && unacknowledged(c.Conn) == written
}

// send writes a request in one piece, and returns how many bytes were written; -1 if the request has none.
func (c *directConn) send(r *http.Request) (written int, err error) {
	buf := requestBuffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keepBuffer {
			requestBuffers.Put(buf)
		}
	}()
	buf.Reset()
	buf.Grow(1<<10 + int(max(0, r.ContentLength)))
	if err := r.Write(buf); err != nil {
		return -1, err
	}
	return c.Write(buf.Bytes())
}

// directBody is the body of an answer. Its connection is kept when all of it was read.
type directBody struct {
	io.ReadCloser // of http.ReadResponse
	direct        *direct
	conn          *directConn
	ctx           context.Context // of the request
	stop          func() bool
	host          string
	keep          bool

	mu   sync.Mutex
	over error // what Read returns from now on; guarded by mu
}

var errBodyClosed = errors.New("the body of the answer was closed")

// Read reads from the body. It is not called concurrently, but Close can be.
func (b *directBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	over := b.over
	b.mu.Unlock()
	if over != nil {
		return 0, over
	}
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over != nil {
		return n, b.over
	}
	ended := errors.Is(err, io.EOF)
	if !ended && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	b.over = err
	b.end(ended && b.keep)
	return n, err
}

// Close closes the connection unless the answer has ended.
func (b *directBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over == nil {
		b.over = errBodyClosed
		b.end(false)
	}
	return nil
}

// end keeps the connection, or closes it.
func (b *directBody) end(keep bool) {
	if b.stop() && keep && b.conn.reader.Buffered() == 0 {
		b.direct.put(b.host, b.conn)
		return
	}
	_ = b.conn.Close()
}
