package extproc

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// mortal starts an engine that ends with all its connections at a request that says "poison", "slow poison" in the middle of
// an answer, and returns its address. dead counts the engines that ended.
func mortal(t *testing.T, dead *atomic.Int64) string {
	t.Helper()
	var s *httptest.Server
	var over atomic.Bool
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), "poison") {
			_, _ = io.WriteString(w, `{"choices":[{"text":"x","finish_reason":"stop"}]}`)
			return
		}
		if over.CompareAndSwap(false, true) {
			dead.Add(1)
			_ = s.Listener.Close()
		}
		if strings.Contains(string(body), "slow") {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// graveyard is a pool of such engines.
func graveyard(t *testing.T, n int) (s picker.Spec, dead *atomic.Int64) {
	t.Helper()
	dead = new(atomic.Int64)
	var addresses []string
	for range n {
		addresses = append(addresses, mortal(t, dead))
	}
	return spec(addresses...), dead
}

// A request that has crashed the engines of two pods is refused, when the gateway or its client sends it again, with or
// without another nonce. Other requests are not affected.
func TestOneRequestCannotTakeEngineAfterEngineBehindAGateway(t *testing.T) {
	for name, options := range map[string]envoytest.Options{
		"full duplex": {Seed: 3},
		"buffered":    {Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience},
	} {
		for _, kind := range []string{"poison", "slow poison"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				s, dead := graveyard(t, 6)
				h := newHouse(t, Options{}, ServeOptions{}, s)
				g := h.envoy(options)
				for i := range 6 {
					answer := g.post("/v1/completions", fmt.Sprintf(`{"model":"m","user":"%08x","stream":true,"prompt":"%s"}`, 77777*i, kind),
						"X-Request-Id", "0b5f6d5e")
					text, _ := io.ReadAll(answer.Body)
					_ = answer.Body.Close()
					h.idle() // its end has come to the picker
					if i < 2 {
						continue
					}
					if answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), `"engines_broke_off"`) || answer.Header.Get("Retry-After") == "" {
						t.Errorf("request %d: status %d, %s", i, answer.StatusCode, text)
					}
				}
				if n := dead.Load(); n != 2 {
					t.Errorf("one request has taken %d engines", n)
				}
				if n := h.seen.count(func(r *recorder) int { return r.refused[request.RefusedSuspect] }); n != 4 {
					t.Errorf("%d requests are counted as refused", n)
				}
				if answer := g.post("/v1/completions", `{"model":"m","prompt":"y"}`); answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("another request: status %d, %s", answer.StatusCode, read(t, answer))
				} else if text := read(t, answer); strings.Contains(text, "engines_broke_off") {
					t.Error("another request is refused")
				}
			})
		}
	}
}

// A gateway that does not show bodies keeps the request's id when it sends a request again.
func TestAKillerRequestIsKnownByItsID(t *testing.T) {
	s, dead := graveyard(t, 5)
	h := newHouse(t, Options{}, ServeOptions{}, s)
	g := h.envoy(envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_NONE), MessageTimeout: patience})
	for i := range 5 {
		answer := g.post("/v1/completions", `{"model":"m","prompt":"poison"}`, "X-Request-Id", "0b5f6d5e")
		if text := read(t, answer); strings.Contains(text, "engines_broke_off") != (i >= 2) {
			t.Errorf("request %d: status %d, %s", i, answer.StatusCode, text)
		}
		h.idle()
	}
	if n := dead.Load(); n != 2 {
		t.Errorf("one request has taken %d engines", n)
	}
	if answer := g.post("/v1/completions", `{"model":"m","prompt":"poison"}`, "X-Request-Id", "another"); strings.Contains(read(t, answer), "engines_broke_off") {
		t.Error("another id is the same request")
	}
}

// Clients that leave, engines that cannot be reached, and errors that engines answer with make no request suspect.
func TestOtherFailuresBehindAGatewayMakeNoRequestSuspect(t *testing.T) {
	gone := func() string {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		return l.Addr().String()
	}
	failing := func() string {
		return engine(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"message":"x"}}`)
		})
	}
	for name, start := range map[string]func() string{"no process listens": gone, "server errors": failing} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, spec(start(), start(), start()))
			g := h.envoy(envoytest.Options{})
			for range 5 {
				if text := read(t, g.post("/v1/completions", `{"model":"m","prompt":"x"}`)); strings.Contains(text, "engines_broke_off") {
					t.Fatal("it is refused")
				}
				h.idle()
			}
		})
	}
	t.Run("clients that leave", func(t *testing.T) {
		slow := func() string {
			return engine(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
		}
		h := newHouse(t, Options{}, ServeOptions{}, spec(slow(), slow(), slow()))
		g := h.envoy(envoytest.Options{})
		for i := range 5 {
			answer := g.post("/v1/completions", `{"model":"m","stream":true,"prompt":"x"}`)
			if answer.StatusCode != http.StatusOK {
				t.Fatalf("request %d: status %d: %s", i, answer.StatusCode, read(t, answer))
			}
			_, _ = answer.Body.Read(make([]byte, 1))
			_ = answer.Body.Close()
			h.idle()
		}
	})
}
