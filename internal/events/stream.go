package events

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/monotonic"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// Stream follows one endpoint, without goroutines, sockets or timers of its own: Up, Take and Down pass in what arrives
// from the publisher, Work acts on it. Manager runs streams; a simulation can drive them step by step. Up, Take and Down
// belong to one goroutine, Work and Wake to one, which can be another; State and Stats are safe for concurrent use.
//
// It has many fields because it is a protocol's state machine; the comments say which goroutine owns which.
type Stream struct {
	feed  Feed
	cfg   *Config
	log   logr.Logger
	stats Stats
	queue *queue
	// share is what messages that wait and the decoded one draw on, notes what the sink draws on. So a sink that keeps as much as it
	// can leaves room for the next message.
	share, notes *budget.Share

	// ups counts connections made, seen is the last that the applier has begun; link is whether there is one now.
	ups, seen atomic.Uint64
	link      atomic.Bool
	state     atomic.Int32 // a State, as the applier sees it
	panicked  atomic.Int64 // when a panic was logged last, of the monotonic clock; 0 for never
	doubted   time.Time    // when it was logged last that the engine is not believed

	// The fields below belong to the caller of Work.

	decoder Decoder
	batch   kvevent.Batch
	drawn   int // bytes taken of share for batch
	sink    Sink
	up      context.Context // ends with the connection
	// expected is the next sequence number, once known is true, and since that of the first batch applied; 0 where an
	// earlier process has applied it.
	expected, since uint64
	known           bool
	// proof identifies the batch before the expected one; 0 for none.
	proof uint64
	// marked is the last mark sent to the sink; begun reports a Begin since then.
	begun       bool
	marked      Position
	markedState State
	// last is the number of the last message received live, once live is true.
	last uint64
	live bool
	// passed reports that the replay socket has shown another life while the connection lasted: messages on that connection
	// might still be from the life before.
	passed bool
	// arrived is the message that revealed a gap.
	arrived arrival
	// stray is the number of a message that was skipped because it is too far ahead, once strayed is true.
	stray   uint64
	strayed bool
	// retry is when everything is replayed again; zero for never. pause is the next wait before that.
	retry time.Time
	pause time.Duration
	// quiet is when the replay socket is asked for what was lost last; zero for never. calm is the next wait before
	// that.
	quiet time.Time
	calm  time.Duration
}

// arrival is a message that has come over the connection. A proof of 0 is none.
type arrival struct{ seq, proof uint64 }

// NewStream returns a stream that has no connection.
func NewStream(feed Feed, c Config) *Stream {
	c = c.withDefaults()
	return newStream(feed, &c)
}

func newStream(feed Feed, cfg *Config) *Stream {
	s := &Stream{feed: feed, cfg: cfg, share: cfg.Room.Share(ownBytes), notes: cfg.Room.Share(ownBytes), pause: cfg.MinResync}
	s.newDecoder()
	s.log = cfg.Log.WithValues("endpoint", feed.Endpoint.ID.String(), "pod", feed.Endpoint.Pod)
	s.queue = newQueue(cfg.QueueBytes, s.share, &s.stats)
	if s.sink = feed.Sink; s.sink == nil {
		s.sink = &sizer{mirror: newMirror(&s.feed, cfg, s.notes, &s.stats)}
	}
	s.known, s.expected, s.proof = feed.Resume.Known, feed.Resume.Next, feed.Resume.Proof
	s.state.Store(int32(feed.Resume.State))
	return s
}

// State combines what is known of the connection and of the messages on it.
func (s *Stream) State() State {
	switch {
	case !s.link.Load():
		return Disconnected
	case s.ups.Load() != s.seen.Load():
		return Syncing
	}
	return State(s.state.Load())
}

// Stats continue to count.
func (s *Stream) Stats() *Stats { return &s.stats }

// Up records a new connection, which lasts until link ends.
func (s *Stream) Up(link context.Context) {
	s.stats.Connections.Add(1)
	n := s.ups.Add(1)
	s.link.Store(true)
	s.changed()
	s.queue.up(link, n)
}

// Down records that there is no connection, and why. It reports whether there was one.
func (s *Stream) Down(why error) (was bool) {
	if was = s.link.Swap(false); was {
		s.changed()
	}
	s.queue.signal() // the sink is notified
	s.stats.Failures.Add(1)
	if was {
		s.log.Info("Event stream lost", "reason", why.Error())
	} else {
		s.log.V(1).Info("Connecting to event stream failed", "reason", why.Error())
	}
	return was
}

// Take queues one message. One that is no event is counted and ignored.
func (s *Stream) Take(frames [][]byte) {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 {
		s.stats.Malformed.Add(1)
		return
	}
	s.queue.message(binary.BigEndian.Uint64(frames[n-2]), frames[n-1])
}

// Work does the next pending step: it applies the oldest queued message, or requests missing batches again. It returns
// false when there was nothing to do.
func (s *Stream) Work() bool {
	if it, ok := s.queue.take(); ok {
		s.step(it)
		s.queue.giveBack(it)
		return true
	}
	s.mark()
	now := s.cfg.Now()
	switch {
	case due(s.retry, now):
		s.retry = time.Time{}
		if s.link.Load() {
			s.resync(Retry)
		} else {
			s.retry = now.Add(s.pause) // unless a new connection replays everything anyway
		}
		return true
	case due(s.quiet, now):
		s.quiet = time.Time{}
		if s.link.Load() {
			s.poll()
		}
		return true
	}
	return false
}

func due(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// Wake is when Work might have something to do although nothing has arrived; zero for never.
func (s *Stream) Wake() time.Time {
	if s.retry.IsZero() || !s.quiet.IsZero() && s.quiet.Before(s.retry) {
		return s.quiet
	}
	return s.retry
}

func (s *Stream) position() Position {
	return Position{Next: s.expected, Known: s.known, Proof: s.proof, State: State(s.state.Load())}
}

// clear notifies the sink that nothing is held, and that a mark follows.
func (s *Stream) clear(sameLife bool) {
	s.begun = true
	s.sink.Begin(sameLife)
}

// mark sends the current position to the sink, if it has changed or everything was sent again.
func (s *Stream) mark() {
	at, state := s.position(), s.State()
	if s.begun || at != s.marked || state != s.markedState {
		s.publish(at, state)
	}
}

// publish reports the position and state to the sink.
func (s *Stream) publish(at Position, state State) {
	s.begun, s.marked, s.markedState = false, at, state
	s.sink.Mark(at, state)
}

// step does what one item asks for.
func (s *Stream) step(it item) {
	switch it.kind {
	case kindUp:
		s.up, s.passed, s.arrived = it.link, false, arrival{}
		s.begin(Connected)
		s.seen.Store(it.seq)
		s.changed()
	case kindOverflow:
		s.arrived = it.arrived
		switch {
		case s.replayable():
			s.resync(Overflow)
		case s.known:
			s.setState(Degraded)
		}
	case kindMessage:
		s.message(it.seq, it.payload)
	}
}

// maxAhead is how far ahead a sequence number can lie: no stream misses that many batches, which an engine takes weeks
// to publish.
const maxAhead = 1 << 32

// farAhead reports whether a number cannot follow the expected one.
func farAhead(seq, expected uint64) bool { return seq > expected && seq-expected > maxAhead }

// believable reports whether a message's number can be acted on. A number too far ahead cannot, because any client might
// have sent it: the message counts as malformed. If the next message continues from it, the engine does count so, in
// another life.
func (s *Stream) believable(seq uint64) bool {
	if !s.known || !farAhead(seq, s.expected) {
		s.strayed = false
		return true
	}
	if s.strayed && seq > s.stray && !farAhead(seq, s.stray) {
		s.strayed = false
		s.begin(FellBack)
		return true
	}
	s.stray, s.strayed = seq, true
	s.stats.Malformed.Add(1)
	return false
}

// message applies a live batch in its place in the sequence.
func (s *Stream) message(seq uint64, payload []byte) {
	if !s.believable(seq) {
		return
	}
	switch {
	case s.live && seq == s.last:
		s.stats.Duplicates.Add(1)
		return
	case s.live && seq < s.last:
		s.passed = false
		s.begin(FellBack)
	}
	s.live, s.last = true, seq
	switch {
	case !s.known:
		s.known, s.expected, s.since = true, seq, seq
		if seq == 0 { // nothing arrived before
			s.retry = time.Time{}
			s.setState(Synced)
		}
	case s.passed && seq >= s.expected: // even the one expected might be of the life before: a replay has it, or it is none
		if !s.fill(seq+1) || seq >= s.expected {
			return
		}
		if s.expected == seq+1 && s.proof == proofOf(payload) {
			s.passed = false // the connection is of the life that is replayed
		}
	case seq > s.expected:
		s.arrived = arrival{seq, proofOf(payload)}
		if !s.fill(seq) || seq > s.expected {
			return // a replay has brought it, or the next connection will
		}
	}
	if seq < s.expected {
		s.stats.Duplicates.Add(1) // a replay brought it
		return
	}
	s.expected = seq + 1
	if !s.applyBatch(payload) {
		s.plan() // it might be the way here that has spoilt it
	}
	s.listen()
}

// applyBatch decodes a payload and changes the mirror and the index accordingly. false means that it cannot be read, or
// that an event of a known kind in it cannot.
func (s *Stream) applyBatch(payload []byte) (whole bool) {
	s.proof = proofOf(payload)
	defer s.trim()
	applying := false
	if s.caught("Applying an event batch panicked", func() { whole = s.decodeBatch(payload, &applying) }, func() []any {
		return []any{"batch", s.expected - 1, "bytes", len(payload), "checksum", crc32.Checksum(payload, proofTable)}
	}) == nil {
		return whole
	}
	s.newDecoder()
	s.dropBatch()
	if applying { // half of it, perhaps: nothing that the sink holds is certain
		_ = s.caught("Forgetting blocks panicked", func() { s.clear(false) }, nil)
	}
	s.setState(Degraded)
	return false
}

// newDecoder makes a decoder whose batches draw on the share.
func (s *Stream) newDecoder() {
	s.decoder = s.cfg.NewDecoder(s.feed.Engine)
	s.decoder.Limit(func(bytes int) bool {
		if !s.share.Take(bytes) {
			return false
		}
		s.drawn += bytes
		return true
	})
}

// maxKeptBatch is how many bytes of a batch's buffers are kept for the next one.
const maxKeptBatch = 1 << 20

// trim drops the buffers of a large batch.
func (s *Stream) trim() {
	if s.drawn > maxKeptBatch {
		s.dropBatch()
	}
}

func (s *Stream) dropBatch() {
	s.share.Put(s.drawn)
	s.batch, s.drawn = kvevent.Batch{}, 0
}

// Close gives back what the stream holds of Config.Room. Nothing of it can be called any more.
func (s *Stream) Close() {
	s.share.Close()
	s.notes.Close()
}

// logPause is the least time between two logged panics of a stream, and between two lines on an engine that is not believed: the
// same batch can arrive again and again.
const logPause = time.Minute

// caught calls f and returns the panic that has ended it, after it was counted, and logged with the keys, which can
// be nil.
func (s *Stream) caught(what string, f func(), keys func() []any) error {
	p := fault.Catch(f, func(p *fault.Panic) {
		s.stats.Panics.Add(1)
		now := monotonic.Of(s.cfg.Now())
		last := s.panicked.Load()
		if (last != 0 && now-last < int64(logPause) || !s.panicked.CompareAndSwap(last, now)) && !p.Fatal() {
			return
		}
		var values []any
		if keys != nil {
			values = keys()
		}
		s.log.Error(p, what, append(values, "panics", s.stats.Panics.Load(), "stack", string(p.Stack))...)
	})
	if p == nil {
		return nil
	}
	return p
}

// decodeBatch is applyBatch without the recovery from panics. applying is set once the sink has received a part.
func (s *Stream) decodeBatch(payload []byte, applying *bool) bool {
	if err := s.decoder.Decode(payload, &s.batch); err != nil {
		if errors.Is(err, vllm.ErrLayout) {
			s.stats.UnknownLayouts.Add(1)
			s.unreadable(true)
		}
		if s.stats.DecodeErrors.Add(1) == 1 {
			logging.Warn(s.log, "Decoding event batch failed", "reason", err.Error())
		}
		s.setState(Degraded)
		return false
	}
	whole := s.batch.Unread == 0
	if !whole { // the known rest counts, but the sum is unconfirmed
		s.stats.UnknownLayouts.Add(1)
		s.setState(Degraded)
	}
	s.unreadable(!whole)
	if whole && emptied(&s.batch) && !s.passed {
		s.heal()
	}
	*applying = true
	s.sink.Apply(&s.batch, s.position())
	if sink, ok := s.sink.(DoubtfulSink); ok && sink.Impossible() {
		whole = false // what is replayed is no history of the engine either
		s.disbelieved()
	}
	if s.feed.OnLookahead != nil && s.batch.Lookahead() {
		s.feed.OnLookahead()
	}
	if s.batch.Time > 0 {
		now := float64(s.cfg.Now().UnixMilli()) / 1e3
		s.stats.lag.Store(int64((now - s.batch.Time) * 1e9))
	}
	return whole
}

// disbelieved has everything replayed, after the sink has forgotten the blocks on the GPU.
func (s *Stream) disbelieved() {
	s.stats.Impossible.Add(1)
	if now := s.cfg.Now(); s.doubted.IsZero() || now.Sub(s.doubted) >= logPause {
		s.doubted = now
		logging.Warn(s.log, "Engine has announced more than twice as many blocks as it has, forgetting those on its GPU")
	}
	s.setState(Degraded)
	s.plan()
}

// emptied reports whether the engine discarded everything within a batch.
func emptied(b *kvevent.Batch) bool {
	return slices.ContainsFunc(b.Events, func(e kvevent.Event) bool { return e.Kind == kvevent.Cleared && e.Medium == "" })
}

// heal marks a stream with missing history as complete: the engine has just discarded all blocks of that time. A replay of
// everything detects that by itself.
func (s *Stream) heal() {
	if state := State(s.state.Load()); state == Degraded || state == Unverified {
		s.since, s.retry, s.pause = s.expected-1, time.Time{}, s.cfg.MinResync
		s.setState(Synced)
		s.log.Info("Event stream complete again: the engine discarded its cache", "was", state.String())
	}
}

// unreadable notes whether the last batch was of no known layout.
func (s *Stream) unreadable(now bool) {
	if s.stats.Unreadable.Swap(now) == now {
		return
	}
	if sink, ok := s.sink.(LayoutSink); ok {
		sink.Unreadable(now)
	}
}

func (s *Stream) replayable() bool { return s.feed.Endpoint.ReplayAddress != "" }

func (s *Stream) setState(state State) {
	if old := State(s.state.Swap(int32(state))); old != state {
		s.log.V(1).Info("Event stream changed its state", "state", state.String())
		s.changed()
	}
}

// changed reports that a part of what State combines is another one now.
func (s *Stream) changed() {
	if s.cfg.Changed != nil {
		s.cfg.Changed()
	}
}
