package replicas

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
)

// A peer that reads too slowly misses assumptions, and forgets those whose end it might have missed.
func TestWhatWaitsIsBounded(t *testing.T) {
	o := NewOutbox(1)
	s := NewSender(o, func(func(string, endpoint.ID, *load.Tracker)) {})
	defer s.Close()
	now := time.Unix(1000, 0)
	s.Next(now)
	long := keys(1, 1000)
	for range 4 * maxOutboxBytes / (8 * len(long)) {
		o.Assume(&Assumption{Pool: pool, Endpoint: id(0), KeyID: "root", Keys: long, Until: now.Add(time.Minute)})
		if o.bytes > maxOutboxBytes {
			t.Fatalf("%d bytes wait", o.bytes)
		}
	}
	m, wake := s.Next(now)
	if u := m.GetUpdate(); !u.GetForget() || len(u.GetAssumptions()) == 0 || wake.Sub(now) > Gather {
		t.Errorf("after too much: forget %v, %d assumptions, next after %v", u.GetForget(), len(u.GetAssumptions()), wake.Sub(now))
	}
	told := 0
	for range 2 * maxOutboxBytes / maxUpdate {
		if now = wake; m != nil {
			told += len(m.GetUpdate().GetAssumptions())
		}
		m, wake = s.Next(now)
	}
	if told < maxOutboxBytes/(8*len(long))/2 || len(o.events) != 0 || o.bytes != 0 {
		t.Errorf("%d assumptions were sent; %d events of %d bytes are left", told, len(o.events), o.bytes)
	}
}

// One peer cannot make another assume without bound.
func TestWhatAPeerMayAssumeIsBounded(t *testing.T) {
	w := newWorld(t, 1, 1, 1)
	l := w.pickers[0].life
	r, err := l.inbox.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: 99}}})
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]uint64, MaxKeys)
	for i := range raw {
		raw[i] = uint64(i + 1)
	}
	for n := range uint64(400) {
		u := &pb.Update{Seq: n + 1, Assumptions: []*pb.Assumption{{
			Id: n + 1, Pool: pool, Pod: "pod-0", KeyId: "root", Keys: raw, LifeMilliseconds: 1 << 31}}}
		if err := r.Handle(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: u}}); err != nil {
			t.Fatal(err)
		}
	}
	s := l.inbox.Stats(w.now)
	if s.Bytes > maxGuessBytes || s.Assumptions[NoRoom] == 0 || s.Assumptions[Taken] == 0 {
		t.Errorf("%+v", s)
	}
	for range 10 {
		w.now = w.now.Add(maxLife / 10)
		r.peer.Receive(w.now) // it lives and says nothing
	}
	w.now = w.now.Add(time.Second)
	r.peer.Receive(w.now)
	l.inbox.Expire(w.now)
	if s := l.inbox.Stats(w.now); s.Bytes != 0 {
		t.Errorf("after the longest life: %+v", s)
	}
}

// TestAllPeersTogetherAreBounded: a peer that assumes as much as it can leaves room for the next, and their end gives all back: another can
// then assume as much as the first did.
func TestAllPeersTogetherAreBounded(t *testing.T) {
	w := newWorld(t, 1, 1, 1)
	b := w.pickers[0].life.inbox
	const limit = 4 << 20
	b.Limit(limit)
	raw := make([]uint64, MaxKeys)
	for i := range raw {
		raw[i] = uint64(i + 1)
	}
	incarnation := uint64(99)
	assume := func() (r *Receiver, held int) {
		incarnation++
		r, err := b.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: incarnation}}})
		if err != nil {
			t.Fatal(err)
		}
		for n := range uint64(100) {
			keys := raw[:MaxKeys>>min(n/10, 8)]
			u := &pb.Update{Seq: n + 1, Assumptions: []*pb.Assumption{{
				Id: n + 1, Pool: pool, Pod: "pod-0", KeyId: "root", Keys: keys, LifeMilliseconds: 1 << 31}}}
			if err := r.Handle(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: u}}); err != nil {
				t.Fatal(err)
			}
		}
		return r, b.Stats(w.now).Bytes
	}
	first, held := 0, 0
	var peers []*Receiver
	for p := range 6 {
		r, all := assume()
		if all > limit || all <= held {
			t.Errorf("with %d peers: %d bytes, %d before", p+1, all, held)
		}
		if held = all; p == 0 {
			first = all
		}
		peers = append(peers, r)
	}
	for _, r := range peers {
		r.Close()
	}
	w.now = w.now.Add(2 * maxLife)
	b.Expire(w.now)
	if _, again := assume(); again != first {
		t.Errorf("without the others a peer assumes %d bytes, the first had %d", again, first)
	}
}
