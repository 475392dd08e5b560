package lab

import (
	"time"

	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/replicas"
)

// linkTime is how long a message takes from one picker to another.
const linkTime = time.Millisecond

// exchange carries what pickers send each other: what they have assigned to the pods, by the production's senders and
// receivers, in virtual time.
type exchange struct {
	inboxes  []*replicas.Inbox // of each picker
	links    []*link
	underWay []letter // in order: all take the same time
}

// link is the way from one picker to another.
type link struct {
	sender   *replicas.Sender
	to       int                // picker
	receiver *replicas.Receiver // nil until the hello has arrived
	wake     time.Duration      // when the sender is asked next
}

type letter struct {
	link *link
	m    *pb.PeerMessage
}

// connect links every picker to every other one. outboxes are theirs.
func (s *sim) connect(outboxes []*replicas.Outbox) {
	for i, p := range s.pickers {
		inbox := replicas.NewInbox(p, outboxes[i].Incarnation())
		inbox.Meter(p)
		inbox.UpdatePlaceOf(outboxes[i])
		s.peers.inboxes = append(s.peers.inboxes, inbox)
	}
	for i, p := range s.pickers {
		for j := range s.pickers {
			if i != j {
				sender := replicas.NewSender(outboxes[i], p.Loads)
				sender.SendMeters(p.Meters)
				sender.SendHomes(p.Homes)
				s.peers.links = append(s.peers.links, &link{sender: sender, to: j})
				s.agenda.add(0, peerSends, len(s.peers.links)-1)
			}
		}
	}
}

// listen polls the senders whose bells have rung.
func (s *sim) listen() {
	for i, l := range s.peers.links {
		select {
		case <-l.sender.Bell():
			if l.wake > s.now {
				l.wake = s.now
				s.agenda.add(s.now, peerSends, i)
			}
		default:
		}
	}
}

// sendToPeer sends the pending messages of a link.
func (s *sim) sendToPeer(i int) {
	l := s.peers.links[i]
	if l.wake != s.now {
		return // it was asked since
	}
	for {
		m, wake := l.sender.Next(s.clock())
		if m == nil {
			l.wake = max(s.now+1, wake.Sub(start))
			s.agenda.add(l.wake, peerSends, i)
			return
		}
		s.peers.underWay = append(s.peers.underWay, letter{l, m})
		s.agenda.add(s.now+linkTime, peerReceives, 0)
	}
}

// receiveFromPeer receives the oldest message in transit.
func (s *sim) receiveFromPeer() {
	x := s.peers.underWay[0]
	s.peers.underWay = s.peers.underWay[1:]
	var err error
	if x.link.receiver == nil {
		x.link.receiver, err = s.peers.inboxes[x.link.to].Open(s.clock(), x.m)
	} else {
		err = x.link.receiver.Handle(s.clock(), x.m)
	}
	if err != nil {
		panic("lab: a picker does not understand its peer: " + err.Error())
	}
}

// expire drops state of peers that is too old.
func (x *exchange) expire(now time.Time) {
	for _, in := range x.inboxes {
		in.Expire(now)
	}
}
