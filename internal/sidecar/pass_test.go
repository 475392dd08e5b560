package sidecar

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// dial is a connection whose reads and writes end in time.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// exchanged is what an engine has received of a request, and its answer.
type exchanged struct {
	got     []got
	answers []answered
	closed  bool // the connection, after the last answer
}

type answered struct {
	status  int
	header  http.Header
	body    string
	length  int64
	coding  []string
	trailer http.Header
	close   bool
}

// exchanges sends raw requests, all at once, and reads the answers.
func exchanges(t *testing.T, e *engine, address, raw string, methods ...string) (x exchanged) {
	t.Helper()
	before := len(e.received())
	c := dial(t, address)
	go func() { _, _ = io.WriteString(c, raw) }()
	in := bufio.NewReader(c)
	for _, method := range methods {
		r, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%q: %v", raw[:min(len(raw), 200)], err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Del("Date") // of another second
		x.answers = append(x.answers, answered{r.StatusCode, r.Header, string(body), r.ContentLength, r.TransferEncoding, r.Trailer, r.Close})
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := in.ReadByte()
	x.closed = !errors.Is(err, os.ErrDeadlineExceeded)
	x.got = e.received()[before:]
	return x
}

// TestWhatPassesIsUnchanged: the engine receives what it would receive without the sidecar, and so does the client.
func TestWhatPassesIsUnchanged(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.Memory, o.MaxBody = 1<<20, 256<<10 }, nil)
	h.decode.does(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Twice"] = []string{"a", "", "b"}
		w.Header().Set("Server", "uvicorn")
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		switch r.URL.Path {
		case "/stream":
			asVLLM(w, []byte(streamed))
		case "/big":
			_, _ = io.WriteString(w, strings.Repeat("0123456789abcdef", 1<<15))
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		case "/500":
			w.Header()["Content-Type"] = nil
			w.WriteHeader(500)
			_, _ = io.WriteString(w, "<html>oops")
		case "/trailers":
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "x")
			w.Header().Set("X-Sum", "1")
		case "/close":
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "x")
		default:
			w.Header().Set("Content-Type", "application/json")
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, `{"n":%d}`, len(body))
		}
	})
	body := func(method, target string, n int, header string) string {
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: gateway.example:80\r\n%sContent-Length: %d\r\n\r\n%s", method, target, header, n, strings.Repeat("x", n))
	}
	bare := func(method, target, header string) string {
		return method + " " + target + " HTTP/1.1\r\nHost: gateway.example:80\r\n" + header + "\r\n"
	}
	const json = "Content-Type: application/json\r\nAuthorization: Bearer k\r\nX-Request-Id: r1\r\n"
	for name, tc := range map[string]struct{ raw, methods string }{
		"a body":              {body("POST", "/v1/completions", 100, json), "POST"},
		"a stream":            {body("POST", "/stream", 100, json), "POST"},
		"no body":             {bare("POST", "/v1/load_lora_adapter", "Content-Length: 0\r\n"), "POST"},
		"an odd path":         {bare("GET", "/a%2Fb//c%20d/../é?x=%zz&y=a+b&&=;", ""), "GET"},
		"an empty query":      {bare("GET", "/metrics?", ""), "GET"},
		"headers twice":       {bare("GET", "/x", "X-A: 1\r\nX-A: 2\r\nX-A:\r\nCookie: a=b\r\nAccept-Encoding: gzip, br\r\nUser-Agent: u\r\n"), "GET"},
		"HEAD":                {bare("HEAD", "/big", ""), "HEAD"},
		"OPTIONS":             {bare("OPTIONS", "/v1/models", "Origin: http://x\r\nAccess-Control-Request-Method: POST\r\n"), "OPTIONS"},
		"OPTIONS of all":      {bare("OPTIONS", "*", ""), "OPTIONS"},
		"a method of its own": {body("PURGE", "/x", 3, ""), "PURGE"},
		"GET with a body":     {body("GET", "/x", 5, ""), "GET"},
		"DELETE":              {bare("DELETE", "/v1/responses/1", ""), "DELETE"},
		"204":                 {bare("GET", "/204", ""), "GET"},
		"304":                 {bare("GET", "/304", "If-None-Match: \"x\"\r\n"), "GET"},
		"an error as text":    {body("POST", "/500", 10, ""), "POST"},
		"a long answer":       {bare("GET", "/big", ""), "GET"},
		"trailers":            {bare("GET", "/trailers", "Te: trailers\r\n"), "GET"},
		"an upgrade to h2c":   {bare("GET", "/x", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"), "GET"},
		"at the bound":        {body("POST", "/x", 256<<10, json), "POST"},
		"beyond the bound":    {body("POST", "/x", 256<<10+1, json), "POST"},
		"beyond the memory":   {body("POST", "/x", 4<<20, json), "POST"},
		"pipelined": {body("POST", "/x", 7, json) + bare("GET", "/204", "") + body("POST", "/stream", 9, json) + bare("HEAD", "/big", "") +
			bare("GET", "/x", ""), "POST GET POST HEAD GET"},
		"the client closes":   {body("POST", "/x", 7, "Connection: close\r\n"), "POST"},
		"chunks":              {bare("POST", "/x", "Transfer-Encoding: chunked\r\n"+json) + "3\r\nabc\r\n0\r\n\r\n", "POST"},
		"many chunks":         {bare("POST", "/x", "Transfer-Encoding: chunked\r\n") + strings.Repeat("400\r\n"+strings.Repeat("c", 1024)+"\r\n", 100) + "0\r\n\r\n", "POST"},
		"more chunks":         {bare("POST", "/x", "Transfer-Encoding: chunked\r\n") + strings.Repeat("400\r\n"+strings.Repeat("c", 1024)+"\r\n", 999) + "0\r\n\r\n", "POST"},
		"a waiting body":      {body("POST", "/x", 10, "Expect: 100-continue\r\n"), "POST POST"},
		"HTTP/1.0":            {"GET /x HTTP/1.0\r\nHost: h\r\n\r\n", "GET"},
		"HTTP/1.0, kept":      {"GET /x HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\nGET /204 HTTP/1.0\r\nHost: h\r\n\r\n", "GET GET"},
		"an absolute target":  {"GET http://gateway.example/x?y HTTP/1.1\r\nHost: gateway.example\r\n\r\n", "GET"},
		"a header of one hop": {bare("GET", "/x", "Connection: X-Mine\r\nX-Mine: 1\r\nX-Other: 2\r\n"), "GET"},
	} {
		t.Run(name, func(t *testing.T) {
			methods := strings.Fields(tc.methods)
			direct := exchanges(t, h.decode, h.decode.address(), tc.raw, methods...)
			passed := exchanges(t, h.decode, h.address, tc.raw, methods...)
			for i := range direct.got {
				one := &direct.got[i]
				for _, name := range []string{"Content-Length", "Expect", "Connection", "Te", "Upgrade", "Http2-Settings", "X-Mine"} { // of one connection
					delete(one.header, name)
				}
				delete(passed.got[i].header, "Content-Length")
				if strings.HasPrefix(one.uri, "http://") {
					one.uri = strings.TrimPrefix(one.uri, "http://gateway.example")
				}
				if name == "chunks" || name == "many chunks" { // they are held, and have a length then
					one.length, one.coding = int64(len(one.body)), nil
				}
				if one.method != "POST" && one.length == 0 {
					one.length = passed.got[i].length
				}
			}
			if !reflect.DeepEqual(direct, passed) {
				t.Errorf("without the sidecar\n%.2000s\nwith it\n%.2000s", fmt.Sprintf("%+v", direct), fmt.Sprintf("%+v", passed))
			}
		})
	}
	h.rests()
	if n := len(h.prefill.received()); n != 0 {
		t.Errorf("%d first legs", n)
	}
}

// TestAnswersOfEnginesPassToTheByte: what uvicorn sends arrives with the same header and body, in the pieces in which it was sent.
func TestAnswersOfEnginesPassToTheByte(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\ndate: Sat, 28 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n" +
		"x-request-id: 7\r\ntransfer-encoding: chunked\r\n\r\n"
	pieces := []string{": ping\n\n", "data: {\"a\":1}\n\n", "data: \xff\xfe\x00half", " of an event\n\n", "data: [DONE]\n\n"}
	next := make(chan struct{})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	serve := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return // the sidecar looks whether the engine takes connections
		}
		_, _ = io.WriteString(c, answer)
		for _, piece := range pieces {
			<-next
			_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", len(piece), piece)
		}
		_, _ = io.WriteString(c, "0\r\n\r\n")
		<-next
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	h := newHouse(t, func(o *Options) { o.Engine = l.Addr().String() }, nil)
	c := dial(t, h.address)
	if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	r, err := http.ReadResponse(in, nil) // the header arrives before anything else does
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{"Date": {"Sat, 28 Nov 2026 12:00:00 GMT"}, "Server": {"uvicorn"}, "Content-Type": {"text/event-stream; charset=utf-8"}, "X-Request-Id": {"7"}}
	if !reflect.DeepEqual(r.Header, want) {
		t.Errorf("header %v", r.Header)
	}
	for _, piece := range pieces { // each arrives before the next is sent
		next <- struct{}{}
		got := make([]byte, len(piece))
		if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != piece {
			t.Fatalf("%q, %v, want %q", got, err, piece)
		}
	}
	if rest, err := io.ReadAll(r.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	close(next)
}

// TestOtherProtocolsAreRefused: a connection that changes its protocol would not be one request.
func TestOtherProtocolsAreRefused(t *testing.T) {
	h := newHouse(t, nil, nil)
	for _, raw := range []string{
		"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
		"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
	} {
		x := exchanges(t, h.decode, h.address, raw, "GET")
		if x.answers[0].status != 501 || !strings.Contains(x.answers[0].body, "another protocol") || !x.closed || len(x.got) > 0 {
			t.Errorf("%q: %+v", raw, x)
		}
	}
	if n := h.server.Stats().Refused; n != 3 {
		t.Errorf("%d refused", n)
	}
}

// TestHostileRequestsReachNoEngine: requests that servers read in different ways are refused, and huge headers too.
func TestHostileRequestsReachNoEngine(t *testing.T) {
	h := newHouse(t, nil, nil)
	for name, tc := range map[string]struct {
		raw    string
		status int
	}{
		"a huge header":         {"GET / HTTP/1.1\r\nHost: h\r\nX-A: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", 431},
		"many headers":          {"GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X-A: b\r\n", 1<<16) + "\r\n", 431},
		"two lengths":           {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
		"a length and chunks":   {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\nab", 400},
		"another coding":        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
		"a negative length":     {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400},
		"no host":               {"GET / HTTP/1.1\r\n\r\n", 400},
		"a name with a space":   {"GET / HTTP/1.1\r\nHost: h\r\nX A: b\r\n\r\n", 400},
		"a line feed in a name": {"GET / HTTP/1.1\r\nHost: h\r\nX\x00A: b\r\n\r\n", 400},
		"no HTTP":               {"\x16\x03\x01\x02\x00\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, h.address)
			go func() { _, _ = io.WriteString(c, tc.raw) }()
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.StatusCode != tc.status {
				t.Errorf("status %d, want %d", r.StatusCode, tc.status)
			}
		})
	}
	if all := h.decode.received(); len(all) > 0 {
		t.Errorf("the engine gets %+v", all)
	}
	h.rests()
}
