package httpproxy

import (
	"bufio"
	"context"
	"fmt"
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

// TestOneClientLeavesRequestsForOthers: small bodies that never end take neither memory nor bandwidth of their sender, so that
// only the number of requests bounds them.
func TestOneClientLeavesRequestsForOthers(t *testing.T) {
	h := newHouse(t, Options{MaxRequests: 9}, keyed(t, engine(t, sum)))
	for range 20 {
		conn := h.raw(t)
		_, _ = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k-acme\r\nContent-Length: 100\r\n\r\n{")
	}
	eventually(t, "the share of one tenant is used up", func() bool {
		return h.seen.count(func(r *recorder) int { return r.refused[request.RefusedRequests] }) == 14
	})
	body := `{"model":"m","prompt":"x"}`
	if r := h.post("/v1/completions", body, "Authorization", "Bearer k-small"); r.StatusCode != http.StatusOK {
		t.Errorf("another tenant: status %d", r.StatusCode)
	}
	if r := h.post("/v1/completions", body, "Authorization", "Bearer k-acme"); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the tenant itself: status %d", r.StatusCode)
	}
}

// TestRequestsUnderWayDrawOnTheBudget: an answer that goes on holds memory when its request's body is gone.
func TestRequestsUnderWayDrawOnTheBudget(t *testing.T) {
	finish := make(chan struct{})
	const room = 128 // enough for a buffer of a body, too
	b := budget.New(room*requestCost, time.Now)
	h := newHouse(t, Options{Budget: b}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		eventStream(w)
		say(w, token("a"))
		<-finish
		say(w, token("b"))
	})))
	var open []*http.Response
	for range room {
		r := h.post("/v1/completions", streamed)
		if r.StatusCode == http.StatusServiceUnavailable {
			if text := read(t, r); !strings.Contains(text, "overloaded") || r.Header.Get("Retry-After") == "" {
				t.Errorf("refused with %s", text)
			}
			break
		}
		open = append(open, r)
	}
	if n := len(open); n < room/3 || n > room*3/4 { // two thirds for one address
		t.Errorf("%d of %d requests are under way", n, room)
	}
	if s := b.Stats(); s.Parts[budget.Requests] != int64(len(open))*requestCost || s.Refused[budget.Requests] == 0 {
		t.Errorf("%+v", s)
	}
	close(finish)
	for _, r := range open {
		read(t, r)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: int64(len(open))})
}

// TestHeadersDrawOnTheBudget: a header of the shortest fields takes many times its bytes. Requests that hold such headers are
// refused, on few connections and on one, and other addresses are served.
func TestHeadersDrawOnTheBudget(t *testing.T) {
	const limit = 4 << 20
	b := budget.New(limit, time.Now)
	address, _, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}, ServeOptions{Budget: b})
	var many strings.Builder
	for i := range 8000 {
		fmt.Fprintf(&many, "%x:\r\n", i)
	}
	for range 16 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"+many.String()+"\r\n{")
		}()
	}
	eventually(t, "the headers are more than there is room for", func() bool { return b.Stats().Refused[budget.Connections] > 0 })
	if s := b.Stats(); s.Most > limit*3/4 {
		t.Errorf("one address holds %d of %d", s.Most, limit)
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	c, err := dialer.DialContext(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _ = r.Body.Close(); r.StatusCode != http.StatusOK {
		t.Errorf("another address: status %d", r.StatusCode)
	}
}

// TestRequestsOfOneConnectionHoldTheirHeaders: of HTTP/2, where a byte can be a field.
func TestRequestsOfOneConnectionHoldTheirHeaders(t *testing.T) {
	b := budget.New(16<<20, time.Now)
	running, finish := make(chan struct{}), make(chan struct{})
	address, _, _ := served(t, func(http.ResponseWriter, *http.Request) {
		running <- struct{}{}
		<-finish
	}, ServeOptions{Budget: b})
	request, err := http.NewRequest(http.MethodGet, "http://"+address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		request.Header["X"] = append(request.Header["X"], "y")
	}
	client := client1or2(t, true)
	ended := make(chan error, 3)
	held := b.Held(budget.Connections)
	for range 3 {
		go func() {
			r, err := client.Do(request)
			if err == nil {
				err = r.Body.Close()
			}
			ended <- err
		}()
		await(t, "its handler", running)
		now := b.Held(budget.Connections)
		if now < held+16_000 {
			t.Errorf("%d bytes held, %d before", now, held)
		}
		held = now
	}
	close(finish)
	for range 3 {
		if err := await(t, "an answer", ended); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all is given back", func() bool { return b.Held(budget.Connections) < 32<<10 })
}
