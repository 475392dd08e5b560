package load

import (
	"strings"
	"time"
)

const (
	// sameReports in a row with about as many running requests, and with some waiting, show that an engine runs no more at
	// a time: a slot is free between the end of a request and the next step.
	sameReports = 3
	// noBlocks is the KV use above which requests might wait for blocks rather than for a place.
	noBlocks = 0.95
	// slotsLast is how long the number is used. Then one place more is tried, and another every slotsProbe, until some
	// request waits again or the engine runs more; after slotsGone the number is unknown. So few requests are sent to wait,
	// and a wrong number is soon corrected.
	slotsLast, slotsProbe, slotsGone = 10 * time.Second, 200 * time.Millisecond, 15 * time.Second
)

// slots is how many requests an engine runs at a time, learned from its metrics: engines do not report the limit.
type slots struct {
	low, high int // running, in the last reports, while some waited
	same      int // number of those reports
	known     int
	at        time.Time
}

// observe takes a report of an engine that had so many tokens to prefill: while they are more than it does in a step,
// requests wait for that.
func (s *slots) observe(at time.Time, r *Report, pending float64) {
	low, high := min(s.low, r.Running), max(s.high, r.Running)
	switch {
	case r.Waiting == 0 || r.KVUsage > noBlocks || r.adaptersFull() || pending > stepTokens:
		s.same = 0
	case s.same > 0 && alike(low, high):
		s.low, s.high, s.same = low, high, s.same+1
	default:
		s.low, s.high, s.same = r.Running, r.Running, 1
	}
	switch {
	case s.same >= sameReports:
		s.known, s.at = s.high, at
	case r.Running > s.known:
		s.known = 0
	case s.same > 0 && s.now(at) > 0 && alike(r.Running, s.known):
		s.at = at
	}
}

// alike reports whether two numbers of running requests might be one number of places.
func alike(low, high int) bool { return high-low <= 1+high/64 }

// adaptersFull reports whether requests might wait for one of the LoRA adapters to make room for another: those behind them
// do not wait for that.
func (r *Report) adaptersFull() bool {
	return r.MaxAdapters > 0 && r.Adapters != "" && strings.Count(r.Adapters, ",")+1 >= r.MaxAdapters
}

// now is the number, 0 while it is not known.
func (s *slots) now(now time.Time) int {
	switch age := now.Sub(s.at); {
	case s.known == 0 || age > slotsGone:
		return 0
	case age > slotsLast:
		return s.known + 1 + int((age-slotsLast)/slotsProbe)
	default:
		return s.known
	}
}
