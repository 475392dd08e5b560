package ingest

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// stream follows one endpoint with two goroutines, a receiver and an applier, until it is stopped.
type stream struct {
	feed    Feed
	cfg     *Config
	log     logr.Logger
	stats   Stats
	queue   *queue
	cancel  context.CancelFunc
	workers sync.WaitGroup

	// ups counts connections made, seen is the last that the applier has begun; link is whether there is one now.
	ups, seen atomic.Uint64
	link      atomic.Bool
	state     atomic.Int32 // a State, as the applier sees it

	// What follows belongs to the applier.

	decoder Decoder
	batch   kvevent.Batch
	sink    Sink
	up      context.Context // ends with the connection
	// expected is the next sequence number, once known is true.
	expected uint64
	known    bool
	// proof tells the batch before the expected one from others; 0 for none.
	proof uint64
	// marked is what the sink was told last.
	marked      Position
	markedState State
	// last is the number of the last message received live, once live is true.
	last uint64
	live bool
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

func startStream(feed Feed, cfg *Config) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{feed: feed, cfg: cfg, cancel: cancel, decoder: cfg.NewDecoder(feed.Engine), up: ctx, pause: cfg.MinResync}
	s.log = cfg.Log.WithValues("endpoint", feed.Endpoint.ID.String(), "pod", feed.Endpoint.Pod)
	s.queue = newQueue(cfg.QueueBytes, &s.stats)
	if s.sink = feed.Sink; s.sink == nil {
		s.sink = newMirror(&s.feed, cfg, &s.stats)
	}
	s.known, s.expected, s.proof = feed.Resume.Known, feed.Resume.Next, feed.Resume.Proof
	s.state.Store(int32(feed.Resume.State))
	s.workers.Go(func() { s.receive(ctx) })
	s.workers.Go(func() { s.apply(ctx) })
	return s
}

// stop ends both goroutines; wait waits until they have ended.
func (s *stream) stop() { s.cancel() }
func (s *stream) wait() { s.workers.Wait() }

// State combines what the two goroutines know.
func (s *stream) State() State {
	switch {
	case !s.link.Load():
		return Disconnected
	case s.ups.Load() != s.seen.Load():
		return Syncing
	}
	return State(s.state.Load())
}

// receive keeps a connection to the publisher and queues what comes.
func (s *stream) receive(ctx context.Context) {
	backoff := s.cfg.MinBackoff
	for {
		began := time.Now()
		link, cut := context.WithCancel(ctx)
		err := s.cfg.Source.Subscribe(link, s.feed.Endpoint.EventsAddress, func() {
			s.stats.Connections.Add(1)
			n := s.ups.Add(1)
			s.link.Store(true)
			s.queue.up(link, n)
		}, s.take)
		cut()
		wasUp := s.link.Swap(false)
		s.queue.signal() // the sink is told
		if ctx.Err() != nil {
			return
		}
		s.stats.Failures.Add(1)
		if wasUp {
			s.log.Info("Event stream lost", "reason", err.Error())
		} else {
			s.log.V(1).Info("Event stream not reached", "reason", err.Error())
		}
		if time.Since(began) >= s.cfg.MaxBackoff {
			backoff = s.cfg.MinBackoff
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff/2 + rand.N(backoff/2+1)):
		}
		backoff = min(2*backoff, s.cfg.MaxBackoff)
	}
}

// take queues one message. One that is no event does not end the stream.
func (s *stream) take(frames [][]byte) error {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 {
		s.stats.Malformed.Add(1)
		return nil
	}
	s.queue.message(binary.BigEndian.Uint64(frames[n-2]), frames[n-1])
	return nil
}

// apply works through the queue.
func (s *stream) apply(ctx context.Context) {
	for ctx.Err() == nil {
		if it, ok := s.queue.take(); ok {
			s.step(it)
			s.queue.giveBack(it)
			continue
		}
		s.mark()
		var retry, quiet <-chan time.Time
		if !s.retry.IsZero() {
			retry = time.After(time.Until(s.retry))
		}
		if !s.quiet.IsZero() {
			quiet = time.After(time.Until(s.quiet))
		}
		select {
		case <-ctx.Done():
		case <-s.queue.wake:
		case <-retry:
			s.retry = time.Time{}
			if s.link.Load() {
				s.resync(Retry)
			} else {
				s.retry = time.Now().Add(s.pause) // unless a new connection replays everything anyway
			}
		case <-quiet:
			s.quiet = time.Time{}
			if s.link.Load() {
				s.poll()
			}
		}
	}
}

func (s *stream) position() Position {
	return Position{Next: s.expected, Known: s.known, Proof: s.proof, State: State(s.state.Load())}
}

// mark tells the sink where things stand, if that has changed.
func (s *stream) mark() {
	at, state := s.position(), s.State()
	if at != s.marked || state != s.markedState {
		s.marked, s.markedState = at, state
		s.sink.Mark(at, state)
	}
}

// step does what one item asks for.
func (s *stream) step(it item) {
	switch it.kind {
	case kindUp:
		s.up = it.link
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
func (s *stream) believable(seq uint64) bool {
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
func (s *stream) message(seq uint64, payload []byte) {
	if !s.believable(seq) {
		return
	}
	switch {
	case s.live && seq == s.last:
		s.stats.Duplicates.Add(1)
		return
	case s.live && seq < s.last:
		s.begin(FellBack)
	}
	s.live, s.last = true, seq
	switch {
	case !s.known:
		s.known, s.expected = true, seq
		if seq == 0 { // nothing came before
			s.retry = time.Time{}
			s.setState(Synced)
		}
	case seq > s.expected:
		s.fill(seq)
		if seq > s.expected {
			return // the next connection will bring it
		}
	}
	if seq < s.expected {
		s.stats.Duplicates.Add(1) // a replay brought it
		return
	}
	s.expected = seq + 1
	s.applyBatch(payload)
	s.listen()
}

// applyBatch decodes a payload and changes the mirror and the index accordingly. false means that it cannot be read.
func (s *stream) applyBatch(payload []byte) bool {
	s.proof = proofOf(payload)
	if err := s.decoder.Decode(payload, &s.batch); err != nil {
		if errors.Is(err, vllm.ErrLayout) {
			s.stats.UnknownLayouts.Add(1)
		}
		if s.stats.DecodeErrors.Add(1) == 1 {
			s.log.Info("Event batch cannot be read", "reason", err.Error())
		}
		s.setState(Degraded)
		return false
	}
	s.sink.Apply(&s.batch, s.position())
	if s.batch.Time > 0 {
		now := float64(s.cfg.Now().UnixMilli()) / 1e3
		s.stats.lag.Store(int64((now - s.batch.Time) * 1e9))
	}
	return true
}

func (s *stream) replayable() bool { return s.feed.Endpoint.ReplayAddress != "" }

func (s *stream) setState(state State) {
	if old := State(s.state.Swap(int32(state))); old != state {
		s.log.V(1).Info("Event stream changed its state", "state", state.String())
	}
}
