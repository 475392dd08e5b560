package httpproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

func TestEveryContentEncodingCounts(t *testing.T) {
	h := newHouse(t, Options{}, spec(engine(t, sum)))
	for name, tc := range map[string]struct {
		lines []string
		want  int
	}{
		"none":                      {nil, 200},
		"an empty one":              {[]string{""}, 200},
		"identity, oddly written":   {[]string{"Identity, ,identity"}, 200},
		"a second line":             {[]string{"identity", "gzip"}, 415},
		"an empty line, then one":   {[]string{"", "br"}, 415},
		"a second coding in a line": {[]string{"identity, zstd"}, 415},
		"an unknown coding":         {[]string{"rot13"}, 415},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequest("POST", h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header["Content-Encoding"] = tc.lines
			if answer := h.do(r); answer.StatusCode != tc.want {
				t.Errorf("status %d, want %d", answer.StatusCode, tc.want)
			}
		})
	}
}

// A request that no engine was asked about says nothing about one.
func TestABodyThatThePoolRefusesLeavesTheCircuitOpen(t *testing.T) {
	small, large := spec(nobodyAt(t)), spec(nobodyAt(t))
	small.MaxRequestBody, large.MaxRequestBody = 1<<10, 1<<20
	small.Policy.CircuitFailures, small.Policy.CircuitOpen = 1, time.Hour
	large.Name, large.Model, large.Aliases, large.Adapters = "large", "large", nil, nil
	h := newHouse(t, Options{}, small, large)
	closed := func() bool {
		for _, s := range h.picker.Stats() {
			if s.Pool == "pool" {
				return s.Endpoints[0].CircuitClosed
			}
		}
		t.Fatal("no such pool")
		return false
	}
	if r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`); r.StatusCode != 502 || closed() {
		t.Fatalf("status %d without an engine, circuit closed: %v", r.StatusCode, closed())
	}
	r := h.post("/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x", 2<<10)+`"}`)
	if r.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", r.StatusCode)
	}
	if closed() {
		t.Error("the circuit of an engine that no request has reached is closed")
	}
	if n := h.seen.count(func(r *recorder) int { return r.refused[request.RefusedTooLarge] }); n != 1 {
		t.Errorf("%d refused as too large, want 1", n)
	}
	h.idle()
}

func TestRequestsUnderWayAreBounded(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-finish
		_, _ = io.WriteString(w, "{}")
	})
	release := sync.OnceFunc(func() { close(finish) })
	defer release()
	h := newHouse(t, Options{MaxRequests: 2}, spec(address))
	answers := make(chan int, 2)
	for range 2 {
		go func() {
			r, err := http.Post(h.url+"/v1/completions", "", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err != nil {
				answers <- 0
				return
			}
			_ = r.Body.Close()
			answers <- r.StatusCode
		}()
		await(t, "a request at the engine", arrived)
	}
	r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := read(t, r); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || !strings.Contains(text, "overloaded") {
		t.Errorf("status %d, Retry-After %q: %s", r.StatusCode, r.Header.Get("Retry-After"), text)
	}
	if n := h.seen.count(func(r *recorder) int { return r.refused[request.RefusedRequests] }); n != 1 {
		t.Errorf("%d refused for the number of requests, want 1", n)
	}
	release()
	for range 2 {
		if status := await(t, "an answer", answers); status != 200 {
			t.Errorf("status %d, want 200", status)
		}
	}
	h.idle()
	if r := h.post("/v1/models", ""); r.StatusCode == 503 {
		t.Error("the places are not free again")
	}
}

// Engines answer with what their users have written, which the log must not have.
func TestTheLogHasNoByteOfAnEngine(t *testing.T) {
	const secret = "PROMPT"
	for name, tc := range map[string]struct{ answer, want string }{
		"no HTTP":               {secret + "\r\n\r\n", "no answer that can be read as HTTP"},
		"a wrong status":        {"HTTP/1.1 " + secret + "\r\n\r\n", "no answer that can be read as HTTP"},
		"a wrong header":        {"HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n", "no answer that can be read as HTTP"},
		"a wrong length":        {"HTTP/1.1 200 OK\r\nContent-Length: " + secret + "\r\n\r\n", "no answer that can be read as HTTP"},
		"a phrase of its own":   {"HTTP/1.1 503 " + secret + "\r\nContent-Length: 0\r\n\r\n", "status 503"},
		"another protocol":      {"HTTP/1.1 101 " + secret + "\r\n\r\n", "status 101"},
		"a wrong chunk":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + secret + "\r\n", "no answer that can be read as HTTP"},
		"less than it promises": {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + secret, "the connection ended early"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var lines strings.Builder
			log := funcr.New(func(prefix, args string) {
				mu.Lock()
				defer mu.Unlock()
				lines.WriteString(prefix + args + "\n")
			}, funcr.Options{})
			h := newHouse(t, Options{Log: log}, spec(says(t, tc.answer), nobodyAt(t)))
			r, err := http.Post(h.url+"/v1/completions", "", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body) // it might end early
				_ = r.Body.Close()
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
			mu.Lock()
			defer mu.Unlock()
			if text := lines.String(); strings.Contains(text, secret) || !strings.Contains(text, fmt.Sprintf("%q", tc.want)) {
				t.Errorf("the log has no line with %q, or what the engine has said:\n%s", tc.want, text)
			}
		})
	}
}

// says listens as an engine that reads a request's header and gives an answer that is not HTTP's as it should be.
func says(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(conn, answer)
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().String()
}
