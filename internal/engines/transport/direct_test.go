package transport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// scripted answers each request on a connection with the next bytes, after all of the request has arrived. After the last
// one it closes the connection. It counts connections.
func scripted(t *testing.T, answers ...string) (address string, connections *atomic.Int64) {
	t.Helper()
	address, connections, _ = settling(t, answers...)
	return address, connections
}

// settling is scripted. settled reports whether no answer is being sent, and no connection about to be closed.
func settling(t *testing.T, answers ...string) (address string, connections *atomic.Int64, settled func() bool) {
	t.Helper()
	var busy atomic.Int64
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	connections = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			busy.Add(1)
			go func() {
				defer busy.Add(-1)
				defer func() { _ = c.Close() }()
				in := bufio.NewReader(c)
				for _, answer := range answers {
					busy.Add(-1)
					r, err := http.ReadRequest(in)
					busy.Add(1)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), connections, func() bool { return busy.Load() == 0 }
}

func request(ctx context.Context, method, address, body string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+address+"/v1/completions?x=1", nil)
	if err != nil {
		panic(err)
	}
	if body != "" {
		r.ContentLength = int64(len(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
		r.Body, _ = r.GetBody()
		r.Header["X-Idempotency-Key"] = []string{}
	}
	return r
}

func bothOf(t *testing.T) (ours *direct, plain *http.Transport) {
	t.Helper()
	base := func() *http.Transport {
		return Transport(&http.Transport{
			DialContext: (&net.Dialer{Timeout: patience}).DialContext, MaxIdleConnsPerHost: 4, DisableCompression: true,
			MaxResponseHeaderBytes: 1 << 10,
		}, endpoint.Wire{})
	}
	ours, plain = newDirect(base()), base()
	t.Cleanup(ours.CloseIdleConnections)
	t.Cleanup(plain.CloseIdleConnections)
	return ours, plain
}

// TestDirectIsLikeNetHTTP: whatever an engine answers, the answer is that of net/http.
func TestDirectIsLikeNetHTTP(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	for name, answers := range map[string][]string{
		"a length":               {ok, ok, ok},
		"chunks and trailers":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\nA: b\r\n\r\n", ok},
		"until the end":          {"HTTP/1.1 200 OK\r\n\r\nhi"},
		"HTTP/1.0":               {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"},
		"closes":                 {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", ok},
		"no content":             {"HTTP/1.1 204 No Content\r\n\r\n", ok},
		"an error":               {"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n", ok},
		"interim answers":        {"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok, ok},
		"another protocol":       {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"},
		"a body cut short":       {"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi"},
		"chunks cut short":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n"},
		"a header cut short":     {"HTTP/1.1 200 OK\r\nContent-"},
		"nothing":                {""},
		"no HTTP":                {"hello\r\n\r\n"},
		"a header too large":     {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 1<<14) + "\r\nContent-Length: 2\r\n\r\nhi"},
		"more than was asked":    {ok + ok, ok},
		"closed after an answer": {ok},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, plain := bothOf(t)
			for _, ask := range [][2]string{{http.MethodGet, ""}, {http.MethodHead, ""}, {http.MethodPost, "some body"}} {
				answers := answers
				if ask[0] == http.MethodHead {
					if strings.Contains(name, "chunks") || name == "more than was asked" {
						continue
					}
					answers = slices.Clone(answers)
					for i, answer := range answers { // net/http races with a body that nothing asked for
						if end := strings.LastIndex(answer, "\r\n\r\n"); end >= 0 {
							answers[i] = answer[:end+len("\r\n\r\n")]
						}
					}
				}
				var got [2]string
				for i, transport := range []http.RoundTripper{ours, plain} {
					address, _, settled := settling(t, answers...)
					for range 3 {
						got[i] += outcome(transport, request(t.Context(), ask[0], address, ask[1]))
						for deadline := time.Now().Add(patience); !settled() && time.Now().Before(deadline); {
							time.Sleep(time.Millisecond) // a request that meets the end of a connection can fail
						}
					}
				}
				if got[0] != got[1] {
					t.Errorf("%s: got\n%s, net/http\n%s", ask[0], got[0], got[1])
				}
			}
		})
	}
}

// outcome puts an answer into words.
func outcome(transport http.RoundTripper, r *http.Request) string {
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return "fails\n"
	}
	defer func() { _ = answer.Body.Close() }()
	var text []byte
	if answer.StatusCode != http.StatusSwitchingProtocols {
		text, err = io.ReadAll(answer.Body)
	}
	return fmt.Sprint(answer.StatusCode, answer.ContentLength, answer.TransferEncoding, answer.Header, answer.Trailer, string(text), err != nil, "\n")
}

// Connections are used again, and only once their answer was read.
func TestDirectKeepsConnections(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	ours, _ := bothOf(t)
	address, connections := scripted(t, slices.Repeat([]string{ok}, 100)...)
	for range 5 {
		outcome(ours, request(t.Context(), http.MethodPost, address, "body"))
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for requests one after the other", n)
	}
	answer, err := ours.RoundTrip(request(t.Context(), http.MethodGet, address, ""))
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close() // unread
	if n, err := answer.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errBodyClosed) {
		t.Errorf("a closed body gives %d bytes, %v", n, err)
	}
	outcome(ours, request(t.Context(), http.MethodGet, address, ""))
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want a second one after an answer was given up", n)
	}
	ours.CloseIdleConnections()
	if ours.count != 0 || len(ours.idle) != 0 {
		t.Errorf("%d connections are idle", ours.count)
	}
}

func TestDirectBoundsIdleConnections(t *testing.T) {
	ours, _ := bothOf(t)
	ours.base.MaxIdleConns = 3
	ours.base.IdleConnTimeout = time.Hour
	put := func(host string) net.Conn {
		here, there := net.Pipe()
		ours.put(host, &directConn{Conn: here, reader: bufio.NewReader(here)})
		return there
	}
	for i := range 6 {
		put(fmt.Sprint(i % 2))
	}
	if ours.count != 3 {
		t.Errorf("%d connections are idle, at most 3", ours.count)
	}
	ours.base.MaxIdleConns = 0
	for range 6 {
		put("0")
	}
	if n := len(ours.idle["0"]); n != ours.base.MaxIdleConnsPerHost {
		t.Errorf("%d connections of a host are idle, at most %d", n, ours.base.MaxIdleConnsPerHost)
	}
	oldest := ours.idle["1"][0].since
	ours.closeIdle(oldest)
	if left := slices.Collect(maps.Keys(ours.idle)); slices.Contains(left, "1") && !ours.idle["1"][0].since.After(oldest) {
		t.Error("a connection stays that was idle for too long")
	}
	ours.closeIdle(time.Now())
	if ours.count != 0 || ours.sweep != nil {
		t.Errorf("%d connections stay; a timer runs: %v", ours.count, ours.sweep != nil)
	}
}

// A request that is given up ends at once, with the reason, in every phase.
func TestDirectGivesUp(t *testing.T) {
	reason := errors.New("enough")
	for name, answer := range map[string]string{"before the answer": "", "in its header": "HTTP/1.1 200 OK\r\n",
		"in its body": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi"} {
		t.Run(name, func(t *testing.T) {
			ours, _ := bothOf(t)
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			ctx, cancel := context.WithCancelCause(t.Context())
			over := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer func() { _ = c.Close() }()
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, answer)
				if !strings.HasSuffix(answer, "hi") {
					cancel(reason)
				}
				_, err = c.Read(make([]byte, 100))
				over <- err
			}()
			r, err := ours.RoundTrip(request(ctx, http.MethodPost, l.Addr().String(), "body"))
			if err == nil {
				buf := make([]byte, 2)
				_, _ = io.ReadFull(r.Body, buf)
				cancel(reason)
				_, err = io.ReadAll(r.Body)
			}
			if !errors.Is(err, reason) {
				t.Errorf("it fails with %v", err)
			}
			if err := <-over; err == nil {
				t.Error("the engine still reads from the connection")
			}
		})
	}
}

// An engine that answers before it has read the request, and closes: its answer counts.
func TestDirectReadsEarlyAnswers(t *testing.T) {
	ours, _ := bothOf(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1)) // an answer to nothing would be unsolicited
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	for _, n := range []int{10, maxDirect, 4 << 20} {
		if got := outcome(ours, request(t.Context(), http.MethodPost, l.Addr().String(), strings.Repeat("x", n))); !strings.HasPrefix(got, "413") {
			t.Errorf("%d bytes: %s", n, got)
		}
	}
}

// A connection has no goroutine, and a request none besides the one that sends it.
func TestDirectHasNoGoroutines(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	ours, _ := bothOf(t)
	address, _ := scripted(t, ok, ok)
	loops := func() int {
		stacks := make([]byte, 1<<20)
		return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("(*persistConn)"))
	}
	for end := time.Now().Add(10 * time.Second); loops() > 0; time.Sleep(time.Millisecond) { // those of other tests end
		if time.Now().After(end) {
			t.Fatalf("%d goroutines for connections of other tests do not end", loops())
		}
	}
	outcome(ours, request(t.Context(), http.MethodPost, address, "body"))
	if n := loops(); n > 0 || ours.count != 1 {
		t.Errorf("%d goroutines for connections; %d connections are idle", n, ours.count)
	}
}

// TestHeadersOfAnswersHaveFewFields: also if the rest of the header never comes, and after interim answers, but not the body.
func TestHeadersOfAnswersHaveFewFields(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n"
	fields, body := strings.Repeat("a:b\r\n", maxFields-10), strings.Repeat("\n", 3000)
	for name, tc := range map[string]struct {
		answer string
		fits   bool
	}{
		"few fields":                     {ok + fields + "\r\n" + body, true},
		"many fields":                    {ok + fields + fields + "\r\n" + body, false},
		"many fields, and nothing more":  {ok + strings.Repeat(fields, 10), false},
		"many fields in interim answers": {strings.Repeat("HTTP/1.1 100 Continue\r\n"+fields[:len(fields)/2]+"\r\n", 4) + ok + "\r\n" + body, false},
		"interim answers":                {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 4) + ok + fields + "\r\n" + body, true},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := scripted(t, tc.answer)
			base := &http.Transport{DialContext: new(net.Dialer).DialContext}
			answer, err := newDirect(base).RoundTrip(request(t.Context(), "GET", address, ""))
			if err == nil {
				var text []byte
				text, err = io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				if string(text) != body {
					t.Errorf("%d bytes arrive", len(text))
				}
			}
			if tc.fits != (err == nil) || !tc.fits && !errors.Is(err, errHeaderTooLarge) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte("hi"))
	})}
	go func() { _ = s.Serve(l) }()
	defer func() { _ = s.Close() }()
	base := func() *http.Transport {
		return Transport(&http.Transport{DialContext: (&net.Dialer{}).DialContext, MaxIdleConnsPerHost: 4, DisableCompression: true}, endpoint.Wire{})
	}
	body := strings.Repeat("x", 2<<10)
	for name, transport := range map[string]http.RoundTripper{"direct": newDirect(base()), "net/http": base()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := outcome(transport, request(b.Context(), http.MethodPost, l.Addr().String(), body)); got == "fails\n" {
					b.Fatal(got)
				}
			}
		})
	}
}
