package cachesync

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// ReceiverOptions of a Receiver. Zero values take the defaults.
type ReceiverOptions struct {
	// Roots of keys, the first is wanted.
	Roots []Root
	// Batch is how long changes can be held back to be sent together, Digest how often a digest is wanted.
	Batch, Digest time.Duration
	// MaxBlocks bounds the blocks of the endpoint; further ones are counted and not indexed.
	MaxBlocks int
	// OnStored, if set, is called with the keys that have just entered the index, and must not keep them. It is not
	// called for snapshots and repairs.
	OnStored func(keys []kvblock.Key)
	// OnLookahead, if set, is called with digests of reporters whose engine names blocks by tokens that follow them, too.
	OnLookahead func()
	// OnOwn, if set, is called before the first change to the index, so that the previous writer stops.
	OnOwn func()
}

// Defaults of ReceiverOptions.
const (
	DefaultBatch       = 5 * time.Millisecond
	DefaultDigestEvery = 2 * time.Second
	DefaultMaxHeld     = 4 << 20
)

func (o ReceiverOptions) withDefaults() ReceiverOptions {
	if o.Batch < 0 {
		o.Batch = DefaultBatch
	}
	if o.Digest <= 0 {
		o.Digest = DefaultDigestEvery
	}
	if o.MaxBlocks <= 0 {
		o.MaxBlocks = DefaultMaxHeld
	}
	return o
}

// Reason is why a receiver was sent more than changes.
type Reason int

// The reasons.
const (
	// First is a snapshot for a receiver that had nothing.
	First Reason = iota
	// NewEpoch is a snapshot because the engine has begun another life.
	NewEpoch
	// NewKeys is a snapshot because the root of the keys has changed.
	NewKeys
	// Adopted means that the log did not reach back, and only the differences were sent.
	Adopted
	// Diverged means that a digest has found a difference.
	Diverged
	// Missed means that messages are missing in a stream.
	Missed
	NumReasons int = iota
)

// String is the reason's name in logs and metrics.
func (r Reason) String() string {
	switch r {
	case First:
		return "First"
	case NewEpoch:
		return "NewEpoch"
	case NewKeys:
		return "NewKeys"
	case Adopted:
		return "Adopted"
	case Diverged:
		return "Diverged"
	case Missed:
		return "Missed"
	}
	return "unknown"
}

// Status is how the report of an endpoint does.
//
// It has many fields because each is a metric or shown by kubectl kvasir.
type Status struct {
	// Connected reports whether there is a stream, Owned whether the index has state of a reporter.
	Connected, Owned bool
	// Borrowed reports that the state was copied from another picker, and that the endpoint's reporter has not continued
	// from there.
	Borrowed bool
	// State is what the reporter reports about its own knowledge.
	State pb.State
	// Proven reports that the last digest was equal, and that the reporter can show that it has followed its engine.
	// Only then is Divergent 0 a promise.
	Proven bool
	// Divergent is how many blocks at least differ from what the reporter has; 0 also where that is not known.
	Divergent uint64
	KeyID     string
	Epoch     uint64
	Seq       uint64
	// LastMessage is the time of the last message, LastProof of the last equal digest.
	LastMessage, LastProof time.Time
	// Reported is how many blocks the reporter has reported, Held how many of them are in the index; the others were
	// refused or evicted because the index was full. A section with a negative number of reported blocks counts as zero.
	Reported, Held uint64
	// What the engine holds without a key, as reported.
	Orphans, Unindexable, Refused uint64
	// Unsupported is the part of the unindexable blocks whose size does not fit. Unreadable reports that the engine's last
	// batch of events had an unknown layout.
	Unsupported uint64
	Unreadable  bool

	Messages, Changes, Stored, Removed, Cleared uint64
	Duplicates, Digests, RepairedBlocks         uint64
	Resyncs                                     [NumReasons]uint64
}

// Receiver applies to an index what a reporter sends about one endpoint, over one stream after another. It is safe for
// concurrent use, but messages must be handed to it in the order of their stream.
type Receiver struct {
	options ReceiverOptions

	mu     sync.Mutex // guards all that follows
	held   *holding
	shadow *holding // while a snapshot is being received
	// have is the position of the held blocks; nil while none are from a reporter. begin is that of the snapshot in
	// progress.
	have, begin *pb.Position
	part        uint32
	// deaf means that messages are missing: nothing is taken until the sender begins again.
	deaf bool
	// waited counts the digests that arrived meanwhile.
	waited    int
	repairing int // digests that might still differ because of a repair that is under way
	status    Status
}

// errProtocol marks messages that no reporter sends.
var errProtocol = errors.New("protocol error")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errProtocol, fmt.Sprintf(format, args...))
}

// NewReceiver returns a receiver without state. From the call of OnOwn on it is the only user of w.
func NewReceiver(w kvindex.Writer, o ReceiverOptions) *Receiver {
	return &Receiver{options: o.withDefaults(), held: newHolding(w), deaf: true}
}

// Welcome begins a stream, and is the answer to its Hello.
func (r *Receiver) Welcome(now time.Time) *pb.PickerMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.deaf = true
	r.status.Connected, r.status.LastMessage = true, now
	w := &pb.Welcome{
		Have: r.position(), BatchMilliseconds: uint32(r.options.Batch.Milliseconds()),
		DigestMilliseconds: uint32(r.options.Digest.Milliseconds()), Roots: r.roots(), Windows: true,
	}
	return &pb.PickerMessage{Kind: &pb.PickerMessage_Welcome{Welcome: w}}
}

// SetRoots changes the roots of the keys, and returns what announces that.
func (r *Receiver) SetRoots(roots []Root) *pb.PickerMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.options.Roots = roots
	return &pb.PickerMessage{Kind: &pb.PickerMessage_Roots{Roots: &pb.Roots{Roots: r.roots()}}}
}

func (r *Receiver) roots() []*pb.Root {
	var out []*pb.Root
	for i := range r.options.Roots {
		out = append(out, r.options.Roots[i].message())
	}
	return out
}

// Lost records that the stream has ended.
func (r *Receiver) Lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.deaf = true
	r.status.Connected = false
	r.giveBack()
	r.doubt()
}

// doubt records that the difference between index and reporter is unknown.
func (r *Receiver) doubt() { r.status.Proven, r.status.Divergent = false, 0 }

// Release marks that another writer writes to the index from now on.
func (r *Receiver) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.deaf, r.have = true, nil
	r.status.Owned, r.status.Borrowed = false, false
	r.doubt()
}

// Status is how the report does.
func (r *Receiver) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Epoch, s.KeyID, s.Seq = r.have.GetEpoch(), r.have.GetKeyId(), r.have.GetSeq()
	s.Reported, s.Held = 0, 0
	if s.Owned {
		for at, d := range r.held.reported {
			if atLeast(d.Blocks, 0) {
				s.Reported += d.Blocks
			}
			s.Held += r.held.has(at).Blocks
		}
	}
	return s
}

// KeyID is the id of the root of the keys that the index has; empty while it has none.
func (r *Receiver) KeyID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have.GetKeyId()
}

func (r *Receiver) position() *pb.Position {
	if r.have == nil {
		return nil
	}
	return proto.CloneOf(r.have)
}

// drop discards an incomplete snapshot.
func (r *Receiver) drop() {
	if r.shadow != nil {
		r.shadow.w.Discard()
		r.shadow, r.begin = nil, nil
	}
}

// Handle takes a message. It calls reply, perhaps several times, with the messages to return. An error means that the
// stream cannot be used any more.
func (r *Receiver) Handle(now time.Time, in *pb.ReporterMessage, reply func(*pb.PickerMessage)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Messages++
	r.status.LastMessage = now
	switch k := in.GetKind().(type) {
	case *pb.ReporterMessage_Begin:
		return r.onBegin(k.Begin)
	case *pb.ReporterMessage_Snapshot:
		return r.onSnapshot(k.Snapshot, reply)
	case *pb.ReporterMessage_Changes:
		return r.onChanges(k.Changes, reply)
	case *pb.ReporterMessage_Digest:
		return r.onDigest(now, k.Digest, reply)
	case *pb.ReporterMessage_Buckets:
		return r.onBuckets(k.Buckets, reply)
	case *pb.ReporterMessage_State:
		return r.setState(k.State.GetState())
	case *pb.ReporterMessage_Hello:
		return wrong("a second hello")
	}
	return wrong("an unknown message")
}

func (r *Receiver) setState(s pb.State) error {
	if s <= pb.State_STATE_UNSPECIFIED || s > pb.State_STATE_DISCONNECTED {
		return wrong("state %d", s)
	}
	if r.deaf {
		return nil
	}
	r.status.State = s
	if s != pb.State_STATE_SYNCED {
		r.status.Proven = false
	}
	return nil
}

// restart asks the sender to begin again.
func (r *Receiver) restart(reply func(*pb.PickerMessage)) {
	r.drop()
	r.deaf, r.waited = true, 0
	r.doubt()
	r.status.Resyncs[Missed]++
	reply(&pb.PickerMessage{Kind: &pb.PickerMessage_Restart{Restart: &pb.Restart{Have: r.position()}}})
}

func (r *Receiver) onBegin(b *pb.Begin) error {
	at := b.GetAt()
	if at.GetEpoch() == 0 || at.GetLog() == 0 || !r.knows(at.GetKeyId()) {
		return wrong("begin at epoch %d, log %d, keys %q", at.GetEpoch(), at.GetLog(), at.GetKeyId())
	}
	r.drop()
	r.deaf, r.repairing = false, 0
	if err := r.setState(b.GetState()); err != nil {
		return err
	}
	same := r.have.GetEpoch() == at.GetEpoch() && r.have.GetKeyId() == at.GetKeyId()
	r.doubt()
	switch b.GetMode() {
	case pb.Begin_MODE_RESUME:
		if !same || r.have.GetLog() != at.GetLog() || r.have.GetSeq() != at.GetSeq() {
			return wrong("resumed where the picker is not")
		}
	case pb.Begin_MODE_ADOPT:
		if !same {
			return wrong("adopted what the picker does not have")
		}
		r.status.Resyncs[Adopted]++
		r.have = proto.CloneOf(at)
	case pb.Begin_MODE_REPLACE:
		r.replace(at)
	default:
		return wrong("begin in mode %d", b.GetMode())
	}
	r.status.Borrowed = false
	return nil
}

// replace begins a shadow. What another life of the engine had goes at once.
func (r *Receiver) replace(at *pb.Position) {
	switch {
	case r.have == nil:
		r.status.Resyncs[First]++
		if !r.status.Owned {
			if r.options.OnOwn != nil {
				r.options.OnOwn()
			}
			r.status.Owned = true
			r.held.forget()
		}
	case r.have.GetEpoch() != at.GetEpoch():
		r.status.Resyncs[NewEpoch]++
		clear(r.held.windows)
		r.held.clear()
		r.have = nil
	default:
		r.status.Resyncs[NewKeys]++
	}
	r.begin, r.part = proto.CloneOf(at), 0
	r.shadow = newHolding(r.held.w.Shadow())
}

// knows reports whether a root has been announced.
func (r *Receiver) knows(keyID string) bool {
	for i := range r.options.Roots {
		if r.options.Roots[i].ID == keyID {
			return true
		}
	}
	return false
}

func (r *Receiver) onSnapshot(s *pb.Snapshot, reply func(*pb.PickerMessage)) error {
	switch {
	case r.deaf:
		return nil
	case r.shadow == nil && s.GetPart() < r.part: // sent twice
		r.status.Duplicates++
		return nil
	case r.shadow == nil || s.GetPart() > r.part:
		r.restart(reply)
		return nil
	case s.GetPart() < r.part:
		r.status.Duplicates++
		return nil
	}
	for _, c := range s.GetChanges() {
		if c.GetKind() != pb.Change_KIND_STORED {
			return wrong("change of kind %d in a snapshot", c.GetKind())
		}
		if err := r.shadow.apply(c, r.options.MaxBlocks); err != nil {
			return err
		}
	}
	if r.part++; s.GetLast() {
		r.shadow.w.Commit()
		r.held.reported, r.held.refused = r.shadow.reported, r.shadow.refused
		r.held.adopt(r.shadow)
		r.have, r.shadow, r.begin = r.begin, nil, nil
	}
	return nil
}

func (r *Receiver) onChanges(c *pb.Changes, reply func(*pb.PickerMessage)) error {
	if r.deaf {
		return nil
	}
	list := c.GetChanges()
	next := r.have.GetSeq()
	if r.shadow != nil || c.GetFirst() > next {
		r.restart(reply)
		return nil
	}
	if told := next - c.GetFirst(); told > 0 {
		if told >= uint64(len(list)) {
			r.status.Duplicates++
			return nil
		}
		list = list[told:]
	}
	for _, one := range list {
		if err := r.held.apply(one, r.options.MaxBlocks); err != nil {
			return err
		}
		r.status.Changes++
		r.have.Seq++
		n := uint64(len(one.GetKeys()))
		switch one.GetKind() {
		case pb.Change_KIND_STORED:
			r.status.Stored += n
			if r.options.OnStored != nil && one.GetWindow() == nil {
				r.options.OnStored(r.held.keys)
			}
		case pb.Change_KIND_REMOVED:
			r.status.Removed += n
		case pb.Change_KIND_CLEARED:
			r.status.Cleared++
		}
	}
	return nil
}

func (r *Receiver) onDigest(now time.Time, d *pb.Digest, reply func(*pb.PickerMessage)) error {
	theirs, windows, err := readDigest(d)
	if err != nil {
		return err
	}
	if err := r.setState(d.GetState()); err != nil {
		return err
	}
	if r.deaf {
		if r.waited++; r.waited > 1 { // the sender does not know
			r.restart(reply)
		}
		return nil
	}
	if r.shadow != nil || d.GetSeq() > r.have.GetSeq() {
		r.restart(reply)
		return nil
	}
	if d.GetSeq() < r.have.GetSeq() {
		r.status.Duplicates++
		return nil
	}
	r.status.Digests++
	r.status.Orphans, r.status.Unindexable, r.status.Refused = d.GetOrphans(), d.GetUnindexable(), d.GetRefused()
	r.status.Unsupported, r.status.Unreadable = d.GetUnsupported(), d.GetUnreadable()
	r.options.ahead(d)
	for group, window := range windows {
		r.held.learn(group, window)
	}
	wanted, divergent := r.held.compare(theirs, r.held.refused || r.held.w.Evicted() > 0)
	r.status.Divergent = divergent
	r.status.Proven = divergent == 0 && r.status.State == pb.State_STATE_SYNCED
	if divergent == 0 {
		r.repairing, r.status.LastProof = 0, now
	} else if r.repairing--; r.repairing <= 0 {
		r.repairing = 2
		r.status.Resyncs[Diverged]++
		reply(&pb.PickerMessage{Kind: &pb.PickerMessage_Repair{Repair: &pb.Repair{Wanted: wanted}}})
	}
	reply(&pb.PickerMessage{Kind: &pb.PickerMessage_Ack{Ack: &pb.Ack{Seq: r.have.GetSeq()}}})
	return nil
}

func (r *Receiver) onBuckets(b *pb.Buckets, reply func(*pb.PickerMessage)) error {
	if err := checkBuckets(b.GetBuckets()); err != nil || r.deaf {
		return err
	}
	if r.shadow != nil || b.GetSeq() > r.have.GetSeq() {
		r.restart(reply)
		return nil
	}
	if b.GetSeq() < r.have.GetSeq() {
		r.status.Duplicates++ // what has changed since makes it useless
		return nil
	}
	r.status.RepairedBlocks += r.held.replace(b.GetBuckets(), r.options.MaxBlocks)
	if b.GetLast() {
		r.repairing = 0
	}
	return nil
}
