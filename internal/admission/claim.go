package admission

import (
	"math"
	"slices"
	"time"
)

// In pools with a target for first tokens, requests that cannot meet it are refused, not queued. So fair queueing has little
// to choose from: when a place becomes free, often one request only could use it, and the tenant with the most requests
// would get the most places. Therefore a tenant that was refused has a claim for a while. Meanwhile the queue holds back
// requests of a lower priority, and tenants that have received more work for their weight, so that the next request of
// the claimant finds a place.

const (
	// claimLasts is how long a claim lasts after the tenant's last refusal.
	claimLasts = time.Second
	// claimTry bounds how long others are held back for a tenant that still gets nothing: perhaps no endpoint can serve its
	// requests in time, even when idle. After claimAgain it is tried again. So such a tenant costs the others at most a
	// tenth of the time.
	claimTry, claimAgain = time.Second, 10 * time.Second
	// lead is how far a tenant can be ahead of a claimant without being held back, as a part of the virtual time that passed
	// within Limits.CatchUp.
	lead = 0.1
	// refusedLately is how long after a refusal the pool counts as unable to serve all requests in time.
	refusedLately = 10 * time.Second
)

// claim is the claim of a tenant at one level. The zero value is none.
type claim struct {
	refused time.Time // the last refusal
	since   time.Time // the first refusal after which the tenant has received no work; zero if it has received some
}

func (c *claim) holds(now time.Time) bool {
	return now.Sub(c.refused) <= claimLasts && (c.since.IsZero() || now.Sub(c.since) <= claimTry)
}

// refuse records a refusal, which gives the flow a claim.
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

// most is the virtual time beyond which flows are held back; infinite without claims.
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

// Ahead reports whether a tenant's requests are held back at a level, because others have a claim to the next place.
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

// find returns the level of a number; nil if there is none.
func (q *Queue) find(number int) *level {
	if i := slices.IndexFunc(q.levels, func(l *level) bool { return l.number == number }); i >= 0 {
		return q.levels[i]
	}
	if i := q.atRest(number); i >= 0 {
		return q.idle[i]
	}
	return nil
}
