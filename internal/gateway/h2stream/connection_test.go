package h2stream

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

func hpackField(name, value string) hpack.HeaderField {
	return hpack.HeaderField{Name: name, Value: value}
}

// No byte is sent that the client's windows do not allow, however small they are and however they change, and all arrive.
func TestWindowsOfTheClientAreKept(t *testing.T) {
	const size = 100_000
	text := bytes.Repeat([]byte("0123456789"), size/10)
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler {
		return &handler{halfClosed: func() { s.Send(nil, text, nil, 0); s.Finish(codes.OK, "") }}
	})
	c := h.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	c.open(1, true)
	windows := map[uint32]int{0: firstWindow, 1: 10}
	var got []byte
	steps := []func(){
		func() { c.must(c.WriteWindowUpdate(1, 1)); windows[1]++ },
		func() { // streams there are change by the difference, below nothing too
			c.must(c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
			windows[1] -= 10
		},
		func() { c.must(c.WriteWindowUpdate(1, 30_000)); windows[1] += 30_000 },
		func() { c.must(c.WriteWindowUpdate(1, 100_000)); windows[1] += 100_000 },
		func() { c.must(c.WriteWindowUpdate(0, 100_000)); windows[0] += 100_000 },
	}
	for len(got) < prefix+size {
		f, err := c.ReadFrame()
		c.must(err)
		if d, ok := f.(*http2.DataFrame); ok {
			got = append(got, d.Data()...)
			windows[0] -= int(d.Length)
			windows[1] -= int(d.Length)
			if windows[0] < 0 || windows[1] < 0 || d.Length > maxFrame || d.Length == 0 {
				t.Fatalf("a frame of %d bytes; windows %v", d.Length, windows)
			}
		}
		if (windows[1] <= 0 || windows[0] == 0) && len(steps) > 0 {
			steps[0]()
			steps = steps[1:]
		}
	}
	if !bytes.Equal(got[prefix:], text) {
		t.Error("other bytes have come")
	}
	if got := c.status(1); got != "0" {
		t.Errorf("status %s", got)
	}
}

// The server reads from a client that does not read, as far as MaxPending allows, and then no further.
func TestReceivingNeverWaitsForSending(t *testing.T) {
	const pending = 100 << 10
	var heard atomic.Int64
	h := newHouse(t, Options{MaxPending: pending}, func(_ *Call, s *Stream) *handler {
		return &handler{message: func(m []byte) {
			heard.Add(int64(len(m)))
			s.Send(nil, nil, bytes.Clone(m), 0)
		}}
	})
	c := h.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) // nothing can be sent to it
	c.open(1, false)
	piece := bytes.Repeat([]byte("x"), 10_000)
	allowed, sent := streamWindow, 0
	for sent+prefix+len(piece) <= allowed {
		c.must(c.WriteData(1, false, framed(string(piece))))
		sent += prefix + len(piece)
	}
	eventually(t, "all of it is received", func() bool { return heard.Load() == int64(sent/(prefix+len(piece))*len(piece)) })
	c.must(c.WritePing(false, [8]byte{1}))
	await(c, func(f *http2.PingFrame) bool { return f.IsAck() }) // the connection is alive
	// Once it reads, it can send again.
	c.must(c.WriteWindowUpdate(1, 2*streamWindow))
	c.must(c.WriteWindowUpdate(0, 2*streamWindow))
	await(c, func(f *http2.WindowUpdateFrame) bool { return f.StreamID == 1 })
}

// Clients that violate the windows, or HTTP, receive an error; only a violation that concerns the connection ends it.
func TestMistakesOfClients(t *testing.T) {
	big := make([]byte, maxFrame)
	for name, tc := range map[string]struct {
		play   func(c *client)
		stream http2.ErrCode // of stream 1, unless the connection ends
		all    http2.ErrCode // of the connection; 0 when it goes on
	}{
		"more than a stream's window": {play: func(c *client) {
			c.open(1, false)
			for range streamWindow/maxFrame + 1 {
				_ = c.WriteData(1, false, big)
			}
		}, stream: http2.ErrCodeFlowControl},
		"data behind the end":  {play: func(c *client) { c.open(1, true); c.must(c.WriteData(1, false, nil)) }, stream: http2.ErrCodeStreamClosed},
		"a window too large":   {play: func(c *client) { c.open(1, false); c.must(c.WriteWindowUpdate(1, maxWindow)) }, stream: http2.ErrCodeFlowControl},
		"headers twice":        {play: func(c *client) { c.open(1, false); c.open(1, false) }, stream: http2.ErrCodeProtocol},
		"a value that is none": {play: func(c *client) { c.openAs(1, []string{"content-type", "a\x00b"}) }, stream: http2.ErrCodeProtocol},
		"no path":              {play: func(c *client) { c.openAs(1, []string{":path", ""}) }, stream: http2.ErrCodeProtocol},
		"a header of HTTP/1":   {play: func(c *client) { c.open(1, false, "connection", "close") }, stream: http2.ErrCodeProtocol},
		"another TE":           {play: func(c *client) { c.open(1, false, "te", "gzip") }, stream: http2.ErrCodeProtocol},
		"a large header": {play: func(c *client) {
			c.buf.Reset()
			c.must(c.head.WriteField(hpackField(":method", "POST")))
			for range 10 {
				c.must(c.head.WriteField(hpack.HeaderField{Name: "x", Value: string(big[:8000]), Sensitive: true}))
			}
			for i, all := 0, c.buf.Bytes(); len(all) > 0; i++ {
				n := min(len(all), maxFrame)
				if i == 0 {
					c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: all[:n]}))
				} else {
					_ = c.WriteContinuation(1, n == len(all), all[:n]) // it might have ended already
				}
				all = all[n:]
			}
		}, all: http2.ErrCodeProtocol},
		"an even stream":        {play: func(c *client) { c.open(2, false) }, all: http2.ErrCodeProtocol},
		"data of no stream":     {play: func(c *client) { c.must(c.WriteData(1, false, nil)) }, all: http2.ErrCodeProtocol},
		"a reset of no stream":  {play: func(c *client) { c.must(c.WriteRSTStream(1, 0)) }, all: http2.ErrCodeProtocol},
		"a window of no stream": {play: func(c *client) { c.must(c.WriteWindowUpdate(1, 1)) }, all: http2.ErrCodeProtocol},
		"a window of all":       {play: func(c *client) { c.must(c.WriteWindowUpdate(0, maxWindow)) }, all: http2.ErrCodeFlowControl},
		"a push": {play: func(c *client) {
			c.must(c.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true}))
		}, all: http2.ErrCodeProtocol},
		"a frame too large":       {play: func(c *client) { c.open(1, false); c.must(c.WriteData(1, false, make([]byte, maxFrame+1))) }, all: http2.ErrCodeFrameSize},
		"a setting out of bounds": {play: func(c *client) { c.must(c.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})) }, all: http2.ErrCodeProtocol},
		"pings whose answers are not read": {play: func(c *client) {
			pings := bytes.Repeat(appendPing(nil, false, [8]byte{}), 1000)
			for range 10_000 { // until the sockets' buffers and the allowed backlog are full
				if _, err := c.socket.Write(pings); err != nil {
					return
				}
			}
			c.t.Error("170 MB of answers wait")
		}, all: http2.ErrCodeEnhanceYourCalm},
	} {
		t.Run(name, func(t *testing.T) {
			block := make(chan struct{})
			defer close(block)
			h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler {
				return &handler{
					message:    func([]byte) { s.Off(func() { <-block }) },
					halfClosed: func() { s.Off(func() { <-block }) },
				}
			})
			c := h.dial()
			c.t = t
			if name == "more than a stream's window" {
				c.open(1, false)
				c.must(c.WriteData(1, false, framed(""))) // it is busy with this one, and takes no other
				tc.play = func(c *client) {
					for range streamWindow/maxFrame + 1 {
						_ = c.WriteData(1, false, big)
					}
				}
			}
			tc.play(c)
			if tc.all != 0 {
				code := c.closed()
				if name != "pings whose answers are not read" && code != tc.all { // its answers cannot be waited for
					t.Errorf("it ends with %v, want %v", code, tc.all)
				}
				return
			}
			if f := await[*http2.RSTStreamFrame](c, nil); f.ErrCode != tc.stream || f.StreamID != 1 {
				t.Errorf("reset of %d with %v, want %v", f.StreamID, f.ErrCode, tc.stream)
			}
			c.must(c.WritePing(false, [8]byte{1}))
			await(c, func(f *http2.PingFrame) bool { return f.IsAck() })
		})
	}
}

// A client is sent away in the two steps of HTTP/2: what it opens before it has understood is served, what it opens
// later is not, and its streams go on.
func TestGoingAway(t *testing.T) {
	h := newHouse(t, Options{ConnectionAge: 20 * time.Millisecond}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial()
	c.open(1, false)
	if f := await[*http2.GoAwayFrame](c, nil); f.LastStreamID != maxWindow || f.ErrCode != http2.ErrCodeNo {
		t.Errorf("first told %v, %v", f.LastStreamID, f.ErrCode)
	}
	ping := await(c, func(f *http2.PingFrame) bool { return !f.IsAck() })
	c.open(3, false)
	c.must(c.WritePing(true, ping.Data))
	if f := await[*http2.GoAwayFrame](c, nil); f.LastStreamID != 3 || f.ErrCode != http2.ErrCodeNo {
		t.Errorf("then told %v, %v", f.LastStreamID, f.ErrCode)
	}
	c.open(5, false)
	if f := await[*http2.RSTStreamFrame](c, nil); f.StreamID != 5 || f.ErrCode != http2.ErrCodeRefusedStream {
		t.Errorf("reset of %d with %v", f.StreamID, f.ErrCode)
	}
	for _, id := range []uint32{1, 3} {
		c.must(c.WriteData(id, true, framed("x")))
		if got := c.status(id); got != "0" {
			t.Errorf("status %s", got)
		}
	}
	c.closed()
}

// When the server stops, clients are sent away; streams end by themselves within the grace, or are cut.
func TestStopping(t *testing.T) {
	open := func(_ *Call, s *Stream) *handler { return echo(s) }
	h := newHouse(t, Options{}, open)
	c := h.dial()
	c.open(1, false)
	eventually(t, "it is open", func() bool { n, _ := h.counts(); return n == 1 })
	cut := make(chan int)
	go func() { cut <- h.stop(patience) }()
	await(c, func(f *http2.PingFrame) bool { c.must(c.WritePing(true, f.Data)); return true })
	c.must(c.WriteData(1, true, framed("x")))
	if got := c.status(1); got != "0" {
		t.Errorf("status %s", got)
	}
	if n := <-cut; n != 0 {
		t.Errorf("%d connections cut", n)
	}
	h = newHouse(t, Options{}, open)
	c = h.dial()
	c.open(1, false)
	eventually(t, "it is open", func() bool { n, _ := h.counts(); return n == 1 })
	if n := h.stop(time.Millisecond); n != 1 {
		t.Errorf("%d connections cut", n)
	}
	if _, ended := h.counts(); ended != 1 {
		t.Error("the handler was not told")
	}
}

// Silent connections are pinged, and closed if they do not answer.
func TestSignsOfLife(t *testing.T) {
	open := func(_ *Call, s *Stream) *handler { return echo(s) }
	c := newHouse(t, Options{Keepalive: time.Millisecond, KeepaliveTimeout: 2 * time.Second}, open).dial()
	for range 2 {
		await(c, func(f *http2.PingFrame) bool { return f.Data == lifePing })
		c.must(c.WritePing(true, lifePing))
	}
	c = newHouse(t, Options{Keepalive: time.Millisecond, KeepaliveTimeout: time.Millisecond}, open).dial()
	c.closed()
}

// pipes is a listener of connections that cannot be written to without waiting.
type pipes struct {
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.incoming:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// FuzzConnection plays any bytes behind the preface. Whatever they are, the server survives, and each handler is notified of
// its end.
func FuzzConnection(f *testing.F) {
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, pair := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/s/m"}, {"content-type", "application/grpc"}} {
		_ = e.WriteField(hpackField(pair[0], pair[1]))
	}
	var seed bytes.Buffer
	frames := http2.NewFramer(&seed, nil)
	_ = frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
	_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})
	_ = frames.WriteData(1, false, framed("one"))
	_ = frames.WriteDataPadded(1, true, framed("two"), []byte{0, 0})
	_ = frames.WriteWindowUpdate(1, 100)
	_ = frames.WritePing(false, [8]byte{})
	_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: head.Bytes(), EndHeaders: true, EndStream: true})
	_ = frames.WriteRSTStream(3, 0)
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, script []byte) {
		var opened, ended atomic.Int64
		s := New(Options{MaxMessage: 1000, Open: func(_ *Call, s *Stream) Handler {
			opened.Add(1)
			one := echo(s)
			message := one.message
			one.message = func(m []byte) {
				message(m)
				if len(m)%3 == 2 {
					s.Off(func() { _ = s.Context() })
				}
			}
			one.ended = func() { ended.Add(1) }
			return one
		}})
		p := &pipes{incoming: make(chan net.Conn, 1), closed: make(chan struct{})}
		here, there := net.Pipe()
		p.incoming <- there
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _, _ = s.Serve(ctx, p, patience) }()
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_, _ = io.WriteString(here, http2.ClientPreface)
		_, _ = here.Write(script)
		_ = here.Close()
		cancel()
		<-done
		if opened.Load() != ended.Load() {
			t.Errorf("%d opened, %d ended", opened.Load(), ended.Load())
		}
	})
}
