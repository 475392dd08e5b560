package accept

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/test/certstest"
)

// watched notes the deadlines of writes.
type watched struct {
	net.Listener
	deadline *deadlines
}

// deadlines are the one that was set last, and the latest, as nanoseconds of the Unix time.
type deadlines struct{ last, latest atomic.Int64 }

func (l watched) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return watchedConn{c, l.deadline}, nil
}

type watchedConn struct {
	net.Conn
	deadline *deadlines
}

func (c watchedConn) SetWriteDeadline(t time.Time) error {
	c.deadline.last.Store(t.UnixNano())
	c.deadline.latest.Store(max(c.deadline.latest.Load(), t.UnixNano()))
	return c.Conn.SetWriteDeadline(t)
}

// securing listens, and returns what a client gets and the server's end of each connection, after its first read.
func securing(t *testing.T, h *Handshakes, prepare func(*Listener)) (dial func() (*tls.Conn, error), conns chan *Conn, deadline *deadlines) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ca := certstest.New(t)
	h.Config = &tls.Config{Certificates: []tls.Certificate{*ca.Server()}}
	deadline = new(deadlines)
	l := LimitHTTP(watched{raw, deadline}, 100, nil).Securing(h)
	prepare(l)
	t.Cleanup(func() { _ = l.Close() })
	conns = make(chan *Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Read(make([]byte, 1))
				conns <- c.(*Conn)
			}()
		}
	}()
	return func() (*tls.Conn, error) {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 20 * time.Second}, "tcp", raw.Addr().String(),
			&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
		return c, err
	}, conns, deadline
}

// TestHandshakesOfAnAddressArePaced: each takes of the address's credit, and without any it fails.
func TestHandshakesOfAnAddressArePaced(t *testing.T) {
	var l *Listener
	failed := make(chan error, 1)
	h := &Handshakes{Failed: func(_ net.Addr, err error) { failed <- err }}
	dial, conns, _ := securing(t, h, func(made *Listener) { l = made })
	credit := func() *pacer {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.pacerOf("127.0.0.1")
	}()
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("x"))
	<-conns
	credit.mu.Lock()
	if credit.debt == 0 || credit.debt > handshakeFields {
		t.Errorf("a handshake takes %v of the credit", credit.debt)
	}
	credit.debt = savedFields + 2*fieldsPerSecond*longestWait.Seconds()
	credit.mu.Unlock()
	if _, err := dial(); err == nil {
		t.Error("a handshake without credit")
	}
	if err := <-failed; !errors.Is(err, errManyHandshakes) {
		t.Errorf("error %v", err)
	}
	if done, failed := h.Counts(); done != 1 || failed != 1 {
		t.Errorf("%d handshakes succeeded, %d failed", done, failed)
	}
}

// TestTheEndOfTLSDoesNotWait: a client whose window is full holds up the close of its connection for little time.
func TestTheEndOfTLSDoesNotWait(t *testing.T) {
	for name, end := range map[string]func(*Conn) error{"Close": (*Conn).Close, "CloseWrite": (*Conn).CloseWrite} {
		t.Run(name, func(t *testing.T) {
			dial, conns, deadline := securing(t, &Handshakes{Timeout: time.Hour}, func(*Listener) {})
			c, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte("x"))
			server := <-conns
			if d := deadline.last.Load(); d != (time.Time{}).UnixNano() {
				t.Errorf("the deadline %d of the handshake stays", d)
			}
			deadline.latest.Store(0)
			_ = end(server)
			if by := time.Now().Add(closeWithin); deadline.latest.Load() > by.UnixNano() {
				t.Errorf("writes of the end can wait until %s, later than %s", time.Unix(0, deadline.latest.Load()), by)
			}
			_ = server.Close()
		})
	}
}

// TestSheddingCutsTheSocket of a connection in TLS, whatever its handshake waits for.
func TestSheddingCutsTheSocket(t *testing.T) {
	reason := make(chan error, 1)
	var l *Listener
	_, _, _ = securing(t, &Handshakes{Failed: func(_ net.Addr, err error) { reason <- err }}, func(made *Listener) { l = made })
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		l.mu.Lock()
		n := 0
		for one := range l.conns {
			one.cut()
			n++
		}
		l.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := <-reason; !strings.Contains(err.Error(), "closed") {
		t.Errorf("the handshake ends with %v", err)
	}
}

// TestAConnectionWithManyTrailersEndsAtOnce in TLS, too: its client can keep its window full, and the handler waits for the end.
func TestAConnectionWithManyTrailersEndsAtOnce(t *testing.T) {
	dial, conns, deadline := securing(t, &Handshakes{}, func(*Listener) {})
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("x"))
	server := <-conns
	server.account = budget.New(1<<20, time.Now).Open(budget.Connections, server.owner, server.address, nil)
	end, room := server.Begin(&http.Request{ProtoMajor: 1, Trailer: http.Header{"A": make([]string, 2*FreeFields)}})
	if !room {
		t.Fatal("there is no room")
	}
	server.pacer.mu.Lock()
	server.pacer.debt = savedFields + 2*fieldsPerSecond*longestWait.Seconds()
	server.pacer.mu.Unlock()
	deadline.latest.Store(0)
	end()
	if by := time.Now().Add(closeWithin); deadline.latest.Load() > by.UnixNano() {
		t.Errorf("the end can wait until %s, later than %s", time.Unix(0, deadline.latest.Load()), by)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection stays")
	}
}
