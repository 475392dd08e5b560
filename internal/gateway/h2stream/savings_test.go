package h2stream

import (
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// from connects from an address.
func (h *house) from(ip string) *client {
	h.t.Helper()
	socket, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).DialContext(h.t.Context(), "tcp", h.address)
	if err != nil {
		h.t.Skip("NOT RUN: no such address: ", err) // not every system has all of 127.0.0.0/8
	}
	return h.speak(socket)
}

// pings sends pings until the connection ends, and returns how many were answered.
func (c *client) pings() int {
	c.t.Helper()
	go func() {
		for range 4 * maxCredit {
			if c.WritePing(false, [8]byte{1}) != nil {
				return
			}
		}
	}()
	for n := 0; ; {
		f, err := c.ReadFrame()
		if err != nil {
			return n
		}
		if ping, ok := f.(*http2.PingFrame); ok && ping.IsAck() {
			n++
		}
	}
}

// TestAClientThatConnectsAgainHasNoNewCredit: it gets a little for each connection, and what others have is their own. A gateway
// with the same address whose streams have messages is served as before.
func TestAClientThatConnectsAgainHasNoNewCredit(t *testing.T) {
	const again = 12
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
	begin, answered := time.Now(), 0
	for range again {
		answered += h.from("127.0.0.1").pings()
	}
	// Each connection, and the address, gets some with time.
	most := maxCredit + again*firstCredit + (again+1)*creditPerSecond*int(time.Since(begin).Seconds()+1)
	if answered > most || answered < maxCredit/2 {
		t.Errorf("%d pings were answered on %d connections, want at most %d", answered, again, most)
	}
	if n := h.from("127.0.0.2").pings(); n < maxCredit/2 {
		t.Errorf("at another address %d", n)
	}

	c := h.from("127.0.0.1")
	for i := range 2 * maxCredit / creditPerData {
		id := uint32(1 + 2*i)
		c.open(id, false)
		c.must(c.WriteData(id, true, framed(fmt.Sprint(i))))
		for range creditPerData - 1 { // as many as it has earned
			c.must(c.WritePing(true, [8]byte{}))
		}
		if status := c.status(id); status != "0" {
			t.Fatalf("stream %d ends with %s", id, status)
		}
	}
}

// TestSavingsGrowAndAreBounded: with time, and in number.
func TestSavingsGrowAndAreBounded(t *testing.T) {
	s, now := newSavings(), time.Unix(1000, 0)
	s.most = 3
	for _, step := range []struct {
		host       string
		after      time.Duration
		want, have int
	}{
		{"a", 0, 4000, 4000},
		{"a", 0, maxCredit, maxCredit - 4000},
		{"a", 0, 1, 0},
		{"a", 5 * time.Second, maxCredit, 5 * creditPerSecond},
		{"b", 0, 1000, 1000},
		{"c", 0, maxCredit, maxCredit},
		{"d", 0, 1, 0}, // there is no room for it
		{"d", maxCredit / creditPerSecond * time.Second, 7, 7},
		{"a", 0, 2 * maxCredit, maxCredit},
	} {
		now = now.Add(step.after)
		if got := s.draw(step.host, step.want, now); got != step.have {
			t.Errorf("%s draws %d of %d, want %d", step.host, got, step.want, step.have)
		}
		if len(s.of) > s.most {
			t.Errorf("%d addresses", len(s.of))
		}
	}
}
