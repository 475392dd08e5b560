package httpproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// sum is an engine that answers with length and hash of what it has got.
func sum(w http.ResponseWriter, r *http.Request) {
	h := fnv.New64a()
	n, err := io.Copy(h, r.Body)
	_, _ = fmt.Fprintf(w, "%d %x %d %v", n, h.Sum64(), r.ContentLength, err)
}

func wantSum(body []byte) string {
	h := fnv.New64a()
	_, _ = h.Write(body)
	return fmt.Sprintf("%d %x %d <nil>", len(body), h.Sum64(), len(body))
}

// zeros gives a body of n bytes without holding it: a prompt of as many spaces as it takes.
func zeros(n int64) io.Reader {
	head, tail := `{"model":"m","prompt":"`, `"}`
	return io.MultiReader(strings.NewReader(head), io.LimitReader(spaces{}, n-int64(len(head)+len(tail))), strings.NewReader(tail))
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestBodiesOfAllSizesAndFramings(t *testing.T) {
	s := spec(engine(t, sum))
	s.MaxRequestBody = 8 << 20
	h := newHouse(t, Options{}, s)
	n := int64(0)
	for _, size := range []int64{40, firstRead - 1, firstRead, firstRead + 1, request.KeepBuffer, request.KeepBuffer + 1, 8<<20 - 1, 8 << 20} {
		body, err := io.ReadAll(zeros(size))
		if err != nil {
			t.Fatal(err)
		}
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, chunked %v", size, chunked), func(t *testing.T) {
				var reader io.Reader = bytes.NewReader(body)
				if chunked {
					reader = io.MultiReader(reader) // hides the length
				}
				request, err := http.NewRequest("POST", h.url+"/v1/completions", reader)
				if err != nil {
					t.Fatal(err)
				}
				if got := read(t, h.do(request)); got != wantSum(body) {
					t.Errorf("got %s, want %s", got, wantSum(body))
				}
				n++
			})
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: n})
}

func TestBodiesBeyondTheLimitAreRefused(t *testing.T) {
	s := spec(engine(t, func(http.ResponseWriter, *http.Request) { t.Error("the engine was asked") }))
	s.MaxRequestBody = 1 << 20
	h := newHouse(t, Options{}, s)
	cases := map[string]struct {
		size    int64
		chunked bool
		expect  string
	}{
		"one byte over":                 {1<<20 + 1, false, ""},
		"one byte over, chunked":        {1<<20 + 1, true, ""},
		"100 MB":                        {100 << 20, false, ""},
		"100 MB, chunked":               {100 << 20, true, ""},
		"100 MB, asked for permission":  {100 << 20, false, "100-continue"},
		"more than there is":            {1 << 50, false, "100-continue"},
		"more than there is, unchecked": {1 << 50, false, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequest("POST", h.url+"/v1/completions", io.NopCloser(zeros(tc.size)))
			if err != nil {
				t.Fatal(err)
			}
			request.ContentLength = tc.size
			if tc.chunked {
				request.ContentLength = -1
			}
			transport := &http.Transport{ExpectContinueTimeout: patience}
			defer transport.CloseIdleConnections()
			if tc.expect != "" {
				request.Header.Set("Expect", tc.expect)
			}
			answer, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("status %d", answer.StatusCode)
			}
		})
	}
	h.idle()
	if n := h.seen.count(func(r *recorder) int { return r.refused[request.RefusedTooLarge] }); n != len(cases) {
		t.Errorf("%d refused, want %d", n, len(cases))
	}
}

func TestAPoolMayTakeLessThanAnother(t *testing.T) {
	address := engine(t, sum)
	small, large := spec(address), spec(address)
	small.MaxRequestBody, large.MaxRequestBody = 1<<10, 1<<20
	large.Name, large.Model, large.Aliases, large.Adapters = "large", "large", nil, nil
	h := newHouse(t, Options{}, small, large)
	for model, want := range map[string]int{"m": 413, "large": 200} {
		body := fmt.Sprintf(`{"model":%q,"prompt":"%s"}`, model, strings.Repeat("x", 2<<10))
		if r := h.post("/v1/completions", body); r.StatusCode != want {
			t.Errorf("%s: status %d, want %d", model, r.StatusCode, want)
		}
	}
	h.idle()
}

func TestMemoryForBodiesIsBounded(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	s := spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-finish
		_, _ = io.WriteString(w, "{}")
	}))
	h := newHouse(t, Options{Budget: budget.New(2<<20, time.Now)}, s)
	body, err := io.ReadAll(zeros(700 << 10))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan int)
	go func() { done <- h.post("/v1/completions", string(body)).StatusCode }()
	await(t, "the first one is under way", arrived)
	r := h.post("/v1/completions", string(body))
	if text := read(t, r); r.StatusCode != 503 || !strings.Contains(text, "overloaded") || r.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %s", r.StatusCode, text)
	}
	close(finish)
	if status := await(t, "its answer", done); status != 200 {
		t.Errorf("the first one: status %d", status)
	}
	h.idle()
	go func() { <-arrived }()
	if r := h.post("/v1/completions", string(body)); r.StatusCode != 200 {
		t.Errorf("after it: status %d", r.StatusCode)
	}
	h.idle()
}

// raw is a connection to the proxy on which the test speaks HTTP itself.
func (h *house) raw(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func TestClientsThatDoNotFinish(t *testing.T) {
	head := "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
	cases := map[string]struct {
		send  string
		close func(*net.TCPConn) error
		// want is the beginning of the answer, empty for none.
		want   string
		reason string
	}{
		"stops in the middle of the body":   {head + "Content-Length: 100\r\n\r\n{", nil, "HTTP/1.1 408 ", request.RefusedSlowBody},
		"stops before a chunk ends":         {head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", nil, "HTTP/1.1 408 ", request.RefusedSlowBody},
		"half closes in the body":           {head + "Content-Length: 100\r\n\r\n{", (*net.TCPConn).CloseWrite, "HTTP/1.1 400 ", request.RefusedBrokenBody},
		"half closes in a chunk":            {head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", (*net.TCPConn).CloseWrite, "HTTP/1.1 400 ", request.RefusedBrokenBody},
		"breaks the framing":                {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{", nil, "HTTP/1.1 400 ", request.RefusedBrokenBody},
		"resets in the body":                {head + "Content-Length: 100\r\n\r\n{", (*net.TCPConn).Close, "", request.RefusedBrokenBody},
		"sends a body that is not expected": {"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", nil, "HTTP/1.1 404 ", request.RefusedPath},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			stall := 100 * time.Millisecond
			if tc.reason == request.RefusedBrokenBody { // which must not be late, too
				stall = patience
			}
			h := newHouse(t, Options{Stall: stall}, spec(engine(t, sum)))
			conn := h.raw(t)
			if _, err := io.WriteString(conn, tc.send); err != nil {
				t.Fatal(err)
			}
			if tc.close != nil {
				if err := tc.close(conn); err != nil {
					t.Fatal(err)
				}
			}
			if tc.want != "" {
				answer, err := io.ReadAll(conn) // the connection is closed
				if err != nil || !strings.HasPrefix(string(answer), tc.want) {
					t.Errorf("answer %q, %v", answer, err)
				}
			}
			eventually(t, "refused", func() bool {
				return h.seen.count(func(r *recorder) int { return r.refused[tc.reason] }) == 1
			})
			h.idle()
			if r := h.post("/v1/completions", streamed); r.StatusCode != 200 {
				t.Errorf("the next request: status %d", r.StatusCode)
			}
		})
	}
}

func TestASlowButSteadyBodyIsRead(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{Stall: inTime, MinBodyRate: 1}, spec(engine(t, sum)))
	conn := h.raw(t)
	body := `{"model":"m","prompt":"x"}`
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body)); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); len(body) > 0; body = body[1:] {
		if _, err := io.WriteString(conn, body[:1]); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) < 2*inTime { // the next piece is in time, and all of them are not
			time.Sleep(inTime / 10)
		}
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != 200 {
		t.Fatalf("%v %v", answer, err)
	}
	// The time-out of the body must not strike during the answer to the next request on the connection.
	h.idle()
}

func TestTheStallTimeDoesNotBoundTheWaitForAnAnswer(t *testing.T) {
	t.Parallel()
	const stall = time.Second // in which a busy machine moves a body that has been sent
	h := newHouse(t, Options{Stall: stall}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, next := range []func(){func() { eventStream(w) }, func() { say(w, token("a")) }} {
			timer := time.NewTimer(stall * 3 / 2)
			defer timer.Stop()
			select {
			case <-timer.C:
				next()
			case <-r.Context().Done():
			}
		}
	})))
	for _, h2 := range []bool{false, true} {
		request, err := http.NewRequest("POST", h.url+"/v1/completions", strings.NewReader(streamed))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client1or2(t, h2).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, answer); got != token("a") || answer.ProtoMajor != 1 && !h2 {
			t.Errorf("HTTP/%d: %q", answer.ProtoMajor, got)
		}
		_ = answer.Body.Close()
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 2})
}

func TestAHalfClosedClientIsGone(t *testing.T) {
	// The server cannot distinguish a client that has half closed from one that has left. What follows must not be mistaken
	// for an answer.
	arrived, stopped := make(chan struct{}), make(chan struct{})
	h := newHouse(t, Options{}, spec(engine(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(stopped)
	})))
	conn := h.raw(t)
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(streamed), streamed); err != nil {
		t.Fatal(err)
	}
	await(t, "the engine is asked", arrived)
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	await(t, "the engine sees the end", stopped)
	if answer, _ := io.ReadAll(conn); len(answer) > 0 {
		t.Errorf("answer %q", answer)
	}
	h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 1})
}

func TestPermissionToSendIsGiven(t *testing.T) {
	h := newHouse(t, Options{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" {
			t.Error("Expect was passed on")
		}
		sum(w, r)
	})))
	conn := h.raw(t)
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(streamed)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, streamed); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, answer); got != wantSum([]byte(streamed)) {
		t.Errorf("%s", got)
	}
}
