package httpproxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// h2engine starts a stand-in engine that speaks HTTP/2 without TLS; conns counts its connections.
func h2engine(t *testing.T, f http.HandlerFunc) (address string, conns func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	s := httptest.NewUnstartedServer(f)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		mu.Lock()
		defer mu.Unlock()
		n++
		return ctx
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// An engine that speaks HTTP/2 gets many streams over few connections; a stream that is aborted, or whose client leaves,
// ends alone, and one that is refused before an answer is replaced by a fallback.
func TestEnginesThatSpeakHTTP2(t *testing.T) {
	gone := make(chan struct{}, 1)
	address, conns := h2engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.ProtoMajor != 2 {
			t.Errorf("HTTP/%d, %v", r.ProtoMajor, err)
		}
		switch {
		case strings.Contains(string(body), `"user":"reset"`):
			panic(http.ErrAbortHandler)
		case strings.Contains(string(body), `"user":"break"`):
			eventStream(w)
			say(w, token("a"))
			panic(http.ErrAbortHandler)
		case strings.Contains(string(body), `"user":"hang"`):
			eventStream(w)
			say(w, token("a"))
			<-r.Context().Done()
			gone <- struct{}{}
		default:
			eventStream(w)
			say(w, token("a"))
			say(w, token("b"))
		}
	})
	s := spec(address, address)
	for i := range s.Endpoints {
		s.Endpoints[i].Wire = endpoint.Wire{H2C: true}
	}
	h := newHouse(t, Options{}, s)
	as := func(user string) string { return strings.Replace(streamed, "{", `{"user":"`+user+`",`, 1) }

	read(t, h.post("/v1/completions", as("fine"))) // a burst would make more connections before the first is there
	const many = 200
	var wait sync.WaitGroup
	for range many {
		wait.Go(func() {
			r, err := http.Post(h.url+"/v1/completions", "application/json", strings.NewReader(as("fine")))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = r.Body.Close() }()
			if b, err := io.ReadAll(r.Body); err != nil || string(b) != token("a")+token("b") {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	wait.Wait()
	if n := conns(); n > 2 {
		t.Errorf("%d connections for %d streams", n, many)
	}
	r := h.post("/v1/completions", as("break"))
	if b, err := io.ReadAll(r.Body); err == nil || string(b) != token("a") {
		t.Errorf("the answer that is aborted is %q, %v", b, err)
	}
	r = h.post("/v1/completions", as("hang"))
	if _, err := io.ReadFull(r.Body, make([]byte, len(token("a")))); err != nil {
		t.Error(err)
	}
	_ = r.Body.Close()
	<-gone
	if r = h.post("/v1/completions", as("reset")); r.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d where every attempt is reset", r.StatusCode)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: many + 1, picker.Failed: 2, picker.ClientGone: 1})
	if n := h.picker.Stats()[0].Retries; n != 1 {
		t.Errorf("%d retries", n)
	}
}
