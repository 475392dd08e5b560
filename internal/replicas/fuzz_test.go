package replicas

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
)

// FuzzReceiver passes a receiver messages that no picker sends. It can refuse them; what it takes is possible, bounded, and
// dropped with the peer.
func FuzzReceiver(f *testing.F) {
	for _, u := range []*pb.Update{
		{Seq: 1, Full: true, Loads: []*pb.Load{{Pool: pool, Pod: "pod-0", InFlight: 3, Decoding: 1, PendingTokens: 500, HeadTokens: 200, HeadAgeMicroseconds: 10, EndAgeMicroseconds: 1 << 62}}},
		{Seq: 2, Assumptions: []*pb.Assumption{{Id: 1, Pool: pool, Pod: "pod-1", KeyId: "root", Keys: []uint64{1, 2, 0, 3}, LifeMilliseconds: 1000}}},
		{Seq: 3, Forget: true, Withdrawn: []uint64{1, 7}},
		{Seq: 1 << 63, Full: true},
	} {
		data, err := proto.Marshal(&pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: u}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, data[:len(data)/2])
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		w := newWorld(t, 1, 1, 2)
		l := w.pickers[0].life
		r, err := l.inbox.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: 99}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, data := range [][]byte{first, second} {
			var m pb.PeerMessage
			if proto.Unmarshal(data, &m) != nil || r.Handle(w.now, &m) != nil {
				continue
			}
			for i := range l.trackers {
				v := l.view(i)
				if v.InFlight < 0 || v.Decoding < 0 || v.Decoding > v.InFlight || v.PendingTokens < 0 || v.InFlight > maxRequests || v.PendingTokens > maxTokens {
					t.Fatalf("an impossible load %+v", v)
				}
			}
			if s := l.inbox.Stats(w.now); s.Bytes > maxGuessBytes {
				t.Fatalf("%+v", s)
			}
		}
		r.Lost()
		w.now = w.now.Add(load.PeerFresh + time.Millisecond)
		l.inbox.Expire(w.now)
		w.expectNothing("after the peer has gone")
		if len(l.inbox.peers) != 0 {
			t.Fatal("the peer is still there")
		}
	})
}
