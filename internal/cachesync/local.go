package cachesync

import (
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// Local is a reporter and its picker in one process, with no stream between them. It is for engines without a reporter
// whose blocks are parts of key blocks. It keeps tokens, some hundred bytes for each engine block. It is for one goroutine.
type Local struct {
	mirror   *Mirror
	sender   *Sender
	receiver *Receiver
	stats    *events.Stats
	seen     Stats      // added to stats so far
	capacity func() int // of events.Feed
}

// localLog bounds the changes that wait to be applied; they never wait.
const localLog = 64 << 10

// Join implements events.Config.Join.
func Join(f *events.Feed, stats *events.Stats, share *budget.Share) events.Sink {
	l := &Local{mirror: NewMirror(Options{LogBytes: localLog, Share: share}, nil), stats: stats, capacity: f.Capacity}
	root := NewRoot(f.Keys.Seed, f.Keys.Model, f.Keys.BlockTokens, f.Keys.Media)
	l.receiver = NewReceiver(f.Writer, ReceiverOptions{Roots: []Root{root}, Digest: maxDigest, OnStored: f.OnStored})
	l.connect()
	return l
}

// connect begins with nothing known of what the receiver has.
func (l *Local) connect() {
	now := time.Now()
	l.sender = NewSender(l.mirror, "", 0)
	l.sender.Next(now) // a greeting
	l.handle(l.receiver.Welcome(now))
	l.pump()
}

// Begin implements events.Sink.
func (l *Local) Begin(sameLife bool) {
	l.mirror.Begin(sameLife)
	l.pump()
	l.count()
}

// Apply implements events.Sink.
func (l *Local) Apply(b *kvevent.Batch, at events.Position) {
	if l.capacity != nil {
		l.mirror.SetCapacity(l.capacity())
	}
	l.mirror.Apply(b, at)
	l.pump()
	l.count()
}

// Impossible implements events.DoubtfulSink.
func (l *Local) Impossible() bool { return l.mirror.Impossible() }

// Revert implements events.Sink.
func (l *Local) Revert() bool { return l.mirror.Revert() }

// Mark implements events.Sink.
func (l *Local) Mark(at events.Position, state events.State) {
	l.mirror.Mark(at, state)
	l.pump()
	l.count()
}

// pump exchanges messages between the two until neither has any left. The bound on the rounds is never reached.
func (l *Local) pump() {
	for range 8 {
		now := time.Now()
		out, _ := l.sender.Next(now)
		if len(out) == 0 {
			return
		}
		for _, m := range out {
			if err := l.receiver.Handle(now, m, l.handle); err != nil {
				panic("report: a sender and a receiver of one process: " + err.Error())
			}
		}
	}
}

func (l *Local) handle(m *pb.PickerMessage) {
	if err := l.sender.Handle(m); err != nil {
		panic("report: a receiver and a sender of one process: " + err.Error())
	}
}

// count adds what the mirror has counted to the stream's statistics.
func (l *Local) count() {
	now, seen := l.mirror.Stats(), l.seen
	l.seen = now
	for _, c := range []struct {
		into      *atomic.Uint64
		now, seen uint64
	}{
		{&l.stats.Batches, now.Batches, seen.Batches},
		{&l.stats.Events, now.Events, seen.Events},
		{&l.stats.Skipped, now.Skipped, seen.Skipped},
		{&l.stats.Stored, now.Stored, seen.Stored},
		{&l.stats.Removed, now.Removed, seen.Removed},
		{&l.stats.Cleared, now.Cleared, seen.Cleared},
		{&l.stats.RemovedUnknown, now.RemovedUnknown, seen.RemovedUnknown},
		{&l.stats.Partial, now.Partial, seen.Partial},
		{&l.stats.Unkeyed, now.Unkeyed, seen.Unkeyed},
		{&l.stats.UnknownMedium, now.UnknownMedium, seen.UnknownMedium},
		{&l.stats.Misaligned, now.Misaligned, seen.Misaligned},
		{&l.stats.BlockSizeUnsupported, now.BlockSizeUnsupported, seen.BlockSizeUnsupported},
		{&l.stats.Refused, now.Refused, seen.Refused},
		{&l.stats.Struck, now.Struck, seen.Struck},
		{&l.stats.OrphansDropped, now.OrphansDropped, seen.OrphansDropped},
	} {
		c.into.Add(c.now - c.seen)
	}
	l.stats.Blocks.Store(int64(now.Blocks))
	l.stats.Orphans.Store(int64(now.Orphans))
}
