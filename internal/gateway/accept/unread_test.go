package accept

import (
	"bytes"
	"io"
	"net"
	"testing"
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

// TestFramesWhileNothingIsReadAreBounded: a connection ends whose client makes the server answer and does not read, and those of clients
// that read go on.
func TestFramesWhileNothingIsReadAreBounded(t *testing.T) {
	server, client := pipe(t, budget.New(1<<20, time.Now))
	s := &stuck{server.Conn, make(chan struct{}), make(chan struct{})}
	server.Conn = s
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
		for server.writing.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	var err error
	n := 0
	for ; n < 100 && err == nil; n++ { // a tenth of them are
		write(len(pings) / 10)
		err = arrives(t, server, client, pings)
		s.free <- struct{}{}
		for server.writing.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	if err == nil || n > 4 {
		t.Errorf("after %d times %d frames: %v", n, maxUnread/2, err)
	}
}
