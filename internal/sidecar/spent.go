package sidecar

import (
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/relay"
)

// spent are the tickets that were taken, so that none is taken twice: one that was seen on its way to the pod is of no use. It is
// safe for concurrent use.
type spent struct {
	mu sync.Mutex
	// present has the tickets since began, former those of the time before. A ticket is in one of them for at least relay.Kept.
	present, former map[uint64]struct{}
	began           time.Time
}

// maxSpent bounds present, and former. It is far more than a pod serves in relay.Kept.
const maxSpent = 1 << 15

// take reports whether a ticket was not taken before. It takes none while there is no room to remember it.
func (s *spent) take(id uint64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch age := now.Sub(s.began); {
	case s.present == nil || age >= 2*relay.Kept:
		s.present, s.former, s.began = map[uint64]struct{}{}, nil, now
	case age >= relay.Kept:
		s.present, s.former, s.began = map[uint64]struct{}{}, s.present, now
	}
	_, again := s.present[id]
	_, before := s.former[id]
	if again || before || len(s.present) >= maxSpent {
		return false
	}
	s.present[id] = struct{}{}
	return true
}
