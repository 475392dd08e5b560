package h2stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// cutOff reads until the server ends the connection, and returns the code that it gives.
func cutOff(t *testing.T, c *client) (code http2.ErrCode) {
	t.Helper()
	_ = c.socket.SetReadDeadline(time.Now().Add(patience))
	for {
		f, err := c.ReadFrame()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection goes on")
			}
			return code
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			code = g.ErrCode
		}
	}
}

// openAnd opens the stream of a number, and goes on with it. It fails when the connection is over.
func (c *client) openAnd(i int, f func(id uint32) error) error {
	id := uint32(3 + 2*i)
	c.buf.Reset()
	for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/s/m"}, {"content-type", "application/grpc"}} {
		if err := c.head.WriteField(hpackField(field[0], field[1])); err != nil {
			return err
		}
	}
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.buf.Bytes(), EndHeaders: true}); err != nil {
		return err
	}
	return f(id)
}

// TestFloodsEndTheConnection: frames that bring nothing are taken up to a number, and streams that are reset at once, too.
func TestFloodsEndTheConnection(t *testing.T) {
	for name, flood := range map[string]func(c *client, i int) error{
		"settings": func(c *client, i int) error {
			return c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(1000 + i%2)})
		},
		"pings":      func(c *client, _ int) error { return c.WritePing(true, [8]byte{}) },
		"priorities": func(c *client, i int) error { return c.WritePriority(uint32(3+2*(i%1000)), http2.PriorityParam{}) },
		"windows":    func(c *client, _ int) error { return c.WriteWindowUpdate(1, 1) },
		"empty data": func(c *client, _ int) error { return c.WriteData(1, false, nil) },
		"resets":     func(c *client, _ int) error { return c.WriteRSTStream(1, http2.ErrCodeCancel) },
		"data of a stream that is over": func(c *client, i int) error {
			if i == 0 {
				return c.WriteRSTStream(1, http2.ErrCodeCancel)
			}
			return c.WriteData(1, false, []byte{0})
		},
		"headers of a stream that is over": func(c *client, i int) error {
			if i == 0 {
				return c.WriteRSTStream(1, http2.ErrCodeCancel)
			}
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(), EndHeaders: true, EndStream: true})
		},
		"headers of many fields": func(c *client, i int) error {
			return c.WriteHeaders(http2.HeadersFrameParam{
				StreamID: uint32(3 + 2*i), BlockFragment: append(block(), bytes.Repeat([]byte{0x90}, 1000)...), EndHeaders: true, EndStream: true,
			})
		},
		"unknown": func(c *client, _ int) error { return c.WriteRawFrame(0x77, 0, 0, nil) },
		"rapid resets": func(c *client, i int) error {
			return c.openAnd(i, func(id uint32) error { return c.WriteRSTStream(id, http2.ErrCodeCancel) })
		},
		"made resets": func(c *client, i int) error {
			return c.openAnd(i, func(id uint32) error { return c.WriteWindowUpdate(id, maxWindow) })
		},
		"continuations": func(c *client, i int) error {
			if i == 0 {
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x82}})
			}
			return c.WriteContinuation(3, false, make([]byte, 1<<10))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
			c := h.dial()
			c.open(1, false)
			code := make(chan http2.ErrCode, 1)
			go func() { code <- cutOff(t, c) }()
			for i := range 30_000 {
				if flood(c, i) != nil {
					break
				}
			}
			select {
			case got := <-code:
				if got != http2.ErrCodeEnhanceYourCalm && got != http2.ErrCodeNo && got != http2.ErrCodeProtocol {
					t.Errorf("it ends with %v", got)
				}
			case <-time.After(patience):
				t.Error("the connection goes on")
			}
		})
	}
}

// TestSettingsCostWhatTheyConcern: a new window is one of each stream, so that few settings are a flood where many streams are open.
func TestSettingsCostWhatTheyConcern(t *testing.T) {
	const streams, settings = 1600, 400
	for _, open := range []int{0, streams} {
		h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
		c := h.dial()
		for i := range open {
			c.must(c.openAnd(i, func(uint32) error { return nil }))
		}
		go func() {
			for i := range uint32(settings) {
				if c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000 + i}) != nil {
					return
				}
			}
			_ = c.WritePing(false, [8]byte{1})
		}()
		for {
			f, err := c.ReadFrame()
			ping, ok := f.(*http2.PingFrame)
			if err == nil && (!ok || !ping.IsAck()) {
				continue
			}
			if flood := err != nil; flood != (open > 0) {
				t.Errorf("%d settings with %d streams open: %v", settings, open, err)
			}
			break
		}
	}
}

// TestAnOrdinaryConnectionIsNotAFlood: many messages, each with its windows, pings and settings now and then, and streams,
// some of them reset.
func TestAnOrdinaryConnectionIsNotAFlood(t *testing.T) {
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial()
	for i := range uint32(3000) {
		id := 1 + 2*i
		c.open(id, false)
		if i%3 == 0 {
			c.must(c.WriteRSTStream(id, http2.ErrCodeCancel))
			continue
		}
		for range 4 {
			c.must(c.WriteData(id, false, framed("x")))
			c.must(c.WriteWindowUpdate(id, 10))
			c.must(c.WriteWindowUpdate(0, 100))
		}
		c.must(c.WriteData(id, true, nil))
		if got := c.status(id); got != "0" {
			t.Fatalf("stream %d: status %s", id, got)
		}
	}
}

// TestWhatWasResetIsNotDone: the deferred work of a stream is not done if it was reset before, and no more of it runs at
// once than twice the streams that can be open.
func TestWhatWasResetIsNotDone(t *testing.T) {
	const streams = 8
	var running, most atomic.Int64
	release := make(chan struct{})
	h := newHouse(t, Options{MaxStreams: streams}, func(_ *Call, s *Stream) *handler {
		return &handler{message: func([]byte) {
			s.Off(func() {
				most.Store(max(most.Load(), running.Add(1)))
				<-release
				running.Add(-1)
			})
		}}
	})
	c := h.dial()
	code := make(chan http2.ErrCode, 1)
	go func() { code <- cutOff(t, c) }()
	for i := range 4 * fewResets { // at the latest, so many resets end it
		if c.openAnd(i, func(id uint32) error {
			if err := c.WriteData(id, false, framed("x")); err != nil {
				return err
			}
			return c.WriteRSTStream(id, http2.ErrCodeCancel)
		}) != nil {
			break
		}
	}
	select {
	case got := <-code:
		if got != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("it ends with %v", got)
		}
	case <-time.After(patience):
		t.Error("the connection goes on")
	}
	if n := most.Load(); n > 2*streams {
		t.Errorf("%d run at once", n)
	}
	close(release)
}

func TestStreamsAreBoundedAndClientsAreTold(t *testing.T) {
	const streams = 5
	h := newHouse(t, Options{MaxStreams: streams}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial()
	settings := await(c, func(f *http2.SettingsFrame) bool { return !f.IsAck() })
	if most, told := settings.Value(http2.SettingMaxConcurrentStreams); !told || most != streams {
		t.Errorf("told %v: %d streams", told, most)
	}
	for i := range uint32(streams + 1) {
		c.open(1+2*i, false)
	}
	f := await(c, func(*http2.RSTStreamFrame) bool { return true })
	if f.StreamID != 1+2*streams || f.ErrCode != http2.ErrCodeRefusedStream {
		t.Errorf("%v", f)
	}
}

// TestConnectionsAreBounded: while each has a stream.
func TestConnectionsAreBounded(t *testing.T) {
	const connections = 10
	h := newHouse(t, Options{MaxConnections: connections}, func(_ *Call, s *Stream) *handler { return echo(s) })
	served := 0
	for range connections {
		socket, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = socket.Close() }()
		_ = socket.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(socket, http2.ClientPreface) // it might be closed already
		_ = http2.NewFramer(socket, nil).WriteSettings()
		if _, err := http2.NewFramer(nil, socket).ReadFrame(); err == nil {
			served++
			c := &client{t: t, socket: socket, Framer: http2.NewFramer(socket, socket)}
			c.head = hpack.NewEncoder(&c.buf)
			c.open(1, false)
			eventually(t, "the stream is open", func() bool { opened, _ := h.counts(); return opened == served })
		}
	}
	if served != connections/2 {
		t.Errorf("%d connections of one address are served, want half of %d", served, connections)
	}
}

// TestIdleStreamsEnd: sooner while their request is not complete.
func TestIdleStreamsEnd(t *testing.T) {
	room := budget.New(1<<20, time.Now)
	h := newHouse(t, Options{Budget: room, Keepalive: 10 * time.Millisecond, RequestIdle: 50 * time.Millisecond, Idle: time.Hour}, func(call *Call, s *Stream) *handler {
		if call.Method == "/complete" {
			s.Complete()
		}
		return &handler{halfClosed: func() { s.Finish(codes.OK, "") }}
	})
	c := h.dial()
	c.openAs(1, []string{":path", "/complete"})
	c.openAs(3, []string{":path", "/incomplete"})
	for {
		f, err := c.ReadFrame()
		c.must(err)
		switch f := f.(type) {
		case *http2.PingFrame:
			if !f.IsAck() {
				c.must(c.WritePing(true, f.Data))
			}
			continue
		case *http2.RSTStreamFrame:
			if f.StreamID != 3 {
				t.Errorf("stream %d is ended", f.StreamID)
			}
		default:
			continue
		}
		break
	}
}

// TestSlowStreamsAreShed: when there is no room, streams whose requests do not arrive are shed.
func TestSlowStreamsAreShed(t *testing.T) {
	at := make(chan time.Time, 1)
	at <- time.Now()
	room := budget.New(1<<20, func() time.Time { now := <-at; at <- now; return now })
	h := newHouse(t, Options{Budget: room}, func(_ *Call, s *Stream) *handler { return echo(s) })
	part := append([]byte{0, 0, 1, 0, 0}, make([]byte, 15<<10)...)
	slow := h.dial()
	for id := uint32(1); id < 21; id += 2 {
		slow.open(id, false)
		slow.must(slow.WriteData(id, false, part))
	}
	slow.must(slow.WritePing(false, [8]byte{1}))
	await(slow, func(f *http2.PingFrame) bool { return f.IsAck() })
	now := <-at
	at <- now.Add(time.Minute)
	for id := uint32(101); room.Stats().Shed[budget.Streams] == 0; id += 2 {
		if id > 301 {
			t.Fatalf("nothing is shed: %+v", room.Stats())
		}
		slow.open(id, false)
		slow.must(slow.WriteData(id, false, part))
		slow.must(slow.WritePing(false, [8]byte{1}))
		await(slow, func(f *http2.PingFrame) bool { return f.IsAck() })
	}
}
