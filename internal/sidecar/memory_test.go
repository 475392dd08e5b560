package sidecar

import (
	"fmt"
	"net"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/relay"
)

// TestBodiesThatDoNotArriveTakeNoRoom: clients announce much, and send little.
func TestBodiesThatDoNotArriveTakeNoRoom(t *testing.T) {
	const slow = 8
	h := newHouse(t, func(o *Options) { o.Memory, o.MaxBody = 4<<20, 1<<20 }, nil)
	for range slow {
		c, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all have begun", func() bool { return h.server.Stats().UnderWay == slow })
	if r := h.ask(streamed, relay.TicketHeader, h.ticket()); reportOf(t, r).Outcome != relay.HandedOver {
		t.Errorf("beside them, a hand-off is reported as %+v", reportOf(t, r))
	}
}
