package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestEnginesGetEachRequestIDOnce at a time: older releases of vLLM fail on a request whose id is in use. The client's
// own id is answered all the same.
func TestEnginesGetEachRequestIDOnce(t *testing.T) {
	ids, proceed := make(chan string), make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		ids <- r.Header.Get("X-Request-Id")
		<-proceed
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"text":"x","finish_reason":"stop"}]}`)
	})
	h := newHouse(t, Options{}, spec(address))
	answers := make(chan string, 3)
	send := func(id string) {
		go func() {
			request, err := http.NewRequest(http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set("X-Request-Id", id)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = response.Body.Close() }()
			_, _ = io.Copy(io.Discard, response.Body)
			answers <- response.Header.Get("X-Request-Id")
		}()
	}
	seen := map[string]bool{}
	for i := range 3 {
		send("mine")
		id := <-ids
		if seen[id] || i == 0 && id != "mine" || !strings.HasPrefix(id, "mine") {
			t.Errorf("request %d reaches the engine as %q, after %v", i, id, seen)
		}
		seen[id] = true
	}
	for range 3 {
		proceed <- struct{}{}
	}
	for range 3 {
		if id := <-answers; id != "mine" {
			t.Errorf("an answer has the id %q", id)
		}
	}
	h.stop() // every request is over
	if n := len(h.proxy.ids.used); n != 0 {
		t.Errorf("%d ids are kept", n)
	}
}

// TestLongRequestIDsAreReplaced: engines repeat the id in each event of a stream.
func TestLongRequestIDsAreReplaced(t *testing.T) {
	var e echo
	h := newHouse(t, Options{}, spec(e.engine(t, nil)))
	for _, id := range []string{strings.Repeat("x", maxRequestID), strings.Repeat("x", maxRequestID+1)} {
		r := h.post("/v1/completions", streamed, "X-Request-Id", id)
		read(t, r)
		got := e.header.Get("X-Request-Id")
		if kept := got == id; kept != (len(id) <= maxRequestID) || r.Header.Get("X-Request-Id") != got {
			t.Errorf("an id of %d bytes reaches the engine as %q, and the client as %q", len(id), got, r.Header.Get("X-Request-Id"))
		}
	}
}
