package admission

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// Pace is how fast the endpoints of a pool prefill: the mean of what they have taught, each by how far it is to be
// believed. The zero value knows nothing.
type Pace struct{ token, pair, overhead, weight float64 }

// Add counts an endpoint.
func (p *Pace) Add(v *load.View) {
	if v.Rate <= 0 || v.Trust <= 0 {
		return
	}
	p.token += v.Trust / v.Rate
	p.pair += v.Trust * v.PairSeconds
	p.overhead += v.Trust * v.Overhead
	p.weight += v.Trust
}

// Known tells whether any endpoint has taught anything.
func (p *Pace) Known() bool { return p.weight > 0 }

// Prefill is how long so much work takes on an endpoint that has nothing else to do; 0 while nothing is known.
func (p *Pace) Prefill(w load.Work) time.Duration {
	if p.weight == 0 {
		return 0
	}
	return seconds((p.overhead + p.token*w.Tokens + p.pair*w.Pairs) / p.weight)
}

// FirstToken predicts when a request with so much work has its first token from an endpoint that it is sent to now, at
// the latest. Engines compute in steps: it waits for the end of the one under way, and its own takes as long as all that
// is prefilled in it, what may join it later (Joins) included.
func FirstToken(v *load.View, w load.Work) time.Duration {
	step := v.Overhead + v.ContextSeconds*v.DecodingTokens
	if v.InFlight > 0 {
		step *= 1.5
	}
	return seconds(v.Overdue+step) + max(together, prefill(v, w))
}

// prefill is the time of what an endpoint has to prefill with so much work more.
func prefill(v *load.View, w load.Work) time.Duration {
	return seconds((v.PendingTokens+w.Tokens)/rate(v) + (v.PendingPairs+w.Pairs)*v.PairSeconds)
}

// Joins tells whether a request with so much work may go to an endpoint: always if nothing has to be prefilled there,
// and else while all of it together takes at most 50 ms. Whoever is there already is not kept much longer.
func Joins(v *load.View, w load.Work) bool {
	if v.Waiting > 1 && v.Prefilling > 1 {
		return false // not even what is there goes on
	}
	return v.PendingTokens <= 0 && v.Overdue <= 0 || seconds(v.Overdue)+prefill(v, w) <= together
}

// together is how much prefill may come together at an endpoint, if it is not one request's: steps that take longer
// keep all waiting who share them, and much shorter ones waste what every step costs.
const together = 50 * time.Millisecond

const (
	// kvFull is the part of an endpoint's KV blocks that may be in use, with what waits there and the request: what
	// decodes grows, and reports are old.
	kvFull = 0.9
	// kvPinned is the part of what a prompt finds in a cache that nobody else is using at the time.
	kvPinned = 0.3
)

// Fits tells whether an endpoint has a place among those that run and KV blocks for a request, by its own report: of its prompt so many tokens would be
// computed and so many are cached there. An endpoint that serves nothing has.
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
	return v.KVUsage+(v.PendingTokens+float64(uncached)+kvPinned*float64(cached))/float64(v.KVTokens) <= kvFull
}
