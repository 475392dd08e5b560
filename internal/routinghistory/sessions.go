package routinghistory

import (
	"sync"
	"time"
)

// Sessions remembers which endpoint the last request of each session went to. It holds a bounded number of sessions,
// drops the least recently used half when it is full, and forgets sessions that have been idle for too long. It is safe
// for concurrent use.
//
// Each replica sends the others what it has put (Since), and takes what they have put (Learn), so that a session stays
// where it is whichever replica its requests meet. What was learned is sent on only to replicas that have just started.
type Sessions struct {
	mu   sync.Mutex
	idle time.Duration
	half int
	// young holds what was used since the halves last changed places, old what was used before that.
	young, old map[uint64]home
	// changes numbers what was put or learned. The session of change n is in log[(n-1) % (2*half)], for the last 2*half of them.
	changes uint64
	log     []uint64
}

// home of a session.
type home struct {
	endpoint uint64
	used     time.Time
	change   uint64
	learned  bool
}

// NewSessions remembers at most limit sessions, at least 2, for as long as each is idle.
func NewSessions(limit int, idle time.Duration) *Sessions {
	return &Sessions{idle: idle, half: max(1, limit/2), young: map[uint64]home{}, old: map[uint64]home{}}
}

// Put records that a session's request goes to an endpoint, by the hashes of their identities.
func (s *Sessions) Put(session, endpoint uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(session, home{endpoint: endpoint, used: now})
}

// Learn records where another replica has sent a session's request, unless a later one is known.
func (s *Sessions) Learn(session, endpoint uint64, used time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.find(session); ok && !used.After(h.used) {
		return
	}
	s.set(session, home{endpoint: endpoint, used: used, learned: true})
}

// Changes is the number of changes so far.
func (s *Sessions) Changes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// Since calls f at most most times, for the sessions of the changes after a number of them, in their order, with their
// endpoints and for how long they have been idle: for sessions that were put, and up to the change named learned also for those
// that were learned. It returns the number of changes that it has covered. more reports whether there are others. Of several
// changes of a session only the last one counts.
func (s *Sessions) Since(
	after, learned uint64, most int, now time.Time, f func(session, endpoint uint64, idle time.Duration),
) (upTo uint64, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for after = max(after, s.changes-uint64(len(s.log))); after < s.changes; after++ {
		session := s.log[after%uint64(2*s.half)]
		h, ok := s.find(session)
		idle := now.Sub(h.used)
		if !ok || h.change != after+1 || h.learned && h.change > learned || idle > s.idle {
			continue
		}
		if most--; most < 0 {
			return after, true
		}
		f(session, h.endpoint, max(0, idle))
	}
	return after, false
}

// Get is the endpoint of a session's last request, 0 where it is not known.
func (s *Sessions) Get(session uint64, now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.find(session); ok && now.Sub(h.used) <= s.idle {
		return h.endpoint
	}
	return 0
}

// Len is the number of sessions in memory, including sessions that have been idle for too long.
func (s *Sessions) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.young) + len(s.old)
}

// find looks in both halves. mu is held.
func (s *Sessions) find(session uint64) (home, bool) {
	h, ok := s.young[session]
	if !ok {
		h, ok = s.old[session]
	}
	return h, ok
}

// set makes h the session's home. mu is held.
func (s *Sessions) set(session uint64, h home) {
	if at := int(s.changes % uint64(2*s.half)); at < len(s.log) {
		s.log[at] = session
	} else {
		s.log = append(s.log, session)
	}
	s.changes++
	h.change = s.changes
	if _, ok := s.young[session]; !ok && len(s.young) >= s.half {
		clear(s.old)
		s.young, s.old = s.old, s.young
	}
	s.young[session] = h
}
