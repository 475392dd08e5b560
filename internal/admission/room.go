package admission

import (
	"math"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

const (
	// assumedRate stands in for an endpoint's prefill rate until it is learned, tokens/s. It is that of a fast engine:
	// a pool that has just started is not full.
	assumedRate = 20_000
	// memory is how long the rate of what goes through is remembered.
	memory = 10 * time.Second
)

// Wait predicts how long a request that is sent to an endpoint now waits until its prefill begins. An endpoint with
// nothing to prefill does not let it wait, whatever was learned: so there always is one that can be tried.
func Wait(v *load.View) time.Duration {
	if v.PendingTokens <= 0 && v.Overdue <= 0 {
		return 0
	}
	return seconds(v.Overdue + v.Overhead*v.Trust + v.PendingTokens/rate(v) + v.PendingPairs*v.PairSeconds)
}

func rate(v *load.View) float64 {
	if v.Rate <= 0 {
		return assumedRate
	}
	return v.Rate
}

// Room accumulates over the endpoints of a pool how soon it can begin with one request more. The zero value is a pool
// without endpoints.
type Room struct {
	endpoints int
	least     time.Duration
	rate      float64 // of all endpoints, tokens/s
}

// Add counts an endpoint. A full one takes nothing, whatever it has to prefill.
func (r *Room) Add(v *load.View, full bool) {
	wait := Wait(v)
	if full {
		wait = math.MaxInt64
	}
	if r.endpoints == 0 || wait < r.least {
		r.least = wait
	}
	r.endpoints++
	r.rate += rate(v)
}

// Open tells whether there is any endpoint.
func (r *Room) Open() bool { return r.endpoints > 0 }

// Within tells whether some endpoint begins with a request within the budget, when those that were let through and
// have no endpoint yet, of granted tokens in total, have spread over all.
func (r *Room) Within(budget time.Duration, granted float64) bool {
	return r.Open() && r.least <= budget && r.least+seconds(granted/r.rate) <= budget
}

// Flow measures how fast tickets go through, to tell those who are refused when to come again.
type Flow struct {
	sum  float64 // of tokens, each fading with memory
	last time.Time
}

// Passed counts a ticket that was let through.
func (f *Flow) Passed(now time.Time, t *Ticket) {
	f.fade(now)
	f.sum += t.Cost()
}

// RetryAfter estimates when what waits will have gone through: 1 s to 60 s.
func (f *Flow) RetryAfter(now time.Time, waiting float64) time.Duration {
	f.fade(now)
	perSecond := f.sum / memory.Seconds()
	d := time.Minute
	if perSecond > 0 {
		d = seconds(waiting / perSecond)
	}
	return min(max(d.Round(time.Second), time.Second), time.Minute)
}

func (f *Flow) fade(now time.Time) {
	if d := now.Sub(f.last); d > 0 {
		f.sum *= math.Exp(-d.Seconds() / memory.Seconds())
		f.last = now
	}
}

// seconds is a duration of so many seconds, at most a day.
func seconds(s float64) time.Duration {
	return time.Duration(math.Min(s, 86400) * float64(time.Second))
}
