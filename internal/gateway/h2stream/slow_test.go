package h2stream

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// TestRequestsMustArriveAtTheMinimumRate: one that trickles is ended, at first or later. One that arrives at the rate is not, nor one
// that is complete or has not begun to arrive.
func TestRequestsMustArriveAtTheMinimumRate(t *testing.T) {
	const idle, rate = time.Minute, 1 << 10
	var slow [10]atomic.Int32 // calls, by the first digit of the path
	streams := make(chan *Stream, 4)
	h := newHouse(t, Options{RequestIdle: idle, MinRate: rate}, func(call *Call, s *Stream) *handler {
		if call.Method == "/4" {
			s.Complete()
		}
		streams <- s
		n := &slow[call.Method[1]-'0']
		return &handler{slow: func() { n.Add(1); s.Finish(codes.DeadlineExceeded, "slow") }}
	})
	c := h.dial()
	for i, path := range []string{"/1", "/2", "/3", "/4"} {
		c.openAs(uint32(2*i+1), []string{":path", path})
	}
	var s *Stream
	for range 4 {
		s = <-streams
	}
	server, now := s.c, time.Now()
	tick := func(after time.Duration, data map[uint32]int) {
		for id, n := range data {
			for ; n > 0; n -= 10 << 10 {
				c.must(c.WriteData(id, false, make([]byte, min(n, 10<<10)))) // empty messages, and a part of one
			}
		}
		c.must(c.WritePing(false, [8]byte{1}))
		await(c, func(f *http2.PingFrame) bool { return f.IsAck() && f.Data == [8]byte{1} })
		now = now.Add(after)
		server.mu.Lock()
		server.endIdle(now)
		server.unlock()
		server.flush()
	}
	quota := rate * int(idle.Seconds())
	tick(0, nil)
	tick(idle/2, nil)
	tick(idle/2, map[uint32]int{1: 6, 3: 1, 7: 6, 5: quota - 1}) // the count begins
	for range 2 {
		tick(idle/2, map[uint32]int{1: 6, 3: quota / 2, 7: 6, 5: quota})
	}
	c.status(1)
	tick(idle/2, map[uint32]int{3: 1, 7: 6})
	tick(idle/2, map[uint32]int{3: quota / 2, 7: 6})
	tick(idle/2, map[uint32]int{3: quota/2 - 1, 7: 6})
	c.status(3)
	for i, want := range []int32{1: 1, 2: 1, 3: 0, 4: 0} {
		if n := slow[i].Load(); n != want {
			t.Errorf("stream %d was called slow %d times, want %d", i, n, want)
		}
	}
}

// TestTheEndOfARequestHasRoom: it waits for the handler even when clients hold more than the budget.
func TestTheEndOfARequestHasRoom(t *testing.T) {
	b := budget.New(1<<20, time.Now)
	entered, leave := make(chan struct{}), make(chan struct{})
	h := newHouse(t, Options{Budget: b}, func(_ *Call, s *Stream) *handler {
		return &handler{
			message:    func([]byte) { s.Off(func() { close(entered); <-leave }) },
			halfClosed: func() { s.Finish(codes.OK, "") },
		}
	})
	c := h.dial()
	c.open(1, false)
	c.must(c.WriteData(1, false, framed("x")))
	<-entered
	hog := b.Open(budget.Bodies, "hog", "", nil)
	defer hog.Close()
	hog.Must(2 << 20)
	c.must(c.WriteData(1, true, nil))
	c.must(c.WritePing(false, [8]byte{1}))
	await(c, func(f *http2.PingFrame) bool { return f.IsAck() && f.Data == [8]byte{1} })
	close(leave)
	if status := c.status(1); status != "0" {
		t.Errorf("the stream ends with %s", status)
	}
}
