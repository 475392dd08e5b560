package h2stream

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// patience is how long a condition can take to become true before a test fails.
const patience = 20 * time.Second

// handler is one of functions; those that are nil do nothing.
type handler struct {
	message    func(m []byte)
	halfClosed func()
	slow       func()
	ended      func()
}

func (h *handler) Message(m []byte) {
	if h.message != nil {
		h.message(m)
	}
}

func (h *handler) HalfClosed() {
	if h.halfClosed != nil {
		h.halfClosed()
	}
}

func (h *handler) Slow() {
	if h.slow != nil {
		h.slow()
	}
}

func (h *handler) Ended() {
	if h.ended != nil {
		h.ended()
	}
}

// echo sends every message back, in three parts, and finishes when the client does.
func echo(s *Stream) *handler {
	return &handler{
		message: func(m []byte) {
			m = bytes.Clone(m)
			a, b := len(m)/7, len(m)-len(m)/5
			s.Send(m[:a], m[a:b], m[b:], 0)
		},
		halfClosed: func() { s.Finish(codes.OK, "") },
	}
}

// house is a server on a real socket, with counts of what became of its streams.
type house struct {
	t       *testing.T
	address string
	// stop ends the server with a grace and waits for it. It is called by the test's cleanup at the latest.
	stop func(grace time.Duration) (cut int)

	mu            sync.Mutex
	opened, ended int
}

func newHouse(t *testing.T, o Options, open func(call *Call, s *Stream) *handler) *house {
	t.Helper()
	h := &house{t: t}
	o.Log = logr.Discard()
	o.Open = func(call *Call, s *Stream) Handler {
		one := open(call, s)
		if one == nil {
			return nil
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.opened++
		ended := one.ended
		one.ended = func() {
			h.mu.Lock()
			h.ended++
			h.mu.Unlock()
			if ended != nil {
				ended()
			}
		}
		return one
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = listener.Addr().String()
	h.run(New(o), listener)
	return h
}

func (h *house) run(s *Server, listener net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	grace := make(chan time.Duration, 1)
	go func() {
		err := s.accept(ctx, listener)
		if err != nil {
			h.t.Errorf("accept: %v", err)
		}
		done <- s.leave(<-grace)
	}()
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	stopped := false
	h.stop = func(d time.Duration) (cut int) {
		if stopped {
			return 0
		}
		stopped = true
		cancel()
		grace <- d
		cut = <-done
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.opened != h.ended {
			h.t.Errorf("%d streams opened, %d ended", h.opened, h.ended)
		}
		return cut
	}
	h.t.Cleanup(func() { h.stop(0) })
}

func (h *house) counts() (opened, ended int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opened, h.ended
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// client speaks in frames.
type client struct {
	t      *testing.T
	socket net.Conn
	*http2.Framer
	head *hpack.Encoder
	buf  bytes.Buffer
}

// dial connects and shows the preface and settings.
func (h *house) dial(settings ...http2.Setting) *client {
	h.t.Helper()
	socket, err := new(net.Dialer).DialContext(h.t.Context(), "tcp", h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.speak(socket, settings...)
}

// speak begins a connection of HTTP/2.
func (h *house) speak(socket net.Conn, settings ...http2.Setting) *client {
	h.t.Helper()
	h.t.Cleanup(func() { _ = socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(patience))
	c := &client{t: h.t, socket: socket, Framer: http2.NewFramer(socket, socket)}
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.head = hpack.NewEncoder(&c.buf)
	if _, err := io.WriteString(socket, http2.ClientPreface); err != nil {
		h.t.Fatal(err)
	}
	c.must(c.WriteSettings(settings...))
	return c
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// open opens a stream, with more headers as pairs.
func (c *client) open(id uint32, end bool, more ...string) {
	c.t.Helper()
	c.buf.Reset()
	for i, all := 0, append([]string{":method", "POST", ":scheme", "http", ":path", "/s/m", "content-type", "application/grpc", "te", "trailers"}, more...); i < len(all); i += 2 {
		c.must(c.head.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}))
	}
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.buf.Bytes(), EndHeaders: true, EndStream: end}))
}

// framed is a message with its prefix.
func framed(m string) []byte { return append([]byte{0, 0, 0, byte(len(m) >> 8), byte(len(m))}, m...) }

// await reads frames until f says that it is the one.
func await[F http2.Frame](c *client, is func(F) bool) F {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			c.t.Fatalf("waiting for %T: %v", *new(F), err)
		}
		if one, ok := f.(F); ok && (is == nil || is(one)) {
			return one
		}
	}
}

// status reads frames until a stream has ended, and gives its status.
func (c *client) status(id uint32) string {
	c.t.Helper()
	f := await(c, func(f *http2.MetaHeadersFrame) bool { return f.StreamID == id && f.StreamEnded() })
	for _, field := range f.Fields {
		if field.Name == "grpc-status" {
			return field.Value
		}
	}
	return "HTTP " + f.PseudoValue("status")
}

// closed reads until the connection ends, and gives the last GOAWAY's code.
func (c *client) closed() (code http2.ErrCode) {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() { //nolint:errorlint // as it is
				c.t.Fatal("the connection goes on")
			}
			return code
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			code = g.ErrCode
		}
	}
}
