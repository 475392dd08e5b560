package cachesync

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// proven is a world in which the first picker has been shown to be equal.
func proven(t *testing.T) (*world, *simPicker) {
	t.Helper()
	w := newWorld(t, 1, faults{})
	for range 20 {
		w.step()
	}
	w.settle(testSettle)
	p := w.pickers[0]
	if s := p.receiver.Status(); !s.Proven || s.Held == 0 {
		t.Fatalf("not equal to begin with: %+v", s)
	}
	return w, p
}

// Equality is shown by a digest of a reporter that has followed its engine without a gap, or it is not known. It is
// never taken for granted.
func TestEqualityIsShownOrNotKnown(t *testing.T) {
	for name, doubt := range map[string]func(w *world, p *simPicker){
		"the picker knows nothing yet": func(w *world, p *simPicker) { w.startPicker(p) },
		"the stream has ended":         func(_ *world, p *simPicker) { p.receiver.Lost() },
		"it has, with a difference known": func(w *world, p *simPicker) {
			p.writer.Clear()
			for p.receiver.Status().Divergent == 0 {
				w.now = w.now.Add(10 * time.Millisecond)
				w.exchange(p, false)
			}
			p.receiver.Lost()
		},
		"somebody else writes":              func(_ *world, p *simPicker) { p.receiver.Release() },
		"a stream has begun":                func(w *world, p *simPicker) { w.connect(p) },
		"the sender goes on from elsewhere": func(w *world, p *simPicker) { w.send(p, w.begin(p, pb.Begin_MODE_ADOPT, w.mirror.epoch)) },
		"the engine began another life":     func(w *world, p *simPicker) { w.send(p, w.begin(p, pb.Begin_MODE_REPLACE, w.mirror.epoch+1)) },
		"a snapshot comes":                  func(w *world, p *simPicker) { w.send(p, w.begin(p, pb.Begin_MODE_REPLACE, w.mirror.epoch)) },
		"changes are missing":               func(w *world, p *simPicker) { w.send(p, changesFrom(p.receiver.Status().Seq+1)) },
		"a digest of what is to come":       func(w *world, p *simPicker) { w.send(p, digestAt(p.receiver.Status().Seq+1)) },
		"the reporter has no connection":    func(w *world, _ *simPicker) { w.state(events.Disconnected) },
		"the reporter reads the history":    func(w *world, _ *simPicker) { w.state(events.Syncing) },
		"the reporter missed the beginning": func(w *world, _ *simPicker) { w.state(events.Unverified) },
		"the reporter missed some of it":    func(w *world, _ *simPicker) { w.state(events.Degraded) },
		"the history is replayed meanwhile": func(w *world, _ *simPicker) { w.state(events.Degraded); w.mirror.Begin(true) },
	} {
		t.Run(name, func(t *testing.T) {
			w, p := proven(t)
			doubt(w, p)
			if s := p.receiver.Status(); s.Proven || s.Divergent != 0 {
				t.Errorf("proven %v, %d blocks divergent: want neither", s.Proven, s.Divergent)
			}
		})
	}
}

// state changes what the reporter knows of its engine, and lets it say so, with some digests.
func (w *world) state(s events.State) {
	w.mirror.Mark(events.Position{}, s)
	w.settle(testSettle)
}

// send passes a picker a message that its sender has not sent.
func (w *world) send(p *simPicker, m *pb.ReporterMessage) {
	if err := p.receiver.Handle(w.now, m, func(*pb.PickerMessage) {}); err != nil {
		w.t.Fatal(err)
	}
}

// begin is a message that begins something at the picker's place in another log.
func (w *world) begin(p *simPicker, mode pb.Begin_Mode, epoch uint64) *pb.ReporterMessage {
	s := p.receiver.Status()
	at := &pb.Position{Epoch: epoch, KeyId: s.KeyID, Log: w.mirror.options.NewID(), Seq: s.Seq}
	return &pb.ReporterMessage{Kind: &pb.ReporterMessage_Begin{Begin: &pb.Begin{Mode: mode, At: at, State: pb.State_STATE_SYNCED}}}
}

func changesFrom(first uint64) *pb.ReporterMessage {
	return &pb.ReporterMessage{Kind: &pb.ReporterMessage_Changes{Changes: &pb.Changes{First: first}}}
}

func digestAt(seq uint64) *pb.ReporterMessage {
	return &pb.ReporterMessage{Kind: &pb.ReporterMessage_Digest{Digest: &pb.Digest{Seq: seq, State: pb.State_STATE_SYNCED}}}
}

// A difference is a number until it is mended, and only the buckets that differ are sent again.
func TestADifferenceIsCountedAndMended(t *testing.T) {
	for name, lie := range map[string]func(w kvindex.Writer, b kvindex.Block) (divergent uint64){
		"a block is missing": func(w kvindex.Writer, b kvindex.Block) uint64 {
			for tier, copies := range b.Copies {
				for range copies {
					w.Drop(kvblock.Tier(tier), b.Group, []kvevent.Hash{b.Hash})
				}
			}
			return 1
		},
		"a block too many": func(w kvindex.Writer, b kvindex.Block) uint64 {
			w.Store(0, 0, kvindex.Parent{Hash: b.Hash, OK: true}, []kvevent.Hash{12345}, []kvblock.Key{12345})
			return 1
		},
		"nothing is left": func(w kvindex.Writer, _ kvindex.Block) uint64 { w.Clear(); return 2 },
	} {
		t.Run(name, func(t *testing.T) {
			w, p := proven(t)
			w.faults.lie = 1 // the index has what the engine never had
			before := p.receiver.Status()
			var one kvindex.Block
			p.writer.Each(func(b kvindex.Block) bool { one = b; return false })
			least := lie(p.writer, one)
			var seen uint64
			for end := w.now.Add(testSettle); w.now.Before(end); w.now = w.now.Add(10 * time.Millisecond) {
				w.exchange(p, false)
				s := p.receiver.Status()
				if s.Divergent > 0 && s.Proven {
					t.Fatal("proven and divergent")
				}
				seen = max(seen, s.Divergent)
			}
			s := p.receiver.Status()
			if seen < least || !s.Proven || s.Divergent != 0 {
				t.Errorf("%d blocks divergent at most, in the end %d, proven %v", seen, s.Divergent, s.Proven)
			}
			if n := s.Resyncs[Diverged] - before.Resyncs[Diverged]; n != 1 || s.RepairedBlocks == before.RepairedBlocks {
				t.Errorf("%d repairs, of %d blocks", n, s.RepairedBlocks-before.RepairedBlocks)
			}
			compare(t, "after the repair", heldBy(p.writer), w.engine.keys(p.roots[0]))
		})
	}
}

// Each section is compared by itself. A section with too few blocks, be it less than zero, does not compensate for what
// another lacks, and neither do numbers that no honest reporter sends.
func TestDifferencesOfSectionsDoNotCancel(t *testing.T) {
	const few, huge = 7, uint64(1) << 63
	var gone, there []uint64
	honest := &kvindex.Digest{}
	for key := uint64(1); key <= few; key++ {
		gone, there = append(gone, 100+key), append(there, key)
		honest.Add(kvblock.Key(key))
	}
	section := func(tier uint32, blocks uint64, d *kvindex.Digest) *pb.Section {
		return &pb.Section{Tier: tier, Blocks: blocks, Sums: d.Sums[:]}
	}
	removed := []*pb.Change{{Kind: pb.Change_KIND_REMOVED, Keys: gone}}
	for name, c := range map[string]struct {
		changes  []*pb.Change // after a gap
		sections []*pb.Section
		least    uint64
	}{
		"less than nothing, and as much is missing": {removed, []*pb.Section{section(1, few, honest)}, 2 * few},
		"less than nothing":                         {removed, nil, few},
		"nonsense":                                  {nil, []*pb.Section{section(0, huge, &kvindex.Digest{}), section(1, huge, &kvindex.Digest{})}, huge},
	} {
		for _, most := range []int{1, DefaultMaxHeld} {
			t.Run(fmt.Sprintf("%s, room for %d", name, most), func(t *testing.T) {
				writer := kvindex.New()
				r := NewReceiver(writer.Writer(writer.Join()), ReceiverOptions{Roots: simRoots[:1], MaxBlocks: most})
				var repairs []*pb.Wanted
				tell := func(m *pb.ReporterMessage) {
					t.Helper()
					if err := r.Handle(time.Unix(1000, 0), m, func(m *pb.PickerMessage) { repairs = append(repairs, m.GetRepair().GetWanted()...) }); err != nil {
						t.Fatal(err)
					}
				}
				r.Welcome(time.Unix(1000, 0))
				at := &pb.Position{Epoch: 1, KeyId: simRoots[0].ID, Log: 2}
				tell(&pb.ReporterMessage{Kind: &pb.ReporterMessage_Begin{Begin: &pb.Begin{Mode: pb.Begin_MODE_REPLACE, At: at, State: pb.State_STATE_SYNCED}}})
				// More blocks than there is room for.
				full := &pb.Change{Kind: pb.Change_KIND_STORED, Tier: 2, Keys: []uint64{1001, 1002}}
				tell(&pb.ReporterMessage{Kind: &pb.ReporterMessage_Snapshot{Snapshot: &pb.Snapshot{Last: true, Changes: []*pb.Change{full}}}})
				tell(&pb.ReporterMessage{Kind: &pb.ReporterMessage_Changes{Changes: &pb.Changes{Changes: c.changes}}})
				two := &kvindex.Digest{}
				two.Add(1001)
				two.Add(1002)
				digest := &pb.Digest{Seq: uint64(len(c.changes)), State: pb.State_STATE_SYNCED, Sections: append(c.sections, section(2, 2, two))}
				tell(&pb.ReporterMessage{Kind: &pb.ReporterMessage_Digest{Digest: digest}})
				if s := r.Status(); s.Proven || s.Divergent < c.least || len(repairs) == 0 || s.Reported != 2 {
					t.Fatalf("proven %v, %d blocks divergent, %d told, %d sections wanted; want at least %d, 2, some",
						s.Proven, s.Divergent, s.Reported, len(repairs), c.least)
				}
				if c.least == huge {
					return // no repair makes the claimed number true
				}
				var buckets []*pb.Bucket
				for _, w := range repairs {
					for _, b := range w.GetBuckets() {
						bucket := &pb.Bucket{Tier: w.GetTier(), Group: w.GetGroup(), Bucket: b}
						for _, key := range there {
							if len(c.sections) > 0 && w.GetTier() == 1 && kvindex.Bucket(kvblock.Key(key)) == int(b) {
								bucket.Keys, bucket.Parents, bucket.SectionBlocks = append(bucket.Keys, key), append(bucket.Parents, 0), few
							}
						}
						buckets = append(buckets, bucket)
					}
				}
				tell(&pb.ReporterMessage{Kind: &pb.ReporterMessage_Buckets{Buckets: &pb.Buckets{Seq: digest.GetSeq(), Buckets: buckets, Last: true}}})
				tell(&pb.ReporterMessage{Kind: &pb.ReporterMessage_Digest{Digest: digest}})
				if s := r.Status(); !s.Proven || s.Divergent != 0 {
					t.Errorf("after the repair: %+v", s)
				}
			})
		}
	}
}
