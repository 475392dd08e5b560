package httpproxy

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// smallSockets makes connections whose sockets keep little of what is sent. It counts what is read on them, and those that are closed.
type smallSockets struct {
	net.Listener
	read, closed *atomic.Int64
}

func (l smallSockets) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_ = c.(*net.TCPConn).SetWriteBuffer(1)
	return smallSocket{c, l}, nil
}

type smallSocket struct {
	net.Conn
	of smallSockets
}

func (s smallSocket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.of.read.Add(int64(n))
	return n, err
}

func (s smallSocket) Close() error {
	s.of.closed.Add(1)
	return s.Conn.Close()
}

// TestUnreadPingsTakeLittle: of clients of HTTP/2 that send pings and read nothing of the answers.
func TestUnreadPingsTakeLittle(t *testing.T) {
	const clients, each = 40, 200 << 10
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	small := smallSockets{listener, new(atomic.Int64), new(atomic.Int64)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, small, http.NotFoundHandler(),
			ServeOptions{Budget: budget.New(1<<30, time.Now), Grace: time.Millisecond})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	}()
	var begin, pings bytes.Buffer
	begin.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&begin, nil).WriteSettings()
	for range 100 {
		_ = http2.NewFramer(&pings, nil).WritePing(false, [8]byte{})
	}
	before := heap()
	for range clients {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(1)
		small.read.Store(0)
		small.closed.Store(0)
		sent := 0
		send := func(p []byte) bool {
			n, err := c.Write(p)
			sent += n
			return err == nil
		}
		send(begin.Bytes())
		for range 90 { // 10,000 unread answers end the connection in any case
			if !send(pings.Bytes()) {
				break
			}
		}
		eventually(t, "what was sent is read", func() bool { return small.read.Load() == int64(sent) || small.closed.Load() > 0 })
	}
	if took := heap() - before; took > clients*each {
		t.Errorf("%d clients take %d KiB each", clients, took/clients>>10)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
