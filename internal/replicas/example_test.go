package replicas_test

import (
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// aPicker is what of a picker takes part in the exchange: here a single tracker.
type aPicker struct{ tracker load.Tracker }

func (p *aPicker) loads(f func(string, endpoint.ID, *load.Tracker)) {
	f("default/m", endpoint.ID{Pod: "pod"}, &p.tracker)
}

// Tracker implements replicas.Pools.
func (p *aPicker) Tracker(string, endpoint.ID) *load.Tracker { return &p.tracker }

// Assume implements replicas.Pools.
func (p *aPicker) Assume(*replicas.Assumption) (*kvindex.Guess, replicas.Refusal) {
	return nil, replicas.Off
}

// Routed implements replicas.Pools.
func (p *aPicker) Routed(*replicas.Routed) {}

// Sessions implements replicas.Pools.
func (p *aPicker) Sessions(string) *routinghistory.Sessions { return nil }

// Two pickers in virtual time, over a link that takes a millisecond: a sends updates to b.
func ExampleSender() {
	const link = time.Millisecond
	var a, b aPicker
	outbox := replicas.NewOutbox(1)
	inbox := replicas.NewInbox(&b, 2)
	sender := replicas.NewSender(outbox, a.loads)
	defer sender.Close()

	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a.tracker.Book(now, load.WorkOf(500, 0), true) // a picks
	outbox.Changed()

	type message struct {
		at time.Time
		m  *pb.PeerMessage
	}
	var onTheWay []message
	var receiver *replicas.Receiver
	for end := now.Add(20 * time.Millisecond); now.Before(end); now = now.Add(time.Millisecond) { // or from event to event
		for m, _ := sender.Next(now); m != nil; m, _ = sender.Next(now) {
			onTheWay = append(onTheWay, message{now.Add(link), m})
		}
		for len(onTheWay) > 0 && !onTheWay[0].at.After(now) {
			m := onTheWay[0].m
			onTheWay = onTheWay[1:]
			if receiver == nil {
				receiver, _ = inbox.Open(now, m) // the hello
			} else if err := receiver.Handle(now, m); err != nil {
				fmt.Println(err)
			}
		}
		inbox.Expire(now)
	}
	v := b.tracker.View(now)
	fmt.Printf("b sees %d request with %.0f tokens to prefill, %d of it a peer's\n", v.InFlight, v.PendingTokens, v.Peers.InFlight)

	now = now.Add(load.PeerFresh) // a says nothing more
	v = b.tracker.View(now)
	fmt.Printf("two seconds later it sees %d\n", v.InFlight)
	// Output:
	// b sees 1 request with 500 tokens to prefill, 1 of it a peer's
	// two seconds later it sees 0
}
