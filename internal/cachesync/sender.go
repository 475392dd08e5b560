package cachesync

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// Protocol is the version of both sides.
const Protocol = 1

// Oldest is the oldest protocol that this side also speaks. A release that raises Protocol keeps the one before it, and says so in
// the field oldest of its first message, so that neighbouring releases work together in every order. Both sides then use the
// newest protocol that both speak.
const Oldest = 1

// Understood reports whether a peer that speaks protocol, and all before it down to oldest (0 for none), can be understood.
func Understood(protocol, oldest uint32) bool {
	if oldest == 0 {
		oldest = protocol
	}
	return oldest <= Protocol && protocol >= Oldest
}

// Bounds of what is sent at a time.
const (
	// partBytes is about how much one message of changes or of a snapshot carries.
	partBytes = 256 << 10
	// maxBatch bounds how long changes can be held back, minDigest and maxDigest how often digests are sent.
	maxBatch  = 100 * time.Millisecond
	minDigest = 100 * time.Millisecond
	maxDigest = time.Minute
	// maxRoots bounds the roots that a picker can announce, maxWanted the sections of a repair.
	maxRoots  = 4
	maxWanted = kvblock.NumTiers * (kvindex.MaxGroup + 1)
)

// ErrRoots is returned when more roots of keys are wanted at a time than can be served.
var ErrRoots = errors.New("too many key roots at a time")

// Sender sends one picker what a mirror holds. It has no clock and no socket: Next returns the messages to send, Handle
// takes those received. It is safe for concurrent use.
type Sender struct {
	m     *Mirror
	hello *pb.Hello

	// What follows is guarded by the mirror's mutex.

	helloSent, welcome bool
	windows            bool // the picker follows groups with a window
	view               *view
	seeds              []kvblock.Seed // of all roots that the picker has announced
	batch, every       time.Duration
	// have is what the picker has, as far as is known; log what was begun last, up to next.
	have      *pb.Position
	begun     bool
	log, next uint64
	state     pb.State // last sent
	since     time.Time
	digest    time.Time // when the next is due
	repairs   []*pb.Wanted
	closed    bool
	counts    SenderStats
}

// SenderStats counts what was sent.
type SenderStats struct {
	Changes, Keys, Digests, Buckets   uint64
	Resumed, Adopted, Replaced        uint64
	Acked, Seq                        uint64
	Welcome, Streaming, KeyIDUnserved bool
	KeyID                             string
}

// NewSender returns a sender for a stream that has just been opened. pod and rank are the endpoint's identity.
func NewSender(m *Mirror, pod string, rank int) *Sender {
	return &Sender{m: m, hello: &pb.Hello{Protocol: Protocol, Pod: pod, Rank: uint32(rank)}}
}

// Close gives back what the sender uses. Next and Handle do nothing afterwards.
func (s *Sender) Close() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.use(nil)
}

// Stats are the counts so far.
func (s *Sender) Stats() SenderStats {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	c := s.counts
	c.Welcome, c.Streaming = s.welcome, s.begun
	if s.view != nil {
		c.Seq, c.KeyID = s.view.log.next, s.view.root.ID
	}
	return c
}

// use changes the view. It can be nil.
func (s *Sender) use(v *view) {
	if s.view != nil {
		s.m.release(s.view)
	}
	s.view, s.begun = v, false
}

// Handle takes a message of the picker. An error means that the stream cannot be used any more.
func (s *Sender) Handle(in *pb.PickerMessage) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.closed {
		return nil
	}
	switch k := in.GetKind().(type) {
	case *pb.PickerMessage_Welcome:
		if s.welcome {
			return errors.New("a second welcome")
		}
		s.batch = min(time.Duration(k.Welcome.GetBatchMilliseconds())*time.Millisecond, maxBatch)
		s.every = min(max(time.Duration(k.Welcome.GetDigestMilliseconds())*time.Millisecond, minDigest), maxDigest)
		s.have, s.welcome, s.windows = k.Welcome.GetHave(), true, k.Welcome.GetWindows()
		return s.roots(k.Welcome.GetRoots())
	case *pb.PickerMessage_Roots:
		return s.roots(k.Roots.GetRoots())
	case *pb.PickerMessage_Ack:
		s.counts.Acked = k.Ack.GetSeq()
	case *pb.PickerMessage_Repair:
		return s.repair(k.Repair.GetWanted())
	case *pb.PickerMessage_Restart:
		s.have, s.begun = k.Restart.GetHave(), false
		s.m.changed()
	}
	return nil
}

// roots takes the roots for making keys.
func (s *Sender) roots(in []*pb.Root) error {
	if !s.welcome {
		return errors.New("roots before the welcome")
	}
	if len(in) == 0 || len(in) > maxRoots {
		return fmt.Errorf("%d roots announced", len(in))
	}
	root, err := readRoot(in[0])
	if err != nil {
		return err
	}
	s.seeds = s.seeds[:0:0]
	for _, one := range in {
		if r, err := readRoot(one); err == nil {
			s.seeds = append(s.seeds, r.Seed)
		}
	}
	if s.view != nil && s.view.root.Same(&root) {
		return nil
	}
	s.use(nil)
	v := s.m.acquire(&root, s.windows)
	if v == nil {
		s.counts.KeyIDUnserved = true
		return ErrRoots
	}
	s.use(v)
	s.m.changed()
	return nil
}

// Seeds are those of the roots that the picker has announced.
func (s *Sender) Seeds() []kvblock.Seed {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.seeds
}

func (s *Sender) repair(wanted []*pb.Wanted) error {
	if len(wanted) > maxWanted || len(s.repairs) > 2*maxWanted {
		return fmt.Errorf("%d sections are wanted", len(wanted))
	}
	for _, w := range wanted {
		if len(w.GetBuckets()) > kvindex.DigestBuckets {
			return fmt.Errorf("%d buckets of a section are wanted", len(w.GetBuckets()))
		}
	}
	s.repairs = append(s.repairs, wanted...)
	s.m.changed()
	return nil
}

// Next returns the messages to send now, in order, and when there might be more even if nothing changes; zero for never.
func (s *Sender) Next(now time.Time) (out []*pb.ReporterMessage, wake time.Time) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	switch {
	case s.closed:
		return nil, time.Time{}
	case !s.helloSent:
		s.helloSent = true
		return []*pb.ReporterMessage{{Kind: &pb.ReporterMessage_Hello{Hello: s.hello}}}, time.Time{}
	case s.view == nil || s.m.hold && s.sameEpoch():
		return nil, time.Time{}
	}
	log := &s.view.log
	if !s.begun || s.log != log.id || s.next < log.oldest() {
		out = s.begin(now)
	}
	pending := log.next > s.next
	if pending && s.since.IsZero() {
		s.since = now
	}
	due := !now.Before(s.digest)
	if due || len(s.repairs) > 0 || s.state != s.m.state || pending && !now.Before(s.since.Add(s.batch)) {
		out = s.changes(out)
		pending = false
	}
	if len(s.repairs) > 0 {
		out = s.buckets(out)
	}
	if due {
		out = append(out, &pb.ReporterMessage{Kind: &pb.ReporterMessage_Digest{Digest: s.m.digest(s.view)}})
		s.state, s.digest = s.m.state, now.Add(s.every)
		s.counts.Digests++
	} else if s.state != s.m.state {
		s.state = s.m.state
		out = append(out, &pb.ReporterMessage{Kind: &pb.ReporterMessage_State{State: &pb.StateChange{State: s.state}}})
	}
	wake = s.digest
	if pending {
		wake = earlier(wake, s.since.Add(s.batch))
	}
	return out, wake
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// sameEpoch reports whether the picker has blocks of the present epoch.
func (s *Sender) sameEpoch() bool { return s.have.GetEpoch() == s.m.epoch }

// begin announces the position from which changes follow, and sends everything before it that the picker cannot have.
func (s *Sender) begin(now time.Time) (out []*pb.ReporterMessage) {
	v := s.view
	at := &pb.Position{Epoch: s.m.epoch, KeyId: v.root.ID, Log: v.log.id, Seq: v.log.next}
	mode := pb.Begin_MODE_REPLACE
	switch {
	case !s.sameEpoch() || s.have.GetKeyId() != v.root.ID:
		s.counts.Replaced++
	case s.have.GetLog() == v.log.id && s.have.GetSeq() >= v.log.oldest() && s.have.GetSeq() <= v.log.next:
		mode, at.Seq = pb.Begin_MODE_RESUME, s.have.GetSeq()
		s.counts.Resumed++
	default:
		mode = pb.Begin_MODE_ADOPT
		s.counts.Adopted++
	}
	out = append(out, &pb.ReporterMessage{Kind: &pb.ReporterMessage_Begin{Begin: &pb.Begin{Mode: mode, At: at, State: s.m.state}}})
	s.begun, s.log, s.next, s.state, s.repairs = true, v.log.id, at.Seq, s.m.state, nil
	s.have = at
	s.since, s.digest = time.Time{}, now
	if mode == pb.Begin_MODE_REPLACE {
		changes := s.m.snapshot(v)
		for part := uint32(0); ; part++ {
			n := partOf(changes)
			last := n == len(changes)
			out = append(out, &pb.ReporterMessage{Kind: &pb.ReporterMessage_Snapshot{Snapshot: &pb.Snapshot{Part: part, Last: last,
				Changes: changes[:n:n]}}})
			s.count(changes[:n])
			if changes = changes[n:]; last {
				break
			}
		}
		s.digest = now.Add(s.every)
	}
	return out
}

// partOf is how many of the changes make a message.
func partOf(changes []*pb.Change) int {
	bytes := 0
	for i, c := range changes {
		if bytes += 16 + 8*len(c.Keys); bytes > partBytes && i > 0 {
			return i
		}
	}
	return len(changes)
}

func (s *Sender) count(changes []*pb.Change) {
	s.counts.Changes += uint64(len(changes))
	for _, c := range changes {
		s.counts.Keys += uint64(len(c.Keys))
	}
}

// changes appends all that was not sent to the picker yet.
func (s *Sender) changes(out []*pb.ReporterMessage) []*pb.ReporterMessage {
	list := s.view.log.from(s.next)
	for len(list) > 0 {
		n := partOf(list)
		// The log forgets changes by overwriting their places.
		part := append([]*pb.Change(nil), list[:n]...)
		out = append(out, &pb.ReporterMessage{Kind: &pb.ReporterMessage_Changes{Changes: &pb.Changes{First: s.next, Changes: part}}})
		s.count(part)
		s.next += uint64(n)
		list = list[n:]
	}
	s.have = &pb.Position{Epoch: s.have.GetEpoch(), KeyId: s.have.GetKeyId(), Log: s.log, Seq: s.next}
	s.since = time.Time{}
	return out
}

// buckets appends what was asked for. Everything before it was sent.
func (s *Sender) buckets(out []*pb.ReporterMessage) []*pb.ReporterMessage {
	list := s.m.buckets(s.view, s.repairs)
	s.repairs = nil
	s.counts.Buckets += uint64(len(list))
	for {
		n, bytes := 0, 0
		for ; n < len(list) && (n == 0 || bytes < partBytes); n++ {
			bytes += 16 + 16*len(list[n].Keys)
		}
		last := n == len(list)
		out = append(out, &pb.ReporterMessage{Kind: &pb.ReporterMessage_Buckets{
			Buckets: &pb.Buckets{Seq: s.next, Buckets: list[:n:n], Last: last}}})
		if list = list[n:]; last {
			return out
		}
	}
}
