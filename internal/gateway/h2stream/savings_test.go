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

// resetting opens streams and resets each at once, until the connection ends, at most so many. It returns how many were opened.
func (c *client) resetting(most int) int {
	c.t.Helper()
	over := make(chan struct{})
	go func() { defer close(over); cutOff(c.t, c) }()
	n := 0
	for ; n < most; n++ {
		if c.openAnd(n, func(id uint32) error { return c.WriteRSTStream(id, http2.ErrCodeCancel) }) != nil {
			break
		}
		if n%16 == 15 { // what was sent after the end is not counted
			select {
			case <-over:
				return n
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	if n == most {
		_ = c.socket.Close()
	}
	<-over
	return n
}

// TestRapidResetsCountByAddress: a client that connects again, before a connection has too many, gets few more. Other addresses have
// their own count.
func TestRapidResetsCountByAddress(t *testing.T) {
	const again, slack = 20, 64 // what is on its way when a connection ends
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
	all := 0
	for range again {
		all += h.from("127.0.0.1").resetting(fewResets - 20)
	}
	if most := 2*fewResets + again*(fewOwnResets+slack); all > most || all < fewResets {
		t.Errorf("%d streams on %d connections, want at most %d", all, again, most)
	}
	if n := h.from("127.0.0.2").resetting(fewResets - 20); n != fewResets-20 {
		t.Errorf("another address is cut off after %d", n)
	}
}

// TestAGatewayBesideAFloodStays: of its streams many are reset, because clients leave, and more are served. It has the address of a
// client that has sent a flood.
func TestAGatewayBesideAFloodStays(t *testing.T) {
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler { return echo(s) })
	gateway := h.from("127.0.0.1")
	for i := range uint32(2 * fewResets) {
		if i == 100 {
			for range 3 {
				h.from("127.0.0.1").resetting(fewResets - 20)
			}
		}
		id := 1 + 2*i
		gateway.open(id, false)
		if i%5 == 1 || i%5 == 3 {
			gateway.must(gateway.WriteRSTStream(id, http2.ErrCodeCancel))
			continue
		}
		gateway.must(gateway.WriteData(id, true, framed("x")))
		if status := gateway.status(id); status != "0" {
			t.Fatalf("stream %d ends with %s", id, status)
		}
	}
}

// TestLivesOfAddressesAreForgottenAndBounded: with time, and in number.
func TestLivesOfAddressesAreForgottenAndBounded(t *testing.T) {
	n, now := newNeighbors(), time.Unix(1000, 0)
	n.most = 2
	resets := func(host string, times int) (flood bool) {
		for range times {
			n.end(host, now)
			flood = n.reset(host, now)
		}
		return flood
	}
	for i, step := range []struct {
		host  string
		after time.Duration
		times int
		flood bool
	}{
		{"a", 0, fewResets - 1, false},
		{"a", 0, 1, true},
		{"b", 0, fewResets, true},
		{"c", 0, 2 * fewResets, false}, // there is no room for it
		{"a", livesForget, 1, false},
		{"a", 0, fewResets / 2, true},
		{"c", 20 * livesForget, fewResets, true},
		{"a", 1000 * time.Hour, 1, false},
	} {
		now = now.Add(step.after)
		if got := resets(step.host, step.times); got != step.flood {
			t.Errorf("step %d: flood %v", i, got)
		}
		if len(n.of) > n.most {
			t.Errorf("%d addresses", len(n.of))
		}
	}
}

// TestAFullTableIsSweptSeldom: not for each frame or stream of an address without room, because all connections wait for it.
func TestAFullTableIsSweptSeldom(t *testing.T) {
	a, looked := newAddresses[int](), 0
	now := time.Unix(1000, 0)
	for i := range mostAddresses {
		if !a.room(now, nil) {
			t.Fatalf("no room for address %d", i)
		}
		a.of[fmt.Sprint(i)] = i
	}
	for range 100 {
		if a.room(now, func(int) bool { looked++; return false }) {
			t.Fatal("room in a full table")
		}
		now = now.Add(sweepEvery / 50)
	}
	if most := 3 * mostAddresses; looked > most {
		t.Errorf("%d addresses were looked at, want at most %d", looked, most)
	}
	if now = now.Add(sweepEvery); !a.room(now, func(i int) bool { return i == 0 }) {
		t.Error("no room when an address is over")
	}
}
