package admission

import (
	"math"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// memory is how long the rate of what goes through is remembered.
const memory = 10 * time.Second

// Backlog predicts how long a request that is sent to an endpoint now waits until its prefill begins: for the work that was sent
// there, without the overhead that every first token has, because an engine with slow steps can prefill several requests in one
// step. An endpoint with nothing to prefill does not let it wait, whatever was learned: so there always is one that can be tried.
// Nor does one that is idle by its own report, whatever is counted there.
func Backlog(v *load.View) time.Duration {
	if v.Idle || v.PendingTokens <= 0 && v.Overdue <= 0 {
		return 0
	}
	return seconds(v.Overdue + v.PendingTokens/rate(v) + v.PendingPairs*v.PairSeconds)
}

func rate(v *load.View) float64 {
	if v.Rate <= 0 {
		return load.AssumedRate * max(1, v.Lead)
	}
	return v.Rate
}

// Flow measures the rate at which tickets pass, to compute the Retry-After of refused requests.
type Flow struct {
	sum  float64 // of tokens, each fading with memory
	last time.Time
}

// Passed counts a ticket that was let through.
func (f *Flow) Passed(now time.Time, t *Ticket) {
	f.fade(now)
	f.sum += t.Cost()
}

// RetryAfter estimates when the waiting work will be done: 1 s to 60 s.
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
