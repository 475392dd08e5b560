package admission

import (
	"math"
	"slices"
	"time"
)

// Where requests have a deadline, they are refused rather than queued. When a place is free, often only one request could
// use it, so the tenant with the most requests would get the most. So a tenant that is refused has a claim for a while. A
// tenant that has had more for its weight than a claimant is held back, and so are requests of a lower priority: the
// claimant's next request finds a place.

const (
	// claimLasts is how long after a refusal the next request is waited for.
	claimLasts = time.Second
	// claimTry is for how long others are held back for a tenant that gets nothing nevertheless, and claimAgain how long
	// it is until that is tried again: it might be that no endpoint has its requests in time, whatever is kept free. So
	// such a tenant costs the others a tenth at most.
	claimTry, claimAgain = time.Second, 10 * time.Second
	// lead is how far a tenant can be ahead of a claimant, as a part of what tenants have had within Limits.CatchUp.
	lead = 0.1
	// refusedLately is how long ago a refusal still reports that a pool cannot serve all in time.
	refusedLately = 10 * time.Second
)

// claim is what a tenant has that was refused.
type claim struct {
	// refused is when it was refused last, since when it has been refused without being given anything; zero if it has.
	refused, since time.Time
}

func (c *claim) holds(now time.Time) bool {
	return now.Sub(c.refused) <= claimLasts && (c.since.IsZero() || now.Sub(c.since) <= claimTry)
}

// refuse adds a claim to a flow.
func (f *flow) refuse(now time.Time) {
	if now.Sub(f.claim.since) > claimAgain {
		f.claim.since = now
	}
	f.claim.refused = now
	f.level.prune(now)
	if !slices.Contains(f.level.claimants, f) {
		f.level.claimants = append(f.level.claimants, f)
	}
}

func (l *level) prune(now time.Time) {
	l.claimants = slices.DeleteFunc(l.claimants, func(f *flow) bool { return !f.claim.holds(now) })
}

// most is the virtual time beyond which flows are held back, infinite where there are no claims.
func (l *level) most(now time.Time, catchUp time.Duration) float64 {
	l.prune(now)
	past := l.recent.ago(now, catchUp, l.clock)
	most := math.Inf(1)
	for _, f := range l.claimants {
		most = min(most, max(f.virtual, past)+lead*(l.clock-past))
	}
	return most
}

// outranked reports whether there is a claim at a level above one.
func (q *Queue) outranked(now time.Time, number int) bool {
	for _, levels := range [][]*level{q.levels, q.idle} {
		for _, l := range levels {
			if l.number > number {
				if l.prune(now); len(l.claimants) > 0 {
					return true
				}
			}
		}
	}
	return false
}

// Ahead reports whether a tenant is held back for others' claims: it has to leave them a place.
func (q *Queue) Ahead(now time.Time, number int, tenant string) bool {
	if !q.Refused(now) {
		return false
	}
	if q.outranked(now, number) {
		return true
	}
	l := q.find(number)
	if l == nil || l.flows[tenant] == nil {
		return false
	}
	return l.flows[tenant].virtual > l.most(now, q.Limits.CatchUp)
}

// Refused reports whether a request was refused recently because it had waited too long.
func (q *Queue) Refused(now time.Time) bool {
	return !q.refused.IsZero() && now.Sub(q.refused) <= refusedLately
}

// find a level, nil if there is none.
func (q *Queue) find(number int) *level {
	if i := slices.IndexFunc(q.levels, func(l *level) bool { return l.number == number }); i >= 0 {
		return q.levels[i]
	}
	if i := q.atRest(number); i >= 0 {
		return q.idle[i]
	}
	return nil
}
