package ingest

import (
	"errors"
	"math/rand/v2"
	"time"
)

// errShort ends a replay that does not reach back as far as asked for.
var errShort = errors.New("history does not reach back")

// begin starts a new life of the endpoint: nothing is held, everything is replayed.
func (s *stream) begin(why Reason) {
	s.stats.Resyncs[why].Add(1)
	s.setState(Syncing)
	s.mirror.clear()
	s.known, s.live, s.retry, s.pause = false, false, time.Time{}, s.cfg.MinResync
	if !s.replayable() {
		s.setState(Unverified)
		return
	}
	state, err := s.replayAll(func() {})
	switch {
	case err != nil:
		s.failed(err, Unverified)
	case !s.known:
		// The engine has said nothing yet, unless the next message tells otherwise.
		s.known, s.expected = true, 0
		s.setState(Synced)
	default:
		s.setState(state)
	}
	s.log.Info("Event stream begun", "reason", why.String(), "state", State(s.state.Load()).String(),
		"blocks", s.stats.Blocks.Load())
}

// resync replaces what is held by a replay of everything. What is held stays until the first reply.
func (s *stream) resync(why Reason) {
	s.stats.Resyncs[why].Add(1)
	cleared := false
	state, err := s.replayAll(func() {
		cleared = true
		s.mirror.clear()
	})
	if err == nil && !cleared {
		err = errShort // the engine has spoken, yet replays nothing
	}
	if err != nil {
		s.failed(err, Degraded)
	} else {
		s.pause = s.cfg.MinResync
		s.setState(state)
	}
	s.log.Info("Event stream replayed", "reason", why.String(), "state", State(s.state.Load()).String(),
		"blocks", s.stats.Blocks.Load())
}

// failed takes note of a replay of everything that did not succeed, and plans another.
func (s *stream) failed(err error, state State) {
	s.log.Info("Event replay failed", "reason", err.Error())
	s.setState(state)
	s.retry = time.Now().Add(s.pause)
	s.pause = min(2*s.pause, s.cfg.MaxResync)
}

// replayAll applies everything that the engine still has, and returns the state that this leads to. It calls first
// before the first batch.
func (s *stream) replayAll(first func()) (State, error) {
	state, begun := Synced, false
	err := s.replay(0, func(seq uint64, payload []byte) error {
		switch {
		case !begun:
			begun = true
			first()
			s.known = true
			if seq > 0 {
				state = Unverified
			}
		case seq < s.expected:
			return nil
		case seq > s.expected:
			s.stats.Gaps.Add(1)
			s.stats.Missing.Add(seq - s.expected)
			state = Degraded
		}
		s.expected = seq + 1
		if !s.applyBatch(payload) {
			state = Degraded
		}
		return nil
	})
	return state, err
}

// fill asks for the batches from the expected one up to seq, which has come. Afterwards seq is the expected one, or
// has been applied.
func (s *stream) fill(seq uint64) {
	s.stats.Gaps.Add(1)
	for attempt := 0; s.replayable() && attempt < s.cfg.ReplayAttempts && s.expected < seq; attempt++ {
		if attempt > 0 && !s.rest(s.cfg.MinBackoff) {
			break
		}
		err := s.replay(s.expected, func(n uint64, payload []byte) error {
			switch {
			case n < s.expected:
				return nil
			case n > s.expected:
				return errShort
			}
			s.expected = n + 1
			s.applyBatch(payload)
			return nil
		})
		if errors.Is(err, errShort) {
			s.resync(ShortGap)
			break
		}
	}
	if s.expected >= seq {
		return
	}
	s.stats.Missing.Add(seq - s.expected)
	s.log.Info("Events are missing", "batches", seq-s.expected)
	s.expected = seq
	s.setState(Degraded)
	if s.replayable() && s.retry.IsZero() {
		s.retry = time.Now().Add(s.pause)
		s.pause = min(2*s.pause, s.cfg.MaxResync)
	}
}

// replay asks the endpoint's replay socket, as long as the connection to its publisher lasts.
func (s *stream) replay(from uint64, each func(seq uint64, payload []byte) error) error {
	s.stats.Replays.Add(1)
	err := s.cfg.Source.Replay(s.up, s.feed.Endpoint.ReplayAddress, from, each)
	if err != nil && !errors.Is(err, errShort) {
		s.stats.ReplayFailures.Add(1)
	}
	return err
}

// rest waits a moment, false when the connection has gone meanwhile.
func (s *stream) rest(d time.Duration) bool {
	select {
	case <-s.up.Done():
		return false
	case <-time.After(d/2 + rand.N(d/2+1)):
		return true
	}
}
