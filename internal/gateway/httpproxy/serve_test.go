package httpproxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// client1or2 speaks HTTP/1.1, or HTTP/2 without TLS.
func client1or2(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	step, stopped := make(chan struct{}), make(chan struct{})
	h := newHouse(t, Options{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		eventStream(w)
		say(w, token("a"))
		<-step
		say(w, token("b"))
		<-r.Context().Done()
		close(stopped)
	})))
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	request, err := http.NewRequestWithContext(ctx, "POST", h.url+"/v1/completions", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client1or2(t, true).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.ProtoMajor != 2 {
		t.Errorf("HTTP/%d", answer.ProtoMajor)
	}
	for _, want := range []string{token("a"), token("b")} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(answer.Body, got); err != nil || string(got) != want {
			t.Fatalf("%q %v", got, err)
		}
		if want == token("a") {
			close(step)
		}
	}
	leave()
	await(t, "the engine sees the end", stopped)
	h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 1})
}

func TestABrokenAnswerIsBrokenInHTTP2(t *testing.T) {
	h := newHouse(t, Options{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		eventStream(w)
		say(w, token("a"))
		panic(http.ErrAbortHandler)
	})))
	request, err := http.NewRequest("POST", h.url+"/v1/completions", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client1or2(t, true).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if got, err := io.ReadAll(answer.Body); err == nil {
		t.Errorf("the answer ended as if it were whole: %q", got)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
}

// served runs Serve for a handler and gives its address, what ends its context, and what waits for its result.
func served(t *testing.T, handler http.HandlerFunc, o ServeOptions) (address string, end context.CancelFunc, wait func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	o.Log = logr.Discard()
	go func() { done <- Serve(ctx, l, handler, o) }()
	t.Cleanup(cancel)
	return l.Addr().String(), cancel, func() error {
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			t.Fatal("Serve does not return")
			return nil
		}
	}
}

func TestShutdownWaitsForRequestsUnderWay(t *testing.T) {
	finish := make(chan struct{})
	address, end, wait := served(t, func(w http.ResponseWriter, _ *http.Request) {
		say(w, "a")
		<-finish
		say(w, "b")
	}, ServeOptions{Grace: patience})
	answer, err := client1or2(t, false).Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	end()
	eventually(t, "no new connections", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	close(finish)
	if got := read(t, answer); got != "ab" {
		t.Errorf("%q", got)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
}

func TestShutdownBreaksOffWhatOutlivesTheGrace(t *testing.T) {
	returned := false
	address, end, wait := served(t, func(w http.ResponseWriter, r *http.Request) {
		say(w, "a")
		<-r.Context().Done()
		time.Sleep(50 * time.Millisecond) // takes its time to clear up
		returned = true
	}, ServeOptions{Grace: 50 * time.Millisecond})
	answer, err := client1or2(t, false).Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	end()
	if err := wait(); err != nil {
		t.Error(err)
	}
	if !returned {
		t.Error("Serve returned before the handler")
	}
	if got, err := io.ReadAll(answer.Body); err == nil {
		t.Errorf("the answer ended as if it were whole: %q", got)
	}
}

func TestServeTellsOfABrokenListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := Serve(context.Background(), l, http.NotFoundHandler(), ServeOptions{Log: logr.Discard()}); err == nil {
		t.Error("no error")
	}
}

func TestHeadersAreBounded(t *testing.T) {
	address, end, wait := served(t, func(http.ResponseWriter, *http.Request) {},
		ServeOptions{MaxHeaderBytes: 4 << 10, ReadHeaderTimeout: 100 * time.Millisecond})
	for name, send := range map[string]string{
		"too large": "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"too slow":  "GET / HTTP/1.1\r\nHost: x\r\n",
		"not HTTP":  "\x00\x01\x02\xff\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(conn, send)
			answer, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection stays: %q", answer)
			}
			if strings.HasPrefix(string(answer), "HTTP/1.1 200") {
				t.Errorf("answer %q", answer)
			}
		})
	}
	end()
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// TestRequestsToTheServerItselfLeaveNothing: OPTIONS * names none of the server's paths, and its header counts as any other.
func TestRequestsToTheServerItselfLeaveNothing(t *testing.T) {
	room := budget.New(1<<20, time.Now)
	address, end, wait := served(t, func(http.ResponseWriter, *http.Request) { t.Error("it is handled as a request") }, ServeOptions{Budget: room})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	answers := bufio.NewReader(conn)
	for range 3 {
		_, _ = io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\n"+strings.Repeat("a:\r\n", 200)+"\r\n")
		r, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _ = r.Body.Close(); r.StatusCode != http.StatusOK || r.ContentLength != 0 {
			t.Errorf("%d, %d bytes", r.StatusCode, r.ContentLength)
		}
		eventually(t, "only the connection is held", func() bool { return room.Stats().Held == accept.Cost })
	}
	end()
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// TestBodiesThatNothingReadsHoldNoConnection: a request that is answered without its body, which does not come, ends its connection.
func TestBodiesThatNothingReadsHoldNoConnection(t *testing.T) {
	release, handled := make(chan struct{}), make(chan struct{}, 1)
	address, end, wait := served(t, func(http.ResponseWriter, *http.Request) { handled <- struct{}{}; <-release }, ServeOptions{MaxRequests: 2})
	send := func(text string) *bufio.Reader {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, text)
		return bufio.NewReader(conn)
	}
	options := send("OPTIONS * HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
	ended := func(what string, answers *bufio.Reader, want int) {
		r, err := http.ReadResponse(answers, nil)
		if err != nil || r.StatusCode != want {
			t.Fatalf("%s: %v, %v", what, r, err)
		}
		if _, err := io.Copy(io.Discard, answers); err != nil {
			t.Errorf("%s: its connection stays: %v", what, err)
		}
	}
	ended("OPTIONS *", options, http.StatusOK)
	send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-handled
	ended("one too many", send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"), http.StatusServiceUnavailable)
	close(release)
	end()
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// TestRequestsOfAServerAreBounded: others than the first ones are refused, until these have ended.
func TestRequestsOfAServerAreBounded(t *testing.T) {
	release := make(chan struct{})
	address, _, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			w.(http.Flusher).Flush()
			<-release
		}
	}, ServeOptions{MaxRequests: 4})
	for i := range 2 { // half of them for one address
		resp, err := http.Get("http://" + address + "/wait")
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %v %v", i, resp, err)
		}
		defer resp.Body.Close()
	}
	status := func() int {
		resp, err := http.Get("http://" + address + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := status(); got != http.StatusServiceUnavailable {
		t.Errorf("status %d beyond the bound", got)
	}
	close(release)
	eventually(t, "there is room again", func() bool { return status() == http.StatusOK })
}

// TestAClientThatTakesNothingIsClosed: and does not hold its handler for longer.
func TestAClientThatTakesNothingIsClosed(t *testing.T) {
	ended := make(chan error, 1)
	address, _, _ := served(t, func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for piece := make([]byte, 1<<20); err == nil; {
			_, err = w.Write(piece)
		}
		ended <- err
	}, ServeOptions{Stall: 50 * time.Millisecond})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("writing ends without an error")
		}
	case <-time.After(patience):
		t.Error("the handler waits for its client")
	}
}
