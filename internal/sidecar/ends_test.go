package sidecar

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// waits waits until a channel is closed, or the client leaves.
func waits(r *http.Request, until <-chan struct{}) {
	select {
	case <-until:
	case <-r.Context().Done():
	}
}

// TestRequestsAreBounded: beyond the bound, requests are refused; those that are under way go on.
func TestRequestsAreBounded(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.MaxRequests = 2 }, nil)
	arrived, release := make(chan struct{}, 3), make(chan struct{})
	h.decode.does(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		waits(r, release)
		_, _ = io.WriteString(w, "{}")
	})
	replies := make(chan reply, 2)
	for range 2 {
		go func() { replies <- h.ask(whole) }()
		await(t, arrived)
	}
	if r := h.ask(whole); r.status != 503 || !strings.Contains(r.body, "too many requests") {
		t.Errorf("%+v", r)
	}
	close(release)
	for range 2 {
		if r := <-replies; r.status != 200 {
			t.Errorf("%+v", r)
		}
	}
	h.rests()
}

// TestWithoutRoomRequestsAreServedAlone: a body for which there is no room passes as it arrives, and is not handed over.
func TestWithoutRoomRequestsAreServedAlone(t *testing.T) {
	long := strings.Replace(whole, `"prompt"`, `"user":"`+strings.Repeat("x", 100<<10)+`","prompt"`, 1)
	for name, tc := range map[string]struct {
		memory, most int64
		body         string
	}{
		"for the body":            {64 << 10, 1 << 20, long},
		"for the legs":            {1 << 20, 1 << 20, long},
		"beyond the bound of one": {64 << 20, 64 << 10, long},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, func(o *Options) { o.Memory, o.MaxBody = tc.memory, tc.most }, nil)
			r := h.ask(tc.body, relay.TicketHeader, h.ticket())
			if r.status != 200 || reportOf(t, r) != (relay.Report{Outcome: relay.NoMemory, Prompt: -1, Cached: -1}) {
				t.Fatalf("%+v", r)
			}
			if all := h.decode.received(); len(all) != 1 || all[0].body != tc.body || len(h.prefill.received()) > 0 {
				t.Error("it does not arrive as it was sent")
			}
			h.rests()
		})
	}
}

// TestAKeptConnectionCanBeClosedByTheEngine: a request for which the engine has just closed a connection is sent again, whatever its size.
func TestAKeptConnectionCanBeClosedByTheEngine(t *testing.T) {
	h := newHouse(t, nil, nil)
	for _, size := range []int{1, 1 << 20} {
		body := strings.Repeat("x", size)
		for range 3 {
			if r := h.ask(body); r.status != 200 || r.err != nil {
				t.Fatalf("%+v", r)
			}
			h.decode.http.CloseClientConnections()
		}
	}
}

// TestClientsThatDoNotReadAreGivenUp: neither the client's connection nor the engine's stays.
func TestClientsThatDoNotReadAreGivenUp(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.Stall = 100 * time.Millisecond }, nil)
	left := make(chan struct{})
	h.decode.does(func(w http.ResponseWriter, r *http.Request) {
		defer close(left)
		for r.Context().Err() == nil {
			if _, err := w.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
				return
			}
		}
	})
	c := dial(t, h.address)
	_, _ = io.WriteString(c, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
	await(t, left)
	h.rests()
}

// TestClientsThatSendNoBodyAreGivenUp: what is held for them is free again.
func TestClientsThatSendNoBodyAreGivenUp(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.Stall = 50 * time.Millisecond; o.MaxBody = 1 << 20 }, nil)
	for _, length := range []int{1000, 1 << 21} {
		c := dial(t, h.address)
		_, _ = fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\nabc", length)
		if _, err := io.ReadAll(c); err != nil && !errors.Is(err, io.EOF) && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%d bytes: %v", length, err)
		}
		h.rests()
	}
}

// TestTheEndWaitsForAnswers: what is under way ends well, and new connections are refused.
func TestTheEndWaitsForAnswers(t *testing.T) {
	h := newHouse(t, nil, nil)
	arrived, release := make(chan struct{}), make(chan struct{})
	h.decode.does(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		waits(r, release)
		_, _ = io.WriteString(w, "{}")
	})
	got := make(chan reply)
	go func() { got <- h.ask(whole) }()
	await(t, arrived)
	h.stop()
	until(t, "no new connection is taken", func() bool {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", h.address)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	close(release)
	if r := <-got; r.status != 200 || r.body != "{}" {
		t.Errorf("%+v", r)
	}
	h.over.Wait()
}

// TestEnginesBehindTLS: the pool's port, the engine of the pod and the one that prefills are spoken to by TLS, and are checked.
func TestEnginesBehindTLS(t *testing.T) {
	first := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asVLLM(w, body)
	}))
	t.Cleanup(first.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: first.Certificate().Raw}))
	for name, tc := range map[string]struct {
		wire endpoint.Wire
		want relay.Outcome
	}{
		"with the right name":  {endpoint.Wire{TLS: true, CA: ca, ServerName: "example.com"}, relay.HandedOver},
		"unchecked":            {endpoint.Wire{TLS: true, Unchecked: true}, relay.HandedOver},
		"with another name":    {endpoint.Wire{TLS: true, CA: ca, ServerName: "other.example"}, relay.PrefillFailed},
		"of another authority": {endpoint.Wire{TLS: true, ServerName: "example.com"}, relay.PrefillFailed},
		"in the clear":         {endpoint.Wire{}, relay.PrefillFailed},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, func(o *Options) {
				o.Wires = func() (engine, peers endpoint.Wire) { return endpoint.Wire{}, tc.wire }
			}, &tls.Config{Certificates: first.TLS.Certificates})
			h.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
			ticket := sign(first.Listener.Addr().String(), h.seed, time.Now())
			r := h.request(t.Context(), streamed, relay.TicketHeader, ticket)
			r.URL.Scheme = "https"
			answer := h.do(r)
			if answer.status != 200 || answer.body != wholeStream || reportOf(t, answer).Outcome != tc.want {
				t.Errorf("%+v", answer)
			}
			h.rests()
		})
	}
}

// TestNothingIsLeftOfManyRequests: after all kinds of ends, the goroutines are as many as before.
func TestNothingIsLeftOfManyRequests(t *testing.T) {
	h := newHouse(t, nil, nil)
	h.ask(whole) // the port is open
	h.rests()
	h.client.CloseIdleConnections()
	before := runtime.NumGoroutine() // perhaps with those of connections that end
	kinds := map[string]http.HandlerFunc{
		"good": nil, "cut": cutStream, "breaks": breaks, "error": answers(500, "application/json", "{}"),
	}
	for range 5 {
		for _, name := range slices.Sorted(maps.Keys(kinds)) {
			for _, e := range []*engine{h.prefill, h.decode} {
				if f := kinds[name]; f != nil {
					e.does(f)
				} else {
					e.answer.Store(nil)
				}
				for _, body := range []string{streamed, whole} {
					h.ask(body, relay.TicketHeader, h.ticket())
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					h.do(h.request(ctx, body, relay.TicketHeader, h.ticket()))
					cancel()
				}
			}
		}
	}
	h.rests()
	h.client.CloseIdleConnections()
	h.server.Close()
	until(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

// TestThePortIsClosedWhileTheEngineIsDead: a gateway that sends requests elsewhere whose connection is refused loses none, and streams that the
// engine still serves go on. It is open again as soon as the engine is.
func TestThePortIsClosedWhileTheEngineIsDead(t *testing.T) {
	h := newHouse(t, nil, nil)
	arrived, release := make(chan struct{}), make(chan struct{})
	h.decode.does(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		close(arrived)
		waits(r, release)
		_, _ = io.WriteString(w, "data: x\n\n")
	})
	got := make(chan reply, 1)
	go func() { got <- h.ask(streamed) }()
	await(t, arrived)
	address := h.decode.address()
	_ = h.decode.http.Listener.Close() // as engines do that are about to end
	refused := func() bool {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", h.address)
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	until(t, "the port is closed", refused)
	close(release)
	if r := <-got; r.status != 200 || r.body != "data: x\n\n" {
		t.Errorf("a stream of the engine's ends with it: %+v", r)
	}
	h.decode.http.CloseClientConnections()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	again := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })}
	go func() { _ = again.Serve(l) }()
	t.Cleanup(func() { _ = again.Close() })
	until(t, "the port is open", func() bool { return !refused() })
	if r := h.ask(whole); r.status != 200 || r.body != "{}" {
		t.Errorf("%+v", r)
	}
	h.rests()
}
