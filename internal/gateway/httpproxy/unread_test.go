package httpproxy

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// smallSockets makes connections whose sockets keep little of what is sent. It counts what is read on each.
type smallSockets struct {
	net.Listener
	clients *sync.Map // by the client's address: *smallCounts
}

// smallCounts are the bytes that were read on a connection, and whether it was closed.
type smallCounts struct {
	read   atomic.Int64
	closed atomic.Bool
}

func (l smallSockets) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_ = c.(*net.TCPConn).SetWriteBuffer(1)
	counts := &smallCounts{}
	l.clients.Store(c.RemoteAddr().String(), counts)
	return smallSocket{c, counts}, nil
}

// of returns the counts of a client's connection, once it is accepted.
func (l smallSockets) of(client net.Conn) *smallCounts {
	counts, ok := l.clients.Load(client.LocalAddr().String())
	if !ok {
		return &smallCounts{}
	}
	return counts.(*smallCounts)
}

type smallSocket struct {
	net.Conn
	*smallCounts
}

func (s smallSocket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.read.Add(int64(n))
	return n, err
}

func (s smallSocket) Close() error {
	s.closed.Store(true)
	return s.Conn.Close()
}

// TestUnreadPingsTakeLittle: of clients of HTTP/2 that send pings and read nothing of the answers.
func TestUnreadPingsTakeLittle(t *testing.T) {
	const clients, each = 40, 200 << 10
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	small := smallSockets{listener, new(sync.Map)}
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
		eventually(t, "what was sent is read", func() bool { return small.of(c).read.Load() == int64(sent) || small.of(c).closed.Load() })
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
