package accept

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// stuck is a connection whose writes wait until they are let go.
type stuck struct {
	net.Conn
	begun, free chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.begun <- struct{}{}
	<-s.free
	return len(p), nil
}

var ping = append([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0}, make([]byte, 8)...)

// arrives sends bytes and has them read.
func arrives(t *testing.T, server, client net.Conn, p []byte) error {
	t.Helper()
	if _, err := client.Write(p); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadFull(server, make([]byte, len(p)))
	return err
}

// idle waits until no write waits.
func idle(t *testing.T, c *Conn) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); c.writing.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a write still waits")
		}
	}
}

// TestFramesWhileNothingIsReadAreBounded: a connection ends whose client makes the server answer and does not read, and those of clients
// that read go on.
func TestFramesWhileNothingIsReadAreBounded(t *testing.T) {
	server, client := pipe(t, budget.New(1<<20, time.Now))
	s := &stuck{server.Conn, make(chan struct{}), make(chan struct{})}
	server.Conn, server.pacer, server.all = s, &pacer{times: 1e6}, &pacer{times: 1e6} // what light frames cost is tested elsewhere
	pings := bytes.Repeat(ping, maxUnread/2)
	if err := arrives(t, server, client, append([]byte(preface), pings...)); err != nil {
		t.Fatal(err)
	}
	for range 10 { // nothing waits
		if err := arrives(t, server, client, pings); err != nil {
			t.Fatal(err)
		}
	}
	write := func(n int) { go func() { _, _ = server.Write(make([]byte, n)) }(); <-s.begun }
	for range 10 { // all answers are written
		write(len(pings))
		if err := arrives(t, server, client, pings); err != nil {
			t.Fatal(err)
		}
		s.free <- struct{}{}
		idle(t, server)
	}
	var err error
	n := 0
	for ; n < 100 && err == nil; n++ { // a tenth of them are
		write(len(pings) / 10)
		err = arrives(t, server, client, pings)
		s.free <- struct{}{}
		idle(t, server)
	}
	if err == nil || n > 4 {
		t.Errorf("after %d times %d frames: %v", n, maxUnread/2, err)
	}
}

// TestTimeTakesFramesOffTheCount: of a client that sends all the time, too, however short its frames and the time between them are.
func TestTimeTakesFramesOffTheCount(t *testing.T) {
	for name, pay := range map[string]func(c *Conn){
		"time":           func(*Conn) { time.Sleep(time.Second / unreadPerSecond / 2) },
		"short answers":  func(c *Conn) { c.writing.Store(true); c.written.Add(writtenPerFrame / 2) },
		"longer answers": func(c *Conn) { c.writing.Store(true); c.written.Add(writtenPerFrame * 3 / 2) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Conn{headers: true}
				waiting := func(frames int) bool {
					c.writing.Store(true)
					return c.owes(frames, int(c.written.Swap(0)))
				}
				if waiting(maxUnread) {
					t.Fatal("too many at once")
				}
				for range maxUnread {
					c.writing.Store(false)
					pay(c)
					if c.owes(0, int(c.written.Swap(0))) {
						t.Fatal("too many without another frame")
					}
				}
				if waiting(maxUnread * 9 / 10 / 2) {
					t.Errorf("of %d frames %.0f are left", maxUnread, c.unread)
				}
			})
		})
	}
}
