package accept

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// pipe is a connection of a listener that accounts for headers, and its client's side.
func pipe(t *testing.T, b *budget.Budget) (*Conn, net.Conn) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	client, err := net.Dial("tcp", raw.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := LimitHTTP(raw, 10, b).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return server.(*Conn), client
}

func request(version int, fields int) *http.Request {
	r := &http.Request{ProtoMajor: version, Header: http.Header{}}
	for i := range fields {
		r.Header[fmt.Sprint("X", i)] = []string{"y"}
	}
	return r
}

// TestAHeaderDrawsOnTheBudget: from its first byte until its request has ended, by fields as well as by bytes.
func TestAHeaderDrawsOnTheBudget(t *testing.T) {
	b := budget.New(1<<20, time.Now)
	server, client := pipe(t, b)
	held := func() int64 { return b.Stats().Held - Cost }
	arrives := func(text string) {
		t.Helper()
		if _, err := io.WriteString(client, text); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, make([]byte, len(text))); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // requests of one connection
		arrives("GET / HTTP/1.1\r\n")
		arrives(strings.Repeat("a:\r\n", 100))
		if got := held(); got < 100*fieldCost || got > 150*fieldCost {
			t.Errorf("%d bytes held while the header arrives", got)
		}
		end, room := server.Begin(request(1, 10))
		if got := held(); !room || got < 10*fieldCost || got > 15*fieldCost {
			t.Errorf("%d bytes held while the handler runs, room %v", got, room)
		}
		before := held()
		if arrives(strings.Repeat("\n", 1000)); held() != before {
			t.Error("the body is taken for a header")
		}
		if end(); held() != 0 {
			t.Errorf("%d bytes held after the request", held())
		}
	}
}

// TestAHeaderWithoutRoomEndsItsConnection: before all of it was read.
func TestAHeaderWithoutRoomEndsItsConnection(t *testing.T) {
	b := budget.New(256<<10, time.Now)
	server, client := pipe(t, b)
	go func() { _, _ = io.WriteString(client, "GET / HTTP/1.1\r\n"+strings.Repeat("a:\r\n", 10_000)) }()
	n, err := io.Copy(io.Discard, server)
	if err == nil || n > 20<<10 {
		t.Errorf("%d bytes were read: %v", n, err)
	}
	if s := b.Stats(); s.Refused[budget.Connections] == 0 {
		t.Errorf("nothing was refused: %+v", s)
	}
	if _ = server.Close(); b.Stats().Held != 0 {
		t.Errorf("%d bytes are left", b.Stats().Held)
	}
}

// TestFramesAreNoHeader: of requests that share a connection each counts for itself.
func TestFramesAreNoHeader(t *testing.T) {
	for name, pieces := range map[string][]string{
		"at once":   {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\n", 1000)},
		"in pieces": {"PRI", " * HTTP/2.0\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b := budget.New(1<<20, time.Now)
			server, client := pipe(t, b)
			arrives := func(text string) {
				if _, err := io.WriteString(client, text); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(server, make([]byte, len(text))); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range pieces {
				arrives(p)
			}
			one, _ := server.Begin(request(2, 10))
			two, _ := server.Begin(request(2, 20))
			arrives(strings.Repeat("\n", 2000))
			if got := b.Stats().Held - Cost; got < 30*fieldCost || got > 40*fieldCost {
				t.Errorf("%d bytes held by two requests", got)
			}
			one()
			two()
			arrives(strings.Repeat("\n", 2000))
			if got := b.Stats().Held - Cost; got != 0 {
				t.Errorf("%d bytes held after them", got)
			}
			if _, room := server.Begin(request(2, 10_000)); room {
				t.Error("there is room for a header larger than the budget")
			}
		})
	}
}
