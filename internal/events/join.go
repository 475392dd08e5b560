package events

import "github.com/kvasir-dev/kvasir/internal/kvevent"

// sizer is a mirror that Config.Join replaces when the first block that the engine announces is a part of a key block:
// joining parts requires tokens, which are not needed otherwise.
type sizer struct {
	*mirror
	decided bool
	joined  Sink // nil unless decided so
}

// Begin implements Sink.
func (s *sizer) Begin(sameLife bool) {
	if s.joined != nil {
		s.joined.Begin(sameLife)
		return
	}
	s.mirror.Begin(sameLife)
}

// Apply implements Sink.
func (s *sizer) Apply(b *kvevent.Batch, at Position) {
	if !s.decided && s.cfg.Join != nil {
		s.decide(b)
	}
	if s.joined != nil {
		s.joined.Apply(b, at)
		return
	}
	s.mirror.Apply(b, at)
}

// decide looks at the first block that has tokens.
func (s *sizer) decide(b *kvevent.Batch) {
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind != kvevent.Stored || e.Partial || len(e.Hashes) == 0 || e.BlockSize <= 0 || len(e.Tokens) != len(e.Hashes)*e.BlockSize {
			continue
		}
		s.decided = true
		if ours := s.feed.Keys.BlockTokens; e.BlockSize < ours && ours%e.BlockSize == 0 {
			s.mirror.Revert()
			s.joined = s.cfg.Join(s.feed, s.stats, s.share)
			s.joined.Begin(false)
		}
		return
	}
}

// Impossible implements DoubtfulSink.
func (s *sizer) Impossible() bool {
	if joined, ok := s.joined.(DoubtfulSink); ok {
		return joined.Impossible()
	}
	return s.mirror.Impossible()
}

// Revert implements Sink.
func (s *sizer) Revert() bool {
	if s.joined != nil {
		return s.joined.Revert()
	}
	return s.mirror.Revert()
}

// Mark implements Sink.
func (s *sizer) Mark(at Position, state State) {
	if s.joined != nil {
		s.joined.Mark(at, state)
		return
	}
	s.mirror.Mark(at, state)
}
