package h2stream

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// Answers to messages with next to nothing in them count as pending too: who does not read them cannot ask for ever more.
func TestAnswersWithoutABodyCount(t *testing.T) {
	const pending, answer = 64 << 10, 100
	var answers atomic.Int64
	h := newHouse(t, Options{MaxPending: pending}, func(_ *Call, s *Stream) *handler {
		return &handler{message: func([]byte) {
			answers.Add(1)
			s.Send(make([]byte, answer), nil, nil, 0)
		}}
	})
	c := h.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.open(1, false)
	empty := bytes.Repeat(framed(""), maxFrame/prefix)
	for left := streamWindow; left >= len(empty); left -= len(empty) {
		c.must(c.WriteData(1, false, empty))
	}
	c.must(c.WritePing(false, [8]byte{1}))
	for {
		f, err := c.ReadFrame()
		c.must(err)
		if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 1 {
			t.Fatalf("it may send %d more, with %d answers before it", w.Increment, answers.Load())
		}
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
			break
		}
	}
	c.must(c.WriteWindowUpdate(1, maxWindow/2))
	c.must(c.WriteWindowUpdate(0, maxWindow/2))
	await(c, func(f *http2.WindowUpdateFrame) bool { return f.StreamID == 1 })
}

// Messages that never come to their end take so much memory together and no more, and give it back.
func TestIncompleteMessagesAreBoundedTogether(t *testing.T) {
	const held = 100 << 10
	h := newHouse(t, Options{MaxHeld: held}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c.must(c.WriteWindowUpdate(0, 1<<20))
	part := append([]byte{0, 0, 1, 0, 0}, make([]byte, 15<<10)...) // of 64 KiB
	for id := uint32(1); id <= 11; id += 2 {
		c.open(id, false)
		c.must(c.WriteData(id, false, part))
	}
	c.open(13, false)
	c.must(c.WriteData(13, false, part))
	if got := c.status(13); got != "8" { // RESOURCE_EXHAUSTED
		t.Errorf("status %s", got)
	}
	c.open(15, false)
	c.must(c.WriteData(15, true, framed("x"))) // whole messages are not concerned
	if got := c.status(15); got != "0" {
		t.Errorf("status %s", got)
	}
	c.must(c.WriteRSTStream(1, http2.ErrCodeCancel))
	c.open(17, false)
	c.must(c.WriteData(17, false, part))
	for range 3 {
		c.must(c.WriteData(17, false, make([]byte, 16<<10)))
	}
	c.must(c.WriteData(17, true, make([]byte, 1<<10)))
	if got := c.status(17); got != "8" { // 75 + 64 KiB
		t.Errorf("status %s", got)
	}
	for id := uint32(3); id <= 7; id += 2 {
		c.must(c.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	c.open(19, false)
	c.must(c.WriteData(19, false, part))
	for range 3 {
		c.must(c.WriteData(19, false, make([]byte, 16<<10)))
	}
	c.must(c.WriteData(19, true, make([]byte, 1<<10)))
	if got := c.status(19); got != "0" { // 30 + 64 KiB
		t.Errorf("status %s", got)
	}
}

// A client that has been sent away gets the last answer to its end, also while it goes on to say something, before the
// connection is closed.
func TestTheLastAnswerIsNotCutOff(t *testing.T) {
	const size = 3 << 20
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler {
		return &handler{halfClosed: func() {
			s.Send(nil, make([]byte, size), nil, 0)
			s.Finish(codes.OK, "")
		}}
	})
	c := h.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * size})
	c.must(c.WriteWindowUpdate(0, 2*size))
	c.open(1, false)
	eventually(t, "it is open", func() bool { n, _ := h.counts(); return n == 1 })
	cut := make(chan int, 1)
	go func() { cut <- h.stop(patience) }()
	await(c, func(f *http2.PingFrame) bool { c.must(c.WritePing(true, f.Data)); return true })
	await(c, func(f *http2.GoAwayFrame) bool { return f.LastStreamID == 1 })
	c.must(c.WriteData(1, true, nil))
	for got := 0; ; {
		f, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			got += len(f.Data())
			_ = c.WriteWindowUpdate(1, uint32(len(f.Data()))) //nolint:gosec // a frame
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() && got != prefix+size {
				t.Fatalf("%d bytes", got)
			}
		}
		if f, ok := f.(*http2.MetaHeadersFrame); ok && f.StreamEnded() {
			break
		}
	}
	_ = c.socket.Close()
	if n := <-cut; n != 0 {
		t.Errorf("%d connections cut", n)
	}
}

// Who has been told everything and does not close the connection does not keep it.
func TestNobodyLingersForLong(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{ConnectionAge: time.Millisecond}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial()
	await(c, func(f *http2.PingFrame) bool { c.must(c.WritePing(true, f.Data)); return true })
	c.closed() // its half
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c.WritePing(false, [8]byte{1}) != nil { // ours
			return
		}
	}
	t.Error("the connection goes on")
}

// A client that has made its table of header compression smaller is told, once, that none is used: strict ones take no
// headers otherwise.
func TestASmallerTableOfHeadersIsConfirmed(t *testing.T) {
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	c.ReadMetaHeaders = nil // as they come
	var blocks []string
	for id := uint32(1); id <= 3; id += 2 {
		c.open(id, false)
		c.must(c.WriteData(id, true, framed("x")))
		for end := false; !end; {
			f := await(c, func(f *http2.HeadersFrame) bool { return f.StreamID == id })
			blocks, end = append(blocks, string(f.HeaderBlockFragment())), f.StreamEnded()
		}
	}
	for i, block := range blocks {
		if told := strings.HasPrefix(block, "\x20"); told != (i == 0) {
			t.Errorf("headers %d begin with %q", i, block[:2])
		}
	}
}
