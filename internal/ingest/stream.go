package ingest

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// Stream is what follows one endpoint, without goroutines, sockets or timers of its own: Up, Take and Down say what
// comes from the publisher, Work does what follows from it. Manager runs streams; a simulation may drive them step by
// step. Up, Take and Down belong to one goroutine, Work and Wake to one, which may be another; State and Stats are for
// everyone.
type Stream struct {
	feed  Feed
	cfg   *Config
	log   logr.Logger
	stats Stats
	queue *queue

	// ups counts connections made, seen is the last that the applier has begun; link is whether there is one now.
	ups, seen atomic.Uint64
	link      atomic.Bool
	state     atomic.Int32 // a State, as the applier sees it

	// What follows belongs to whoever calls Work.

	decoder Decoder
	batch   kvevent.Batch
	sink    Sink
	up      context.Context // ends with the connection
	// expected is the next sequence number, once known is true, and since that of the first batch applied; 0 where an
	// earlier process has applied it.
	expected, since uint64
	known           bool
	// proof tells the batch before the expected one from others; 0 for none.
	proof uint64
	// marked is what the sink was told last; begun says that it has been told to begin since.
	begun       bool
	marked      Position
	markedState State
	// last is the number of the last message received live, once live is true.
	last uint64
	live bool
	// passed says that the replay socket has told of another life while the connection lasted: what comes over that may
	// be what the life before has left on the way.
	passed bool
	// stray is the number of a message that was passed over because it lies too far ahead, once strayed is true.
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

// NewStream returns a stream that has no connection.
func NewStream(feed Feed, c Config) *Stream {
	c = c.withDefaults()
	return newStream(feed, &c)
}

func newStream(feed Feed, cfg *Config) *Stream {
	s := &Stream{feed: feed, cfg: cfg, decoder: cfg.NewDecoder(feed.Engine), pause: cfg.MinResync}
	s.log = cfg.Log.WithValues("endpoint", feed.Endpoint.ID.String(), "pod", feed.Endpoint.Pod)
	s.queue = newQueue(cfg.QueueBytes, &s.stats)
	if s.sink = feed.Sink; s.sink == nil {
		s.sink = &sizer{mirror: newMirror(&s.feed, cfg, &s.stats)}
	}
	s.known, s.expected, s.proof = feed.Resume.Known, feed.Resume.Next, feed.Resume.Proof
	s.state.Store(int32(feed.Resume.State))
	return s
}

// State combines what is known of the connection and of what came over it.
func (s *Stream) State() State {
	switch {
	case !s.link.Load():
		return Disconnected
	case s.ups.Load() != s.seen.Load():
		return Syncing
	}
	return State(s.state.Load())
}

// Stats go on counting.
func (s *Stream) Stats() *Stats { return &s.stats }

// Up says that a connection has been made, which lasts until link ends.
func (s *Stream) Up(link context.Context) {
	s.stats.Connections.Add(1)
	n := s.ups.Add(1)
	s.link.Store(true)
	s.queue.up(link, n)
}

// Down says that there is no connection, and why. It tells whether there was one.
func (s *Stream) Down(why error) (was bool) {
	was = s.link.Swap(false)
	s.queue.signal() // the sink is told
	s.stats.Failures.Add(1)
	if was {
		s.log.Info("Event stream lost", "reason", why.Error())
	} else {
		s.log.V(1).Info("Event stream not reached", "reason", why.Error())
	}
	return was
}

// Take queues one message. One that is no event is counted and passed over.
func (s *Stream) Take(frames [][]byte) {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 {
		s.stats.Malformed.Add(1)
		return
	}
	s.queue.message(binary.BigEndian.Uint64(frames[n-2]), frames[n-1])
}

// Work does the next thing there is to do: it applies what has come first, or asks again for what is missing. It
// returns false when there was nothing.
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

// Wake is when Work may have something to do although nothing has come; zero for never.
func (s *Stream) Wake() time.Time {
	if s.retry.IsZero() || !s.quiet.IsZero() && s.quiet.Before(s.retry) {
		return s.quiet
	}
	return s.retry
}

func (s *Stream) position() Position {
	return Position{Next: s.expected, Known: s.known, Proof: s.proof, State: State(s.state.Load())}
}

// clear tells the sink that nothing is held, and that it will be told where things stand then.
func (s *Stream) clear(sameLife bool) {
	s.begun = true
	s.sink.Begin(sameLife)
}

// mark tells the sink where things stand, if that has changed or everything has been told anew.
func (s *Stream) mark() {
	at, state := s.position(), s.State()
	if s.begun || at != s.marked || state != s.markedState {
		s.tell(at, state)
	}
}

// tell tells the sink where things stand.
func (s *Stream) tell(at Position, state State) {
	s.begun, s.marked, s.markedState = false, at, state
	s.sink.Mark(at, state)
}

// step does what one item asks for.
func (s *Stream) step(it item) {
	switch it.kind {
	case kindUp:
		s.up, s.passed = it.link, false
		s.begin(Connected)
		s.seen.Store(it.seq)
	case kindOverflow:
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

// maxAhead is how far ahead a sequence number may lie: no stream misses that many batches, which an engine takes weeks
// to publish.
const maxAhead = 1 << 32

// farAhead tells of a number that cannot follow the expected one.
func farAhead(seq, expected uint64) bool { return seq > expected && seq-expected > maxAhead }

// believable tells whether a message's number is to be acted on. One that lies too far ahead is not, as it may be
// anybody's: the message counts as malformed. When the next one goes on from there, it is the engine that counts so,
// in another life.
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
		if seq == 0 { // nothing came before
			s.retry = time.Time{}
			s.setState(Synced)
		}
	case s.passed && seq >= s.expected: // even the one expected may be of the life before: a replay has it, or it is none
		if !s.fill(seq+1) || seq >= s.expected {
			return
		}
	case seq > s.expected:
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
		s.plan() // it may be the way here that has spoilt it
	}
	s.listen()
}

// applyBatch decodes a payload and changes the mirror and the index accordingly. false means that it cannot be read, or
// that an event of a known kind in it cannot.
func (s *Stream) applyBatch(payload []byte) bool {
	s.proof = proofOf(payload)
	if err := s.decoder.Decode(payload, &s.batch); err != nil {
		if errors.Is(err, vllm.ErrLayout) {
			s.stats.UnknownLayouts.Add(1)
			s.unreadable(true)
		}
		if s.stats.DecodeErrors.Add(1) == 1 {
			s.log.Info("Event batch cannot be read", "reason", err.Error())
		}
		s.setState(Degraded)
		return false
	}
	whole := s.batch.Unread == 0
	if !whole { // what is known of the rest counts, but nobody vouches for the sum
		s.stats.UnknownLayouts.Add(1)
		s.setState(Degraded)
	}
	s.unreadable(!whole)
	s.sink.Apply(&s.batch, s.position())
	if s.batch.Time > 0 {
		now := float64(s.cfg.Now().UnixMilli()) / 1e3
		s.stats.lag.Store(int64((now - s.batch.Time) * 1e9))
	}
	return whole
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
	}
}
