package h2stream

import (
	"bytes"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// Answers to messages with next to nothing in them count as pending too: a client that does not read them cannot request
// more without limit.
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

// Incomplete messages take no more together than one connection can hold, and free it.
func TestIncompleteMessagesAreBoundedTogether(t *testing.T) {
	const limit = 1 << 20
	room := budget.New(limit, time.Now)
	h := newHouse(t, Options{Budget: room}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c.must(c.WriteWindowUpdate(0, 1<<20))
	part := append([]byte{0, 0, 1, 0, 0}, make([]byte, 15<<10)...) // of 64 KiB
	id := uint32(1)
	for ; room.Stats().Refused[budget.Streams] == 0; id += 2 {
		if id > 200 {
			t.Fatalf("nothing is refused: %+v", room.Stats())
		}
		c.open(id, false)
		c.must(c.WriteData(id, false, part))
		c.must(c.WritePing(false, [8]byte{1}))
		await(c, func(f *http2.PingFrame) bool { return f.IsAck() })
	}
	if s := room.Stats(); s.Held > limit/2 || s.Held < limit/4 {
		t.Errorf("%+v", s)
	}
	other := h.dial() // for which there is room
	other.open(1, false)
	other.must(other.WriteData(1, true, framed("x")))
	if got := other.status(1); got != "0" {
		t.Errorf("status %s", got)
	}
	_ = c.socket.Close()
	_ = other.socket.Close()
	eventually(t, "all is given back", func() bool { return room.Stats().Held == 0 })
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
			_ = c.WriteWindowUpdate(1, uint32(len(f.Data())))
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

// A client that has received everything and does not close the connection cannot keep it open.
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

// A client that has made its header compression table smaller is notified, once, that none is used: strict clients accept no
// headers otherwise.
func TestASmallerTableOfHeadersIsConfirmed(t *testing.T) {
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	c.ReadMetaHeaders = nil // unchanged
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
		if reported := strings.HasPrefix(block, "\x20"); reported != (i == 0) {
			t.Errorf("headers %d begin with %q", i, block[:2])
		}
	}
}

// TestMessagesThatWaitAreBounded: those of a stream whose handler is busy, however small they are.
func TestMessagesThatWaitAreBounded(t *testing.T) {
	const limit = 1 << 20
	room, release := budget.New(limit, time.Now), make(chan struct{})
	h := newHouse(t, Options{Budget: room}, func(_ *Call, s *Stream) *handler {
		return &handler{message: func([]byte) { s.Off(func() { <-release }) }}
	})
	defer close(release)
	c := h.dial()
	c.open(1, false)
	empty := bytes.Repeat(framed(""), maxFrame/prefix)
	for left := streamWindow; left >= len(empty); left -= len(empty) { // 200,000 messages
		c.must(c.WriteData(1, false, empty))
	}
	if got := c.status(1); got != strconv.Itoa(int(codes.ResourceExhausted)) {
		t.Errorf("status %s", got)
	}
	if n := room.Stats().Refused[budget.Streams]; n == 0 {
		t.Error("nothing is refused")
	}
}

// TestStreamsDrawOnTheBudget: with their headers, before anything else of them has arrived.
func TestStreamsDrawOnTheBudget(t *testing.T) {
	const limit, header = 1 << 20, 12 << 10
	room := budget.New(limit, time.Now)
	h := newHouse(t, Options{Budget: room}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.dial()
	large := strings.Repeat("x", header)
	for id := uint32(1); id < 2*limit/header; id += 2 {
		c.open(id, false, "x-large", large)
	}
	refused := await(c, func(f *http2.MetaHeadersFrame) bool { return f.StreamEnded() })
	for _, field := range refused.Fields {
		if field.Name == "grpc-status" && field.Value != strconv.Itoa(int(codes.ResourceExhausted)) {
			t.Errorf("status %s", field.Value)
		}
	}
	if s := room.Stats(); s.Refused[budget.Streams] == 0 || s.Held < limit/4 || s.Held > limit*2/3 {
		t.Errorf("%+v", s)
	}
	_ = c.socket.Close()
	eventually(t, "all is given back", func() bool { return room.Stats().Held == 0 })
}
