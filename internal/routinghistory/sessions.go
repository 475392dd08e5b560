package routinghistory

import (
	"sync"
	"time"
)

// Sessions remembers which endpoint the last request of each session went to. It holds a bounded number of sessions,
// drops the least recently used half when it is full, and forgets sessions that have been idle for too long. It is safe
// for concurrent use.
type Sessions struct {
	mu   sync.Mutex
	idle time.Duration
	half int
	// young holds what was used since the halves last changed places, old what was used before that.
	young, old map[uint64]home
}

// home of a session.
type home struct {
	endpoint uint64
	used     time.Time
}

// NewSessions remembers at most limit sessions, at least 2, for as long as each is idle.
func NewSessions(limit int, idle time.Duration) *Sessions {
	return &Sessions{idle: idle, half: max(1, limit/2), young: map[uint64]home{}, old: map[uint64]home{}}
}

// Put takes note that a session's request goes to an endpoint, by the hash of its identity.
func (s *Sessions) Put(session, endpoint uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.young[session]; !ok && len(s.young) >= s.half {
		clear(s.old)
		s.young, s.old = s.old, s.young
	}
	s.young[session] = home{endpoint, now}
}

// Get is the endpoint of a session's last request, 0 where it is not known.
func (s *Sessions) Get(session uint64, now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.young[session]
	if !ok {
		if h, ok = s.old[session]; !ok {
			return 0
		}
	}
	if now.Sub(h.used) > s.idle {
		return 0
	}
	return h.endpoint
}

// Len is the number of sessions in memory, including sessions that have been idle for too long.
func (s *Sessions) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.young) + len(s.old)
}
