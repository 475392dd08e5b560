package cachesync

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// FuzzReceiver feeds a picker with messages that no Kvasir reporter sends. It can refuse them; afterwards an honest
// reporter must still be able to report the truth.
func FuzzReceiver(f *testing.F) {
	for _, seed := range receiverSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		index := kvindex.NewIndex(kvindex.Options{})
		w := index.Writer(index.Join())
		r := NewReceiver(w, ReceiverOptions{Roots: simRoots[:1], MaxBlocks: 1000})
		now := time.Unix(1000, 0)
		r.Welcome(now)
		for len(data) > 1 {
			n := min(int(data[0])+1, len(data)-1)
			var m pb.ReporterMessage
			if proto.Unmarshal(data[1:1+n], &m) == nil {
				if err := r.Handle(now, &m, func(*pb.PickerMessage) {}); err != nil {
					if !errors.Is(err, errProtocol) {
						t.Fatal(err)
					}
					r.Lost()
					r.Welcome(now)
				}
			}
			data = data[1+n:]
		}
		if w.Len() > 1000 {
			t.Fatalf("%d blocks were taken", w.Len())
		}
		honest(t, r, w)
	})
}

// honest lets a reporter report the truth to a receiver.
func honest(t *testing.T, r *Receiver, w kvindex.Writer) {
	t.Helper()
	m, e := NewMirror(Options{}, nil), newTruth(1, 8)
	m.Begin(false)
	for range 5 {
		m.Apply(e.step(), events.Position{})
	}
	m.Mark(events.Position{}, events.Synced)
	now := time.Unix(2000, 0)
	s := NewSender(m, "pod", 0)
	s.Next(now)
	r.Lost()
	if err := s.Handle(r.Welcome(now)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		now = now.Add(time.Second)
		out, _ := s.Next(now)
		for _, one := range out {
			if err := r.Handle(now, one, func(reply *pb.PickerMessage) {
				if err := s.Handle(reply); err != nil {
					t.Fatal(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	compare(t, "an honest reporter", heldBy(w), e.keys(simRoots[0]))
	if got := r.Status(); !got.Proven {
		t.Errorf("not proven: %+v", got)
	}
}

// receiverSeeds are streams of messages, each with its length in front.
func receiverSeeds() (seeds [][]byte) {
	at := &pb.Position{Epoch: 1, KeyId: simRoots[0].ID, Log: 2, Seq: 3}
	key := kvblock.Key(77)
	sums := make([]uint64, kvindex.DigestBuckets)
	stored := &pb.Change{Kind: pb.Change_KIND_STORED, Keys: []uint64{uint64(key), 78}}
	begin := func(mode pb.Begin_Mode) *pb.ReporterMessage {
		return &pb.ReporterMessage{Kind: &pb.ReporterMessage_Begin{Begin: &pb.Begin{Mode: mode, At: at, State: pb.State_STATE_SYNCED}}}
	}
	snapshot := &pb.ReporterMessage{Kind: &pb.ReporterMessage_Snapshot{Snapshot: &pb.Snapshot{Last: true, Changes: []*pb.Change{stored}}}}
	changes := &pb.ReporterMessage{Kind: &pb.ReporterMessage_Changes{Changes: &pb.Changes{First: 3, Changes: []*pb.Change{
		stored, {Kind: pb.Change_KIND_REMOVED, Keys: []uint64{78}}, {Kind: pb.Change_KIND_CLEARED}}}}}
	digest := &pb.ReporterMessage{Kind: &pb.ReporterMessage_Digest{Digest: &pb.Digest{
		Seq: 6, State: pb.State_STATE_SYNCED, Sections: []*pb.Section{{Blocks: 1, Sums: sums[:4]}}}}}
	buckets := &pb.ReporterMessage{Kind: &pb.ReporterMessage_Buckets{Buckets: &pb.Buckets{Seq: 6, Last: true, Buckets: []*pb.Bucket{
		{Bucket: uint32(kvindex.Bucket(key)), Keys: []uint64{uint64(key)}, Parents: []uint64{0}, SectionBlocks: 1}}}}}
	state := &pb.ReporterMessage{Kind: &pb.ReporterMessage_State{State: &pb.StateChange{State: pb.State_STATE_DEGRADED}}}
	for _, list := range [][]*pb.ReporterMessage{
		{begin(pb.Begin_MODE_REPLACE), snapshot, changes, digest, buckets, state},
		{begin(pb.Begin_MODE_REPLACE), changes, begin(pb.Begin_MODE_ADOPT), digest, digest, digest},
		{begin(pb.Begin_MODE_REPLACE), snapshot, begin(pb.Begin_MODE_RESUME), changes, changes, buckets},
		{snapshot, changes, digest, buckets},
	} {
		var seed []byte
		for _, m := range list {
			text, err := proto.Marshal(m)
			if err != nil || len(text) > 256 {
				panic(err)
			}
			seed = append(append(seed, byte(len(text)-1)), text...)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// FuzzSender feeds a reporter with messages that no picker of ours sends.
func FuzzSender(f *testing.F) {
	root := simRoots[0]
	for _, list := range [][]*pb.PickerMessage{
		{{Kind: &pb.PickerMessage_Welcome{Welcome: &pb.Welcome{Roots: []*pb.Root{root.message()}, DigestMilliseconds: 1}}},
			{Kind: &pb.PickerMessage_Repair{Repair: &pb.Repair{Wanted: []*pb.Wanted{{Buckets: []uint32{1, 1, 255, 256}}}}}},
			{Kind: &pb.PickerMessage_Restart{Restart: &pb.Restart{Have: &pb.Position{Epoch: 1}}}}},
		{{Kind: &pb.PickerMessage_Roots{Roots: &pb.Roots{Roots: []*pb.Root{root.message()}}}}, {Kind: &pb.PickerMessage_Ack{Ack: &pb.Ack{Seq: 9}}}},
	} {
		var seed []byte
		for _, m := range list {
			text, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			seed = append(append(seed, byte(len(text)-1)), text...)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, e := NewMirror(Options{}, nil), newTruth(1, 8)
		m.Begin(false)
		s := NewSender(m, "pod", 0)
		now := time.Unix(1000, 0)
		for len(data) > 1 {
			n := min(int(data[0])+1, len(data)-1)
			var in pb.PickerMessage
			if proto.Unmarshal(data[1:1+n], &in) == nil {
				if err := s.Handle(&in); err != nil {
					s.Close()
					s = NewSender(m, "pod", 0)
				}
			}
			data = data[1+n:]
			m.Apply(e.step(), events.Position{})
			now = now.Add(time.Second)
			s.Next(now)
		}
		s.Close()
		for _, v := range m.views {
			if v != nil && v.uses != 0 {
				t.Fatalf("%d senders use a view, and there are none", v.uses)
			}
		}
		checkMirror(t, m)
	})
}

// FuzzLoad reads files that Save did not write, and files that it did.
func FuzzLoad(f *testing.F) {
	m, e := NewMirror(Options{}, nil), newTruth(3, 4)
	m.Begin(false)
	for range 30 {
		m.Apply(e.step(), events.Position{Next: 7, Known: true, Proof: 1, State: events.Synced})
	}
	var file bytes.Buffer
	if err := m.Save(&file); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes(), 0, byte(0))
	f.Add(file.Bytes(), 20, byte(1))
	f.Add(file.Bytes()[:file.Len()/2], 0, byte(0))
	f.Add([]byte(magic), 0, byte(0))
	f.Fuzz(func(t *testing.T, data []byte, flip int, with byte) {
		data = bytes.Clone(data)
		if flip >= 0 && flip < len(data) {
			data[flip] ^= with
		}
		m := NewMirror(Options{MaxBlocks: 1000, MaxGhosts: 1000}, nil)
		_, err := m.Load(bytes.NewReader(data))
		checkMirror(t, m)
		if err != nil {
			if len(m.ids) != 0 || m.epoch == 0 {
				t.Fatalf("after %v the mirror has %d blocks, epoch %d", err, len(m.ids), m.epoch)
			}
			return
		}
		var again bytes.Buffer
		if err := m.Save(&again); err != nil {
			t.Fatal(err)
		}
		twin := NewMirror(Options{}, nil)
		if _, err := twin.Load(&again); err != nil || twin.Stats().Blocks != m.Stats().Blocks || twin.Position() != m.Position() {
			t.Fatalf("saved again: %v, %+v, want %+v", err, twin.Stats(), m.Stats())
		}
	})
}
