package events

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/kvasir-dev/kvasir/internal/logging"
)

// errShort ends a replay that does not reach back as far as asked for.
var errShort = errors.New("history does not reach back")

// errFar ends a replay with a number that cannot follow the one before.
var errFar = errors.New("a sequence number is too far ahead")

// errOther ends a replay by an engine that is not in the life which is followed.
var errOther = errors.New("the engine has begun another life")

// errGone ends a replay that does not reach back to the batch that was applied last, so that nothing is shown.
var errGone = errors.New("history does not reach back to what was applied last")

// errEnough ends a replay that has shown what was asked.
var errEnough = errors.New("enough")

var proofTable = crc32.MakeTable(crc32.Castagnoli)

// proofOf identifies a payload among others with the same number. It is never 0.
func proofOf(payload []byte) uint64 {
	return uint64(len(payload)+1)<<32 | uint64(crc32.Checksum(payload, proofTable))
}

// begin follows a new connection, or an engine that has restarted its sequence. If the engine proves that it is in the same
// life, the blocks stay; otherwise they are cleared, and everything is replayed.
func (s *Stream) begin(why Reason) {
	s.live, s.calm = false, s.cfg.MinQuiet
	if why == Connected && s.resume() {
		s.listen()
		return
	}
	s.stats.Resyncs[why].Add(1)
	s.setState(Syncing)
	s.clear(false)
	s.known, s.proof, s.since, s.retry, s.pause = false, 0, 0, time.Time{}, s.cfg.MinResync
	defer s.listen()
	if !s.replayable() {
		s.setState(Unverified)
		return
	}
	state, holes, err := s.replayAll(func(uint64) error { return nil })
	switch {
	case err != nil:
		s.failed(err, Unverified)
	case !s.known:
		// The engine has published nothing yet, unless the next message shows otherwise.
		s.known, s.expected = true, 0
		s.setState(Synced)
	default:
		s.setState(state)
		if holes {
			s.plan()
		}
	}
	s.log.Info("Event stream started", "reason", why.String(), "state", State(s.state.Load()).String(),
		"blocks", s.stats.Blocks.Load())
}

// pass follows another life, which the replay socket has shown.
func (s *Stream) pass() {
	s.passed = true
	s.begin(FellBack)
}

// resync replaces the blocks by a replay of everything. The old blocks stay until the end of the replay, if the sink
// supports that; else until the first reply. They also stay if they are only possibly incomplete and the history reaches no
// further back. It returns false when the engine turns out to be in another life. Nothing is replayed until the engine
// answers which life it is in: a replay of another life would be applied as part of this one.
func (s *Stream) resync(why Reason) (same bool) {
	unproven := s.prove()
	if errors.Is(unproven, errOther) || errors.Is(unproven, errGone) {
		s.pass()
		return false
	}
	s.stats.Resyncs[why].Add(1)
	if unproven != nil {
		s.listen()
		s.failed(unproven, Degraded)
		return true
	}
	before, since := s.position(), s.since
	cleared, enough := false, false
	partial := why == Retry && State(s.state.Load()) == Unverified
	state, holes, err := s.replayAll(func(from uint64) error {
		if enough = partial && from > 0 && from >= s.since; enough {
			return errShort
		}
		cleared = true
		s.setState(Syncing) // a reader that continues from a position in between must know
		s.clear(true)
		return nil
	})
	s.listen()
	silent := err == nil && !cleared
	if silent && s.known {
		err = errShort // the engine has spoken, yet replays nothing
	}
	switch {
	case enough:
	case silent && !s.known: // as when a stream begins
		s.known, s.expected = true, 0
		s.setState(Synced)
	case err != nil:
		if cleared && s.sink.Revert() {
			s.expected, s.known, s.proof, s.since = before.Next, before.Known, before.Proof, since
		}
		s.failed(err, Degraded)
	case before.Known && s.expected < before.Next:
		// No history of the life that is followed ends before what was applied of it.
		s.pass()
		return false
	default:
		s.retry = time.Time{}
		if state != Degraded {
			s.pause = s.cfg.MinResync
		}
		if holes { // what else leaves it degraded would be the same every time
			s.plan()
		}
		s.setState(state)
		s.publish(s.position(), s.State())
	}
	s.log.Info("Event stream replayed", "reason", why.String(), "state", State(s.state.Load()).String(),
		"blocks", s.stats.Blocks.Load())
	return true
}

// resume continues after a reconnect, if the engine proves by the last applied batch that it is in the same life. It
// reports whether that worked. A process that ended in the middle of a replay has no position to resume from.
func (s *Stream) resume() bool {
	if !s.known || s.proof == 0 || !s.replayable() || State(s.state.Load()) == Syncing {
		return false
	}
	before, marked := s.expected, s.stats.Replays.Load()
	err := s.catchUp()
	if err != nil {
		logging.Warn(s.log, "Event stream not continued", "reason", err.Error(), "replays", s.stats.Replays.Load()-marked)
		return false
	}
	s.stats.Resumes.Add(1)
	if State(s.state.Load()) != Synced && s.retry.IsZero() {
		s.retry = s.cfg.Now().Add(s.pause) // what was planned might have been forgotten with an earlier process
	}
	s.log.Info("Event stream continued", "state", State(s.state.Load()).String(), "batches", s.expected-before)
	return true
}

// prove requests the batch that was applied last. errOther means that the engine has another one under that number, or
// none: then it is in another life, although the connection's end has not been noticed. If the engine keeps only later
// batches, it is asked for the message that has come over the connection; errGone means that it has dropped that one, too.
// Any other error means that it did not answer.
func (s *Stream) prove() error {
	if !s.known || s.expected == 0 || s.proof == 0 {
		return nil
	}
	err := s.published(s.expected-1, s.proof)
	if errors.Is(err, errGone) && s.arrived.proof != 0 {
		err = s.published(s.arrived.seq, s.arrived.proof)
	}
	return err
}

// published asks whether the engine has published a batch: nil if it has, errOther if it has another one under that
// number, or none, and errGone if it keeps only later ones.
func (s *Stream) published(number, proof uint64) error {
	answer := errOther
	err := s.replay(number, func(seq uint64, payload []byte) error {
		switch {
		case seq > number:
			answer = errGone
		case seq == number && proofOf(payload) == proof:
			answer = nil
		}
		return errEnough
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return answer
}

// catchUp applies what the engine has published since the batch applied last, which the engine must still have under that
// number. errOther means that it has another one, errGone that it has dropped it, errShort that a batch is missing.
func (s *Stream) catchUp() error {
	proven := s.expected == 0
	from := s.expected
	if !proven {
		from--
	}
	err := s.replay(from, func(seq uint64, payload []byte) error {
		switch {
		case !proven && seq > from:
			return errGone
		case !proven:
			if seq != from || proofOf(payload) != s.proof {
				return errOther
			}
			proven = true
			return nil
		case seq < s.expected:
			return nil
		case seq > s.expected:
			return errShort
		}
		s.expected = seq + 1
		s.applyBatch(payload)
		return nil
	})
	if err == nil && !proven {
		return errOther
	}
	return err
}

// listen plans to ask for the messages that might be lost last.
func (s *Stream) listen() {
	if s.replayable() {
		s.quiet, s.calm = s.cfg.Now().Add(s.cfg.MinQuiet), s.cfg.MinQuiet
	}
}

// poll asks for the messages that might be lost last: nothing that follows shows that they are.
func (s *Stream) poll() {
	next := s.expected
	var err error
	if s.known && (s.expected == 0 || s.proof != 0) {
		err = s.catchUp()
	}
	if s.expected > next {
		s.stats.TailLosses.Add(s.expected - next)
		s.live = false // older messages can still arrive
	}
	switch {
	case errors.Is(err, errOther), errors.Is(err, errGone):
		s.pass()
	case errors.Is(err, errShort):
		s.resync(ShortGap)
	default:
		s.calm = min(2*s.calm, s.cfg.MaxQuiet)
		s.quiet = s.cfg.Now().Add(s.calm)
	}
}

// failed takes note of a replay of everything that did not succeed, and plans another.
func (s *Stream) failed(err error, state State) {
	logging.Warn(s.log, "Event replay failed", "reason", err.Error())
	s.setState(state)
	s.retry = s.cfg.Now().Add(s.pause)
	s.pause = min(2*s.pause, s.cfg.MaxResync)
}

// replayAll applies everything that the engine still has. It returns the resulting state, and whether batches in the middle
// are missing: a router drops replies for which it has no room. It calls first with the number of the first batch before
// that batch is applied.
func (s *Stream) replayAll(first func(from uint64) error) (state State, holes bool, err error) {
	state = Synced
	begun := false
	err = s.replay(0, func(seq uint64, payload []byte) error {
		switch {
		case !begun:
			if err := first(seq); err != nil {
				return err
			}
			begun, s.known, s.since = true, true, seq
			if seq > 0 {
				state = Unverified
			}
		case seq < s.expected:
			return nil
		case farAhead(seq, s.expected):
			return errFar
		case seq > s.expected:
			s.stats.Gaps.Add(1)
			s.stats.Missing.Add(seq - s.expected)
			state, holes = Degraded, true
		}
		s.expected = seq + 1
		if !s.applyBatch(payload) {
			state = Degraded
		} else if emptied(&s.batch) {
			state, holes = Synced, false // what is missing before does not matter
		}
		return nil
	})
	return state, holes, err
}

// patience is how long a replay socket can have taken to fail and still be asked again at once: what is live waits
// meanwhile.
const patience = time.Second

// fill requests the batches from the expected one up to seq, which has arrived. Afterwards seq is the expected one, or has
// been applied, or the connection has ended. It returns false when the engine turns out to be in another life; then the
// batches that arrived belong to neither.
func (s *Stream) fill(seq uint64) (same bool) {
	s.stats.Gaps.Add(1)
	answered := false
	for attempt := 0; s.replayable() && attempt < s.cfg.ReplayAttempts && s.expected < seq; attempt++ {
		if attempt > 0 && !s.rest(s.cfg.MinBackoff) {
			break
		}
		began := s.cfg.Now()
		err := s.catchUp()
		if errors.Is(err, errOther) {
			s.pass()
			return false
		}
		if errors.Is(err, errShort) || errors.Is(err, errGone) {
			if !s.resync(ShortGap) {
				return false
			}
			break
		}
		if err != nil && s.cfg.Now().Sub(began) >= patience {
			break
		}
		answered = err == nil
	}
	if s.expected >= seq || s.up.Err() != nil {
		return true
	}
	if s.passed { // only a replay shows that it is not of the life before
		if answered {
			s.stats.Malformed.Add(1) // the engine has not published that many
		} else {
			s.setState(Degraded)
			s.plan()
		}
		s.live = false
		return false
	}
	missing := seq - s.expected
	if farAhead(seq, s.expected) {
		missing = 0 // earlier batches are of another epoch, and this epoch's share is unknown
	}
	s.stats.Missing.Add(missing)
	logging.Warn(s.log, "Event gap detected", "batches", missing)
	s.expected = seq
	s.setState(Degraded)
	s.plan()
	return true
}

// plan makes sure that everything is replayed again some time, if it can be.
func (s *Stream) plan() {
	if s.replayable() && s.retry.IsZero() {
		s.retry = s.cfg.Now().Add(s.pause)
		s.pause = min(2*s.pause, s.cfg.MaxResync)
	}
}

// replay asks the endpoint's replay socket, as long as the connection to its publisher lasts.
func (s *Stream) replay(from uint64, each func(seq uint64, payload []byte) error) error {
	s.stats.Replays.Add(1)
	var err error
	if p := s.caught("Reading a replay panicked", func() {
		err = s.cfg.Source.Replay(s.up, s.feed.Endpoint.ReplayAddress, from, each)
	}, func() []any { return []any{"from", from} }); p != nil {
		err = p
	}
	if err != nil && !errors.Is(err, errShort) && !errors.Is(err, errEnough) {
		s.stats.ReplayFailures.Add(1)
	}
	return err
}

// rest waits a moment, false when the connection has ended meanwhile.
func (s *Stream) rest(d time.Duration) bool { return s.cfg.Sleep(s.up, d/2+rand.N(d/2+1)) }
