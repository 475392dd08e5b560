package accept

import (
	"net"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/overload"
)

// accepted is how many of n connections to a listener are kept open while each is at work, and closes them.
func accepted(t *testing.T, l *Listener, n int) (kept int) {
	t.Helper()
	var clients, servers []net.Conn
	for range n {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	done := make(chan net.Conn)
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.(*Conn).Work(true)
			done <- c
		}
	}()
	turnedAway := func() int {
		n := l.port.TurnedAway()
		if l.overloaded != nil {
			n += l.overloaded.State().Refused[overload.Connections]
		}
		return int(n)
	}
	deadline := time.Now().Add(20 * time.Second)
	for len(servers)+turnedAway() < n {
		select {
		case c := <-done:
			servers = append(servers, c)
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d connections are taken or turned away", len(servers)+turnedAway(), n)
		}
	}
	for _, c := range servers {
		_ = c.Close()
		_ = c.Close() // counted once
	}
	for _, c := range clients {
		_ = c.Close()
	}
	_ = l.Close()
	for range done {
	}
	return len(servers)
}

func TestConnectionsAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		most   int
		budget *budget.Budget
		want   int
	}{
		"by number: half for one address":        {20, nil, 10},
		"by memory: a connection is small":       {1000, budget.New(1<<30, time.Now), 30},
		"by memory: two thirds, for one address": {1000, budget.New(30*Cost, time.Now), 20},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := Limit(raw, tc.most, tc.budget)
			if n := accepted(t, l, 30); n != tc.want {
				t.Errorf("%d connections are taken, want %d", n, tc.want)
			}
			if len(l.conns) != 0 || len(l.networks) != 0 || tc.budget != nil && tc.budget.Stats().Held != 0 {
				t.Errorf("%d connections are left", len(l.conns))
			}
		})
	}
}
