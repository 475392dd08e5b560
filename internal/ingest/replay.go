package ingest

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"time"
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

// proofOf tells a payload from others with the same number. It is never 0.
func proofOf(payload []byte) uint64 {
	return uint64(len(payload)+1)<<32 | uint64(crc32.Checksum(payload, proofTable))
}

// begin follows a connection that has come up, or an engine that has begun anew. If it shows that it still is in the
// same life, what is held stays; otherwise nothing is held, and everything is replayed.
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
		// The engine has said nothing yet, unless the next message tells otherwise.
		s.known, s.expected = true, 0
		s.setState(Synced)
	default:
		s.setState(state)
		if holes {
			s.plan()
		}
	}
	s.log.Info("Event stream begun", "reason", why.String(), "state", State(s.state.Load()).String(),
		"blocks", s.stats.Blocks.Load())
}

// pass follows another life, which the replay socket has told of.
func (s *Stream) pass() {
	s.passed = true
	s.begin(FellBack)
}

// resync replaces what is held by a replay of everything. What is held stays until the end of the replay, if the sink
// can do that; else until the first reply. It stays altogether if it is only not known to be all there is, and the
// history reaches no further back. It returns false when the engine turns out to be in another life.
func (s *Stream) resync(why Reason) (same bool) {
	if !s.prove() {
		s.pass()
		return false
	}
	s.stats.Resyncs[why].Add(1)
	before, since := s.position(), s.since
	cleared, enough := false, false
	partial := why == Retry && State(s.state.Load()) == Unverified
	state, holes, err := s.replayAll(func(from uint64) error {
		if enough = partial && from > 0 && from >= s.since; enough {
			return errShort
		}
		cleared = true
		s.setState(Syncing) // whoever goes on from a position in between must know
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
		s.tell(s.position(), s.State())
	}
	s.log.Info("Event stream replayed", "reason", why.String(), "state", State(s.state.Load()).String(),
		"blocks", s.stats.Blocks.Load())
	return true
}

// resume goes on after a connection was made again, if the engine shows by the batch applied last that it is in the
// same life. It tells whether that worked. A process that has ended in the middle of a replay leaves nothing to go on
// from.
func (s *Stream) resume() bool {
	if !s.known || s.proof == 0 || !s.replayable() || State(s.state.Load()) == Syncing {
		return false
	}
	before, marked := s.expected, s.stats.Replays.Load()
	err := s.catchUp()
	if err != nil {
		s.log.Info("Event stream not continued", "reason", err.Error(), "replays", s.stats.Replays.Load()-marked)
		return false
	}
	s.stats.Resumes.Add(1)
	if State(s.state.Load()) != Synced && s.retry.IsZero() {
		s.retry = s.cfg.Now().Add(s.pause) // what was planned may have been forgotten with an earlier process
	}
	s.log.Info("Event stream continued", "state", State(s.state.Load()).String(), "batches", s.expected-before)
	return true
}

// prove asks for the batch that was applied last. It returns false when the engine has another one under that number,
// or none: then it is in another life, although the connection's end has not been noticed.
func (s *Stream) prove() bool {
	if !s.known || s.expected == 0 || s.proof == 0 {
		return true
	}
	last, same := s.expected-1, false
	err := s.replay(last, func(seq uint64, payload []byte) error {
		same = seq != last || proofOf(payload) == s.proof
		return errEnough
	})
	return same || err != nil && !errors.Is(err, errEnough)
}

// catchUp applies what the engine has published since the batch applied last, which must be the one that it still has
// under that number. errOther says that it is not, errGone that it is kept no longer, errShort that one is missing.
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

// listen plans to ask for the messages that may be lost last.
func (s *Stream) listen() {
	if s.replayable() {
		s.quiet, s.calm = s.cfg.Now().Add(s.cfg.MinQuiet), s.cfg.MinQuiet
	}
}

// poll asks for the messages that may be lost last: nothing that follows shows that they are.
func (s *Stream) poll() {
	next := s.expected
	var err error
	if s.known && (s.expected == 0 || s.proof != 0) {
		err = s.catchUp()
	}
	if s.expected > next {
		s.stats.TailLosses.Add(s.expected - next)
		s.live = false // older messages may still come
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
	s.log.Info("Event replay failed", "reason", err.Error())
	s.setState(state)
	s.retry = s.cfg.Now().Add(s.pause)
	s.pause = min(2*s.pause, s.cfg.MaxResync)
}

// replayAll applies everything that the engine still has, and returns the state that this leads to, and whether batches
// in the middle did not come: a router drops replies for which it has no room. It calls first with the number of the
// first batch before that is applied.
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
		}
		return nil
	})
	return state, holes, err
}

// patience is how long a replay socket may have taken to fail and still be asked again at once: what is live waits
// meanwhile.
const patience = time.Second

// fill asks for the batches from the expected one up to seq, which has come. Afterwards seq is the expected one, or
// has been applied, or the connection has gone. It returns false when the engine turns out to be in another life, and
// what has come is of neither.
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
			s.stats.Malformed.Add(1) // the engine has not come so far
		} else {
			s.setState(Degraded)
			s.plan()
		}
		s.live = false
		return false
	}
	missing := seq - s.expected
	if farAhead(seq, s.expected) {
		missing = 0 // what came before is another life's, and nobody knows how much of this one
	}
	s.stats.Missing.Add(missing)
	s.log.Info("Events are missing", "batches", missing)
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
	err := s.cfg.Source.Replay(s.up, s.feed.Endpoint.ReplayAddress, from, each)
	if err != nil && !errors.Is(err, errShort) && !errors.Is(err, errEnough) {
		s.stats.ReplayFailures.Add(1)
	}
	return err
}

// rest waits a moment, false when the connection has gone meanwhile.
func (s *Stream) rest(d time.Duration) bool { return s.cfg.Sleep(s.up, d/2+rand.N(d/2+1)) }
