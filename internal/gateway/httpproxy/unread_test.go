package httpproxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// smallSockets makes connections whose sockets keep little of what is sent.
type smallSockets struct{ net.Listener }

func (l smallSockets) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		_ = c.(*net.TCPConn).SetWriteBuffer(1)
	}
	return c, err
}

// TestUnreadPingsTakeLittle: of clients of HTTP/2 that send pings and read nothing of the answers.
func TestUnreadPingsTakeLittle(t *testing.T) {
	const clients, each = 40, 200 << 10
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, smallSockets{listener}, http.NotFoundHandler(),
			ServeOptions{Budget: budget.New(1<<30, time.Now), Grace: time.Millisecond})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	}()
	var pings bytes.Buffer
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
		_, _ = io.WriteString(c, http2.ClientPreface)
		_ = http2.NewFramer(c, nil).WriteSettings()
		for range 90 { // 10,000 unread answers end the connection in any case
			if _, err := c.Write(pings.Bytes()); err != nil {
				break
			}
		}
	}
	time.Sleep(100 * time.Millisecond) // what was sent is read
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
