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

// partners keeps hand-offs away from an endpoint with which they fail: as the one that prefills, or as the one that loads the
// blocks. A failure does not show which of the two is at fault. So failures in a row with one partner leave out the pair, and failures
// in a row with several partners leave out the endpoint.
//
//	in use --failures in a row--> left out --time--> one hand-off is tried --success--> in use
//	                                 ^                       |
//	                                 '--failure, or no end---'
//
// Only one partner that fails while others work is remembered; the endpoints that it fails with remember it as well. It is safe for
// concurrent use.
type partners struct {
	mu       sync.Mutex
	failures int    // in a row with the partner, or with several
	partner  uint64 // in all of them, as the hash of its endpoint; 0 if there were several, or none
	works    bool   // hand-offs with other partners went well since the first failure
	until    time.Time
}

// concerns reports whether the failures are enough to leave out hand-offs with a partner. p.mu is held.
func (p *partners) concerns(partner uint64) bool {
	return p.failures >= handoffFailures && (p.partner == 0 || p.partner == partner)
}

// leavesOut reports whether hand-offs with a partner are left out now; 0 asks for those with all partners.
func (p *partners) leavesOut(partner uint64, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.concerns(partner) && now.Before(p.until)
}

// take asks for a hand-off with a partner. After failures, one is let through in each period, however it ends; until is then not zero, and
// giveUp lets another one through if this one is not made.
func (p *partners) take(partner uint64, now time.Time, period time.Duration) (until time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.concerns(partner) {
		return time.Time{}, true
	}
	if now.Before(p.until) {
		return time.Time{}, false
	}
	p.until = now.Add(period)
	return p.until, true
}

// giveUp gives back what was taken until a time.
func (p *partners) giveUp(until, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !until.IsZero() && p.until.Equal(until) {
		p.until = now
	}
}

// trial is a hand-off between two endpoints that is tried after failures.
type trial struct {
	from, to *member
	// gives and receives are until when the two let no other one through; zero for one that does not mind.
	gives, receives time.Time
}

// tryPair asks both endpoints for a hand-off. The trial is nil if neither minds. It takes from both, or from neither.
func tryPair(from, to *member, now time.Time, period time.Duration) (t *trial, ok bool) {
	gives, ok := from.gives.take(to.hash, now, period)
	if !ok {
		return nil, false
	}
	receives, ok := to.receives.take(from.hash, now, period)
	if !ok {
		from.gives.giveUp(gives, now)
		return nil, false
	}
	if gives.IsZero() && receives.IsZero() {
		return nil, true
	}
	return &trial{from, to, gives, receives}, true
}

// giveUp lets another request try the pair, because this one has not, or has shown nothing about it. It can be called several times, and
// on nil.
func (t *trial) giveUp(now time.Time) {
	if t != nil {
		t.from.gives.giveUp(t.gives, now)
		t.to.receives.giveUp(t.receives, now)
	}
}

// of is the trial if it is that of two endpoints. It is given up otherwise.
func (t *trial) of(from, to *member, now time.Time) *trial {
	if t != nil && (t.from != from || t.to != to) {
		t.giveUp(now)
		return nil
	}
	return t
}

// fail counts a failure with a partner, 0 for one without, and reports whether it is the one from which on hand-offs are left out.
func (p *partners) fail(partner uint64, now time.Time, period time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.works && p.partner != partner {
		if partner != 0 && now.Before(p.until) {
			return false // the pair that is left out stays so
		}
		p.failures, p.works = 0, false
	}
	if p.failures++; p.failures == 1 {
		p.partner = partner
	} else if p.partner != partner {
		p.partner = 0
	}
	if till := now.Add(period); p.failures >= handoffFailures && till.After(p.until) {
		p.until = till
	}
	return p.failures == handoffFailures
}

// succeed notes a hand-off that went well. Failures with another partner only are not forgotten.
func (p *partners) succeed(partner uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.partner != 0 && p.partner != partner {
		p.works = true
		return
	}
	p.failures, p.partner, p.works = 0, 0, false
}
