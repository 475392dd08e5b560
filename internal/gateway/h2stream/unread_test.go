package h2stream

import (
	"bytes"
	"context"
	"io"
	"net"
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

func newUnreadHouse(t *testing.T, room *budget.Budget) (*house, *Server) {
	t.Helper()
	h := &house{t: t}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = listener.Addr().String()
	s := New(Options{Budget: room, Open: func(*Call, *Stream) Handler { return &handler{} }})
	h.run(s, smallSockets{listener})
	return h, s
}

// dialSmall connects with a socket that keeps little of what is received.
func (h *house) dialSmall() *client {
	h.t.Helper()
	socket, err := new(net.Dialer).DialContext(context.Background(), "tcp", h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	_ = socket.(*net.TCPConn).SetReadBuffer(1)
	return h.speak(socket)
}

// waiting is the most that waits for one of the connections' clients.
func (s *Server) waiting() (bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.connections {
		c.mu.Lock()
		c.wire.mu.Lock()
		bytes = max(bytes, len(c.plain)+len(c.wire.out))
		c.wire.mu.Unlock()
		c.mu.Unlock()
	}
	return bytes
}

// TestUnreadAnswersAreBounded: of a client that earns credit by messages of one byte, spends it on pings, and reads nothing.
func TestUnreadAnswersAreBounded(t *testing.T) {
	room := budget.New(1<<30, time.Now)
	h, s := newUnreadHouse(t, room)
	c := h.dialSmall()
	c.open(1, false)
	var one bytes.Buffer
	for range 10 {
		_ = http2.NewFramer(&one, nil).WriteData(1, false, []byte{0})
		one.Write(bytes.Repeat(appendPing(nil, false, [8]byte{}), 19))
	}
	most, held := 0, int64(0)
	for range 2000 { // 6 MB of answers
		if _, err := c.socket.Write(one.Bytes()); err != nil {
			break
		}
		time.Sleep(time.Millisecond) // so that the server has read most of it, or all
		most, held = max(most, s.waiting()), max(held, room.Held(budget.Connections))
	}
	eventually(t, "the connection ends", func() bool { return room.Held(budget.Connections) == 0 })
	if most > 128<<10 {
		t.Errorf("%d bytes of answers wait", most)
	}
	if held != connectionCost+unreadCost {
		t.Errorf("%d bytes are counted, want %d", held, connectionCost+unreadCost)
	}
}

// TestConnectionsDrawOnTheBudget: they are closed when there is no room for them, before a byte is read.
func TestConnectionsDrawOnTheBudget(t *testing.T) {
	room := budget.New(10*connectionCost, time.Now)
	h, _ := newUnreadHouse(t, room)
	open := 0
	for range 10 {
		socket, err := new(net.Dialer).DialContext(t.Context(), "tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		_, _ = io.WriteString(socket, http2.ClientPreface) // it might have been closed
		_ = socket.SetReadDeadline(time.Now().Add(patience))
		if n, _ := socket.Read(make([]byte, 9)); n > 0 { // settings
			open++
		}
	}
	if held := room.Held(budget.Connections); open == 0 || open == 10 || held != int64(open)*connectionCost {
		t.Errorf("%d connections are open, %d bytes are counted", open, held)
	}
}
