package load

import (
	"math"
	"time"
)

const (
	// forget is the weight of a sample relative to the next one: about the last fifty samples count.
	forget = 0.98
	// minSamples before anything is claimed to be known (in decayed weight).
	minSamples = 3
	// minSpread is the relative variance of the sample sizes above which rate and overhead can be told apart.
	minSpread = 0.05
	// fade is how long what was learned is believed without a new sample: its weight halves in this time. An endpoint
	// that once was slow is tried again, and then teaches anew.
	fade = 30 * time.Second
	// forgotten is the trust below which what was learned is dropped when a new sample comes.
	forgotten = 0.1
	// surprise is the most that a sample may exceed the prediction by, as a factor: one pause of an engine is no new
	// rate, but a lasting change is followed within a few samples.
	surprise = 4
	// unknownRate stands in for the rate in predictions until it is learned, tokens/s: slow, so that a predicted end
	// comes late rather than early.
	unknownRate = 2000
)

// estimator learns seconds = overhead + tokens / rate by least squares over exponentially forgotten samples.
//
// Only samples that differ in size teach: where they are alike the rate cannot be told from the overhead, and what was
// learned before stays. So small prefills, common where the cache hits, do not make an endpoint look slow.
type estimator struct {
	n, x, y, xx, xy float64 // decayed sums over the samples: count, tokens, seconds, tokens², tokens·seconds
	rate, overhead  float64 // 0 until learned
	last            time.Time
}

// learn takes one sample: tokens were prefilled in seconds. Nonsense is ignored.
func (e *estimator) learn(now time.Time, tokens, seconds float64) {
	if !(tokens >= 0) || !(seconds > 0) || math.IsInf(tokens+seconds, 0) {
		return
	}
	trust := e.trust(now)
	if trust < forgotten {
		*e = estimator{rate: e.rate, overhead: e.overhead}
	} else if e.rate > 0 {
		seconds = math.Min(seconds, surprise*e.predict(tokens).Seconds())
	}
	keep := forget * trust
	e.last = now
	e.n = e.n*keep + 1
	e.x = e.x*keep + tokens
	e.y = e.y*keep + seconds
	e.xx = e.xx*keep + tokens*tokens
	e.xy = e.xy*keep + tokens*seconds
	mean := e.x / e.n
	variance := e.xx/e.n - mean*mean
	if e.n < minSamples || variance <= minSpread*mean*mean {
		return
	}
	slope := (e.xy/e.n - mean*e.y/e.n) / variance
	overhead := e.y/e.n - slope*mean
	switch {
	case slope > 0 && overhead >= 0:
		e.rate, e.overhead = 1/slope, overhead
	case slope > 0: // through the origin
		e.rate, e.overhead = e.xx/e.xy, 0
	default: // larger prefills took no longer: all of it is overhead, and the rate stays what it was
		e.overhead = e.y / e.n
	}
}

// trust is the weight of what was learned, from 1 with the last sample on towards 0.
func (e *estimator) trust(now time.Time) float64 {
	age := now.Sub(e.last)
	if e.last.IsZero() || age <= 0 {
		return 1
	}
	return math.Exp2(-age.Seconds() / fade.Seconds())
}

// learned gives the rate in tokens/s and the overhead in seconds, zeros until known, and how far they are to be
// believed, 0 to 1.
func (e *estimator) learned(now time.Time) (rate, overhead, trust float64) {
	if e.rate == 0 {
		return 0, 0, 0
	}
	return e.rate, e.overhead, e.trust(now)
}

// predict is the time that so many tokens should take.
func (e *estimator) predict(tokens float64) time.Duration {
	rate := e.rate
	if rate == 0 {
		rate = unknownRate
	}
	return time.Duration((e.overhead + tokens/rate) * float64(time.Second))
}
