package h2stream

import (
	"net"
	"testing"

	"golang.org/x/net/http2"
)

// TestConnectionsWithoutStreamsGiveWay: many addresses that hold connections keep no gateway out, and end no stream.
func TestConnectionsWithoutStreamsGiveWay(t *testing.T) {
	const most = 32
	h := newHouse(t, Options{MaxConnections: most}, func(_ *Call, s *Stream) *handler { return echo(s) })
	works := h.dial()
	works.open(1, false)
	eventually(t, "the stream is open", func() bool { opened, _ := h.counts(); return opened == 1 })
	for i := range 4 * most {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%14))}, Timeout: patience}
		socket, err := from.Dial("tcp", h.address)
		if err != nil {
			t.Skip("no other addresses of the loopback network: ", err)
		}
		if t.Cleanup(func() { _ = socket.Close() }); i%2 == 0 {
			_, _ = socket.Write([]byte(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		}
	}
	for i := range 20 {
		c := h.dial()
		c.open(1, true)
		if status := c.status(1); status != "0" {
			t.Fatalf("connection %d of a gateway: status %s", i+1, status)
		}
	}
	works.must(works.WriteData(1, true, framed("x")))
	if status := works.status(1); status != "0" {
		t.Errorf("the stream that was open: status %s", status)
	}
}
