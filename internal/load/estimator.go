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
	// unknownRate stands in for the rate in predictions until it is learned, tokens/s: slow, so that a predicted end
	// comes late rather than early.
	unknownRate = 2000
)

// estimator learns time = overhead + tokens / rate by least squares over exponentially forgotten samples.
//
// Where the samples do not spread enough to tell both apart, the overhead last learned (0 at first) is kept and
// only the rate follows.
type estimator struct {
	n, x, y, xx, xy float64 // decayed sums over the samples: count, tokens, seconds, tokens², tokens·seconds
	rate, overhead  float64 // 0 until learned
}

// learn takes one sample: tokens were prefilled in seconds. Nonsense is ignored.
func (e *estimator) learn(tokens, seconds float64) {
	if !(tokens >= 0) || !(seconds > 0) || math.IsInf(tokens+seconds, 0) {
		return
	}
	e.n = e.n*forget + 1
	e.x = e.x*forget + tokens
	e.y = e.y*forget + seconds
	e.xx = e.xx*forget + tokens*tokens
	e.xy = e.xy*forget + tokens*seconds
	if e.n < minSamples || e.x <= 0 {
		return
	}
	mean := e.x / e.n
	if variance := e.xx/e.n - mean*mean; variance > 0.01*mean*mean {
		slope := (e.xy/e.n - mean*e.y/e.n) / variance
		overhead := e.y/e.n - slope*mean
		if slope > 0 && overhead >= 0 {
			e.rate, e.overhead = 1/slope, overhead
			return
		}
	}
	// One unknown: the line through the mean.
	e.overhead = math.Min(e.overhead, 0.9*e.y/e.n)
	if rest := e.y/e.n - e.overhead; rest > 0 {
		e.rate = mean / rest
	}
}

// learned gives the rate in tokens/s and the overhead in seconds; zeros until known.
func (e *estimator) learned() (rate, overhead float64) { return e.rate, e.overhead }

// predict is the time that so many tokens should take.
func (e *estimator) predict(tokens float64) time.Duration {
	rate := e.rate
	if rate == 0 {
		rate = unknownRate
	}
	return time.Duration((e.overhead + tokens/rate) * float64(time.Second))
}
