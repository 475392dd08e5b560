package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// touchy is an engine that answers the first request of each connection, and does with the second one what end does.
type touchy struct {
	address          string
	open             sync.Map // by the client's address, what was accepted
	accepted, served atomic.Int64
	together         int64          // as many first requests
	warm             sync.WaitGroup // are answered together
}

func newTouchy(t *testing.T, over *tls.Config, end func(c net.Conn)) *touchy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	e := &touchy{address: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.accepted.Add(1)
			e.open.Store(c.RemoteAddr().String(), c)
			if over != nil {
				c = tls.Server(c, over)
			}
			go e.serve(c, end)
		}
	}()
	return e
}

// end closes the engine's side of a connection.
func (e *touchy) end(client net.Addr) {
	if c, ok := e.open.Load(client.String()); ok {
		_ = c.(net.Conn).Close()
	}
}

func (e *touchy) serve(c net.Conn, end func(c net.Conn)) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for first := true; ; first = false {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		e.served.Add(1)
		if !first {
			end(c)
			return
		}
		if e.served.Load() <= e.together {
			e.warm.Done()
			e.warm.Wait()
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"); err != nil {
			return
		}
	}
}

// abort closes a connection by a reset.
func abort(c net.Conn) {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// kinds are the ways to send a request to an engine by HTTP/1.1.
func kinds(t *testing.T) map[string]struct {
	over *tls.Config
	wire endpoint.Wire
	body string
} {
	own, _ := signed(t, "engine.llm")
	type kind = struct {
		over *tls.Config
		wire endpoint.Wire
		body string
	}
	return map[string]kind{
		"direct":       {nil, endpoint.Wire{}, "body"},
		"a large body": {nil, endpoint.Wire{}, strings.Repeat("x", 2*maxDirect)},
		"TLS":          {own, endpoint.Wire{TLS: true, Unchecked: true}, "body"},
	}
}

// ask sends a request with a body, and reads the answer.
func (e *touchy) ask(t *testing.T, all *Transports, wire endpoint.Wire, body string, header http.Header) error {
	t.Helper()
	r := request(t.Context(), http.MethodPost, e.address, body)
	r.Header = header
	answer, err := all.RoundTrip(r, &endpoint.Endpoint{Address: e.address, Wire: wire})
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// TestARequestThatEndsAKeptConnectionIsSentOnce: the engine has received it, and drops the connection at once or later, whatever the
// client says of the request.
func TestARequestThatEndsAKeptConnectionIsSentOnce(t *testing.T) {
	const kept = 3
	for name, kind := range kinds(t) {
		for how, end := range map[string]func(net.Conn){
			"closes": func(net.Conn) {}, "resets": abort, "resets later": func(c net.Conn) { time.Sleep(2 * closedAtOnce); abort(c) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				e := newTouchy(t, kind.over, end)
				e.together = kept
				e.warm.Add(kept)
				all := NewTransports((&net.Dialer{Timeout: patience}).DialContext, func() *http.Transport {
					return &http.Transport{MaxIdleConnsPerHost: kept}
				})
				t.Cleanup(all.Close)
				over := make(chan error, kept)
				for range kept {
					go func() { over <- e.ask(t, all, kind.wire, kind.body, http.Header{}) }()
				}
				for range kept {
					if err := <-over; err != nil {
						t.Fatal(err)
					}
				}
				for i, header := range []http.Header{{"X-Idempotency-Key": {}}, {"Idempotency-Key": {"x"}}} {
					err := e.ask(t, all, kind.wire, kind.body, header)
					if got := e.served.Load() - kept; err == nil || got != int64(i+1) {
						t.Fatalf("after %d requests the engine has got %d, %v", i+1, got, err)
					}
				}
				if n := e.accepted.Load(); n != kept {
					t.Errorf("%d connections, want only the %d that were kept", n, kept)
				}
			})
		}
	}
}

// late is a connection that its engine closes after it was chosen for a second request, and before the request is written.
type late struct {
	*net.TCPConn
	closing *atomic.Int64 // how many connections are to be closed
	end     func(client net.Addr)
	writes  *atomic.Int64
}

func (c late) Write(p []byte) (int, error) {
	if isOpen(c.TCPConn) && c.writes.Add(1) > 1 && c.closing.Add(-1) >= 0 {
		c.end(c.LocalAddr())
		for deadline := time.Now().Add(patience); isOpen(c.TCPConn) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	return c.TCPConn.Write(p)
}

// isOpen reports whether neither side has closed a connection. net/http closes one whose end it has read.
func isOpen(c *net.TCPConn) bool { return unacknowledged(c) >= 0 && !ended(c) }

// TestARequestOnAStaleConnectionIsSentAgain: however many are stale at once, and no longer than there is an engine. The engine has
// closed the connection before it received anything.
func TestARequestOnAStaleConnectionIsSentAgain(t *testing.T) {
	const kept = 2
	for name, kind := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newTouchy(t, kind.over, func(net.Conn) {})
			e.together = kept
			e.warm.Add(kept)
			closing := new(atomic.Int64)
			refuse := errors.New("refused")
			var dead atomic.Bool
			all := NewTransports(func(ctx context.Context, network, address string) (net.Conn, error) {
				if dead.Load() {
					return nil, refuse
				}
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return late{c.(*net.TCPConn), closing, e.end, new(atomic.Int64)}, nil
			}, func() *http.Transport { return &http.Transport{MaxIdleConnsPerHost: kept} })
			t.Cleanup(all.Close)
			ask := func() error { return e.ask(t, all, kind.wire, kind.body, http.Header{}) }
			over := make(chan error, kept)
			for range kept {
				go func() { over <- ask() }()
			}
			for range kept {
				if err := <-over; err != nil {
					t.Fatal(err)
				}
			}
			for i, stale := range []int64{kept, 1} {
				closing.Store(stale)
				if err := ask(); err != nil {
					t.Fatalf("with %d stale connections a request fails with %v", stale, err)
				}
				if got := e.served.Load(); got != int64(kept+i+1) {
					t.Fatalf("after request %d the engine has received %d", kept+i+1, got)
				}
			}
			dead.Store(true)
			closing.Store(1)
			if err := ask(); !errors.Is(err, refuse) {
				t.Errorf("without an engine it fails with %v", err)
			}
		})
	}
}
