package picker

import (
	"sync"
	"time"
)

const (
	// handoffFailures in a row, as one side of hand-offs, leave an endpoint out of further ones for a time.
	handoffFailures = 3
	// unconnectedFor is how long endpoints are left out that answer without parameters, because that is their configuration.
	unconnectedFor = 5 * time.Minute
)

// side keeps hand-offs away from an endpoint with which they fail: as the one that prefills, or as the one that loads the
// blocks. A failure does not show which of the two is at fault. So failures in a row with one partner leave out the pair, and failures
// with several partners leave out the endpoint.
//
//	in use --failures in a row--> left out --time--> one hand-off is tried --success--> in use
//	                                 ^                       |
//	                                 '--failure, or no end---'
//
// It is safe for concurrent use.
type side struct {
	mu       sync.Mutex
	failures int    // in a row
	partner  uint64 // in all of them, as the hash of its endpoint; 0 if there were several, or none
	until    time.Time
}

// concerns reports whether the failures are enough to leave out hand-offs with a partner. s.mu is held.
func (s *side) concerns(partner uint64) bool {
	return s.failures >= handoffFailures && (s.partner == 0 || s.partner == partner)
}

// leavesOut reports whether there are no hand-offs with a partner now; 0 asks for those with all partners.
func (s *side) leavesOut(partner uint64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.concerns(partner) && now.Before(s.until)
}

// take asks for a hand-off with a partner. After failures, one is let through in each period, whatever becomes of it.
func (s *side) take(partner uint64, now time.Time, period time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.concerns(partner) {
		return true
	}
	if now.Before(s.until) {
		return false
	}
	s.until = now.Add(period)
	return true
}

// fail counts a failure with a partner, 0 for one without, and reports whether it is the one that leaves the side out.
func (s *side) fail(partner uint64, now time.Time, period time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures++; s.failures == 1 {
		s.partner = partner
	} else if s.partner != partner {
		s.partner = 0
	}
	if till := now.Add(period); s.failures >= handoffFailures && till.After(s.until) {
		s.until = till
	}
	return s.failures == handoffFailures
}

// succeed notes a hand-off that went well. Failures with another partner only are not forgotten.
func (s *side) succeed(partner uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partner == 0 || s.partner == partner {
		s.failures, s.partner = 0, 0
	}
}
