package admission

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// Pace is how fast the endpoints of a pool prefill. The zero value knows no rate.
type Pace struct{ load.Mean }

// Prefill is how long so much work takes on an endpoint that has nothing else to do; 0 while nothing is known.
func (p *Pace) Prefill(w load.Work) time.Duration {
	s := p.Speed()
	return seconds(s.Overhead + s.Seconds(w))
}

// Least is Prefill where the tokens are computed while the weights are read, which is most of what every step takes.
func (p *Pace) Least(w load.Work) time.Duration {
	s := p.Speed()
	return seconds(max(s.Overhead, s.Seconds(w)))
}

// FirstToken predicts when a request with so much work has its first token from an endpoint that it is sent to now, at
// the latest. Engines compute in steps: it waits for the end of the one under way, and its own takes as long as all that
// is prefilled in it, what can join it later (Joins) included.
func FirstToken(v *load.View, w load.Work) time.Duration {
	step := v.Overhead + v.ContextSeconds*v.DecodingTokens
	if v.InFlight > 0 {
		step *= 1.5
	}
	return seconds(v.Overdue + step + max(mostTogether.Seconds(), prefill(v, w)))
}

// FirstTokenAlone is FirstToken of a request that others join only if they leave it in time (load.Booking.SetDue). The
// step under way might just have begun; while weights are read, which is most of what every step takes, tokens are computed.
func FirstTokenAlone(v *load.View, w load.Work) time.Duration {
	d := together(v, w)
	if v.InFlight > 0 {
		d += seconds(v.Overhead + v.ContextSeconds*v.DecodingTokens)
	}
	return d
}

// together is the time in which an endpoint prefills so much work with all that it has to prefill, in one step from now.
func together(v *load.View, w load.Work) time.Duration {
	return seconds(v.Overdue + v.ContextSeconds*v.DecodingTokens + max(v.Overhead, prefill(v, w)))
}

// Tight reports whether a target is too short for other requests to join a request as they arrive.
func Tight(target time.Duration) bool { return target < 2*mostTogether }

// Prefill is how long so much work takes at an endpoint by itself.
func Prefill(v *load.View, w load.Work) time.Duration {
	return seconds(w.Tokens/rate(v) + w.Pairs*v.PairSeconds)
}

// prefill is the time of what an endpoint has to prefill with so much work more, in seconds.
func prefill(v *load.View, w load.Work) float64 {
	return (v.PendingTokens+w.Tokens)/rate(v) + (v.PendingPairs+w.Pairs)*v.PairSeconds
}

// Joins reports whether a request with so much work can go to an endpoint: always if nothing has to be prefilled there,
// and else while all of it together takes at most 50 ms, and delays no request beyond its deadline.
func Joins(v *load.View, w load.Work) bool {
	switch {
	case v.Waiting > 1 && v.Prefilling > 1:
		return false // even the present work makes no progress
	case v.PendingTokens <= 0 && v.Overdue <= 0:
		return true
	case v.Due > 0 && together(v, w) > v.Due:
		return false
	}
	return seconds(v.Overdue+prefill(v, w)) <= mostTogether
}

// mostTogether is how much prefill of several requests can run together at an endpoint: longer steps delay all requests
// that decode there, and much shorter ones waste the fixed cost of a step.
const mostTogether = 50 * time.Millisecond

// kvFull is the part of an endpoint's KV blocks that can be in use, including the waiting requests and this one. The rest is
// for sessions that pause: if requests fill the caches, each turn computes its entire prompt again.
const kvFull = 0.5

// Fits reports whether an endpoint has a place among those that run and KV blocks for a request, by its own report: of its
// prompt so many tokens would be computed and so many are cached there. An endpoint that serves nothing has.
func Fits(v *load.View, uncached, cached int) bool {
	if v.InFlight == 0 {
		return true
	}
	if v.Slots > 0 && v.InFlight >= v.Slots {
		return false
	}
	if v.KVTokens <= 0 {
		return true
	}
	return v.KVUsage+(v.PendingTokens+float64(uncached)+load.PinnedPart*float64(cached))/float64(v.KVTokens) <= kvFull
}
