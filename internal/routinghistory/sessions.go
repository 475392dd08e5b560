package routinghistory

import (
	"sync"
	"time"
)

// Sessions remembers which endpoint the last request of each session went to. It holds a bounded number of sessions, drops
// the least recently used one when it is full, and forgets sessions that have been idle for too long. It is safe for
// concurrent use.
//
// Each replica sends the others what it has put (Since), and takes what they have put (Learn), so that a session stays
// where it is whichever replica its requests meet. What was learned is sent on only to replicas that have just started.
//
// Of two homes of a session, all replicas keep the same one, in whatever order they learn them: the one with the later stamp.
// A stamp is the time of the wall clock at which the request was sent, but always later than that of the session's home
// before. So clocks that differ, or are set, matter only for requests that no replica knew of each other.
type Sessions struct {
	mu    sync.Mutex // guards what follows
	idle  time.Duration
	limit int
	at    map[uint64]int32
	homes []home // by place
	order ring   // of change, the latest one first
	// changes numbers what was put or learned.
	changes uint64
}

// Home is where the last request of a session went.
type Home struct {
	// Endpoint is the hash of its identity; not 0.
	Endpoint uint64
	// Stamp orders the homes of a session, in microseconds. 0 stands for that of Used.
	Stamp uint64
	// Used is when the request was sent.
	Used time.Time
}

type home struct {
	Home

	session uint64
	change  uint64
	learned bool
}

// maxStamp bounds stamps, so that there is always a later one: it is 73,000 years away.
const maxStamp = 1 << 61

// later reports whether h replaces another home.
func (h *Home) later(than *Home) bool {
	if h.Stamp != than.Stamp {
		return h.Stamp > than.Stamp
	}
	return h.Endpoint > than.Endpoint
}

// NewSessions remembers at most limit sessions, at least 1, for as long as each is idle.
func NewSessions(limit int, idle time.Duration) *Sessions {
	return &Sessions{idle: idle, limit: max(1, limit), at: map[uint64]int32{}, homes: make([]home, 1), order: make(ring, 1)}
}

// Put records that a session's request goes to an endpoint, by the hashes of their identities.
func (s *Sessions) Put(session, endpoint uint64, now time.Time) {
	h := Home{Endpoint: endpoint, Stamp: stamp(now), Used: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.at[session]; ok {
		h.Stamp = max(h.Stamp, min(maxStamp, s.homes[n].Stamp+1))
	}
	s.set(session, h, false)
}

// Learn records where another replica has sent a session's request, unless a later one is known.
func (s *Sessions) Learn(session uint64, h Home) {
	if h.Stamp == 0 {
		h.Stamp = stamp(h.Used)
	}
	h.Stamp = min(h.Stamp, maxStamp)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.at[session]; ok {
		known := &s.homes[n].Home
		if ended := h.Used.Sub(known.Used) > s.idle; !ended && !h.later(known) {
			return
		}
	}
	s.set(session, h, true)
}

func stamp(t time.Time) uint64 { return uint64(max(1, t.UnixMicro())) }

// Changes is the number of changes so far.
func (s *Sessions) Changes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// Since calls f at most most times, for the sessions of the changes after a number of them, in their order, with their
// homes: for sessions that were put, and up to the change named learned also for those that were learned. It returns the
// number of changes that it has covered. more reports whether there are others. Of several changes of a session only the
// last one counts.
func (s *Sessions) Since(
	after, learned uint64, most int, now time.Time, f func(session uint64, h Home),
) (upTo uint64, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n int32 // the first one that was changed after, or 0
	for next := s.order[0].next; next != 0 && s.homes[next].change > after; next = s.order[next].next {
		n = next
	}
	for ; n != 0; n = s.order[n].prev {
		h := &s.homes[n]
		if h.learned && h.change > learned || now.Sub(h.Used) > s.idle {
			continue
		}
		if most--; most < 0 {
			return h.change - 1, true
		}
		f(h.session, h.Home)
	}
	return s.changes, false
}

// Get is the endpoint of a session's last request, 0 where it is not known.
func (s *Sessions) Get(session uint64, now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.at[session]; ok && now.Sub(s.homes[n].Used) <= s.idle {
		return s.homes[n].Endpoint
	}
	return 0
}

// Len is the number of sessions in memory, including sessions that have been idle for too long.
func (s *Sessions) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at)
}

// set makes h the session's home. mu is held.
func (s *Sessions) set(session uint64, h Home, learned bool) {
	n, ok := s.at[session]
	switch {
	case ok:
		s.order.unlink(n)
	case len(s.at) < s.limit:
		s.homes = append(s.homes, home{})
		n = s.order.grow()
	default:
		n = s.order[0].prev
		s.order.unlink(n)
		delete(s.at, s.homes[n].session)
	}
	s.changes++
	s.at[session] = n
	s.homes[n] = home{Home: h, session: session, change: s.changes, learned: learned}
	s.order.link(n, 0)
}
