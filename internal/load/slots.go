package load

import "time"

const (
	// sameReports in a row with about as many running, and with some that wait, tell that an engine runs no more at a
	// time: a place is free between the end of a request and the next step.
	sameReports = 3
	// slotsLast is how long that is believed: requests also wait for other reasons.
	slotsLast = 10 * time.Second
)

// slots is how many requests an engine runs at a time, learned from its reports: engines do not tell.
type slots struct {
	low, high int // running, in the last reports, while some waited
	same      int // number of those reports
	known     int
	at        time.Time
}

// observe takes a report.
func (s *slots) observe(at time.Time, r *Report) {
	low, high := min(s.low, r.Running), max(s.high, r.Running)
	switch {
	case r.Waiting == 0 || r.KVUsage > starving:
		s.same = 0
	case s.same > 0 && high-low <= 1+high/64:
		s.low, s.high, s.same = low, high, s.same+1
	default:
		s.low, s.high, s.same = r.Running, r.Running, 1
	}
	switch {
	case s.same >= sameReports:
		s.known, s.at = s.high, at
	case r.Running > s.known:
		s.known = 0
	}
}

// now is the number, 0 while it is not known.
func (s *slots) now(now time.Time) int {
	if s.known == 0 || now.Sub(s.at) > slotsLast {
		return 0
	}
	return s.known
}
