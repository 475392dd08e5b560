package httpproxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
)

// TestSlowUploadsDoNotTurnOthersAway: clients that send most of a large body and then keep it are shed when there is no room,
// and one that does not gets its answer.
func TestSlowUploadsDoNotTurnOthersAway(t *testing.T) {
	now := make(chan time.Time, 1)
	now <- time.Now()
	clock := func() time.Time { at := <-now; now <- at; return at }
	b := budget.New(4<<20, clock)
	h := newHouse(t, Options{Budget: b}, spec(engine(t, sum)))
	const most = 500 << 10
	for n := 1; refusals(b) == 0; n++ {
		if n > 12 {
			t.Fatalf("the address has no share: %+v", b.Stats())
		}
		_, _ = fmt.Fprintf(h.raw(t), "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 1<<20, strings.Repeat("x", most))
		eventually(t, "the upload is held, or there is no room for it", func() bool { // one that comes after the clock has moved is not slow
			return b.Stats().Parts[budget.Bodies] >= int64(n*most) || refusals(b) > 0
		})
	}
	<-now
	now <- time.Now().Add(time.Minute)
	body := `{"model":"m","prompt":"` + strings.Repeat("y", 900<<10) + `"}`
	if r := h.post("/v1/completions", body); r.StatusCode != http.StatusOK {
		t.Errorf("a client that is not slow: status %d: %+v", r.StatusCode, b.Stats())
	}
	shed := b.Stats().Shed[budget.Bodies]
	if shed == 0 {
		t.Error("nothing was shed")
	}
	eventually(t, "those are refused", func() bool {
		return h.seen.count(func(r *recorder) int { return r.refused[request.RefusedShed] }) == int(shed)
	})
}

// TestABodyMustKeepComing: a body that arrives fast at first and then trickles is given up like one that is slow from its
// beginning.
func TestABodyMustKeepComing(t *testing.T) {
	h := newHouse(t, Options{Stall: 400 * time.Millisecond, MinBodyRate: 100 << 10}, spec(engine(t, sum)))
	conn := h.raw(t)
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 1<<20, strings.Repeat("x", 500<<10)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for { // until the proxy gives up
			if _, err := io.WriteString(conn, "x"); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d, want 408", answer.StatusCode)
	}
	_ = answer.Body.Close()
}

// TestTenantsHaveSharesOfTheMemory: one tenant's bodies leave room for another's, from the same address.
func TestTenantsHaveSharesOfTheMemory(t *testing.T) {
	now := time.Now()
	b := budget.New(4<<20, func() time.Time { return now }) // it stands still: older uploads are shed
	h := newHouse(t, Options{Budget: b}, keyed(t, engine(t, sum)))
	for range 20 {
		conn := h.raw(t)
		_, _ = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k-acme\r\nContent-Length: %d\r\n\r\n%s", 1<<20, strings.Repeat("x", 500<<10))
	}
	eventually(t, "one tenant's share is used up", func() bool { return refusals(b) > 0 })
	r, err := http.NewRequest(http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"`+strings.Repeat("y", 300<<10)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer k-small")
	if answer := h.do(r); answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		t.Errorf("another tenant: status %d: %s: %+v", answer.StatusCode, text, b.Stats())
	}
	if s := b.Stats(); s.Shed[budget.Bodies] != 0 {
		t.Errorf("uploads are shed at once: %+v", s)
	}
}

// refusals counts what found no room: bodies, and requests before their bodies.
func refusals(b *budget.Budget) uint64 {
	refused := b.Stats().Refused
	return refused[budget.Bodies] + refused[budget.Requests]
}
