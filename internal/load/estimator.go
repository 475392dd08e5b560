package load

import (
	"math"
	"time"
)

// Work is what a prefill asks of an engine: tokens to compute, and the pairs of tokens that attention compares. Each
// token meets all before it, so that n tokens behind a context of c make n·(c + n/2) pairs. A prompt of a hundred
// thousand tokens takes more time for its pairs than for its tokens. Context is the tokens that every step reads from
// then on while the request decodes: the prompt's.
type Work struct{ Tokens, Pairs, Context float64 }

// WorkOf computing uncached tokens behind cached ones.
func WorkOf(uncached, cached int) Work {
	n, c := float64(max(0, uncached)), float64(max(0, cached))
	return Work{n, n * (c + n/2), n + c}
}

func (w Work) plus(v Work) Work {
	return Work{w.Tokens + v.Tokens, w.Pairs + v.Pairs, w.Context + v.Context}
}

func (w Work) minus(v Work) Work {
	return Work{max(0, w.Tokens-v.Tokens), max(0, w.Pairs-v.Pairs), max(0, w.Context-v.Context)}
}

func (w Work) times(f float64) Work { return Work{w.Tokens * f, w.Pairs * f, w.Context * f} }

// Speed is how long work takes, in seconds: Overhead for each prefill, PerToken and PerPair of it, and PerContext for each
// token of context that is decoded meanwhile, in each step.
type Speed struct{ Overhead, PerToken, PerPair, PerContext float64 }

// stepTokens is how many tokens an engine is taken to prefill in a step, at most: what vLLM does on large GPUs.
const stepTokens = 8192

// Steps that prefilling so many tokens takes, at least 1: each of them reads the context that is decoded again.
func Steps(tokens float64) float64 { return max(1, tokens/stepTokens) }

// Seconds that work takes, without the overhead.
func (s Speed) Seconds(w Work) float64 { return s.PerToken*w.Tokens + s.PerPair*w.Pairs }

const (
	// fade is how fast learned values lose weight without a new sample: the weight halves in this time. An endpoint that
	// once was slow is tried again, and then learned again.
	fade = 30 * time.Second
	// believed is the trust from which on a value counts as known.
	believed = 0.3
	// surprise is the most that a sample can differ from the prediction by, as a factor: a single pause of an engine is not
	// a new rate, nor is a single prompt with more cached tokens than known. A lasting change is followed within a few
	// samples.
	surprise = 3
	// unknownRate is the rate in predictions until it is learned, tokens/s: slow, so that a prediction is late rather than
	// early.
	unknownRate = 2000
	// drift is how much of the initial uncertainty is added back with each sample: engines change with what they decode
	// meanwhile. About the last hundred samples count.
	drift = 0.0005
	// alone is the part of drift that is added to each coefficient by itself.
	alone = 0.05
	// A sample's standard deviation is noiseFloor seconds and noisePart of its prediction: steps end when they end.
	noiseFloor, noisePart = 0.02, 0.25
	// stale is the wait in seconds that adds as much again: what of a prompt has to be computed was counted before the
	// wait, and caches change in it.
	stale = 5
	// longest is the most seconds that a sample can take: what takes longer is due to a clock that was set.
	longest = 600
)

// unit of each coefficient: seconds, seconds per thousand tokens, per million pairs, per million tokens of context.
var unit = [terms]float64{1, 1e3, 1e6, 1e6}

const terms = 4

// What is assumed before the first sample, and its standard deviations (from the fastest GPUs
// on), and the least there is. The pairs are those of an 8B model on an H100, about.
var (
	prior       = [terms]float64{0.02, 0.05, 0.001, 0.05}
	uncertainty = [terms]float64{0.05, 0.1, 0.002, 0.1}
	least       = [terms]float64{0, 0.001, 0, 0}
)

// estimator learns seconds = overhead + perToken·tokens + perPair·pairs + perContext·context·steps. It is a Kalman filter on
// the coefficients: each sample corrects those that it depends on, by as much as they are uncertain. So many small prefills,
// common where the cache hits, teach the overhead and leave the rates as they were learned from large ones.
type estimator struct {
	begun bool
	c     [terms]float64        // coefficients, in units
	p     [terms][terms]float64 // covariance of their errors
	last  time.Time

	// claimed is the speed that is claimed to be known and certain how certain, both 0 until then. Each look at an
	// endpoint wants them, and only a sample changes them.
	claimed Speed
	certain float64
}

// learn takes one sample: work was done in seconds, while so many tokens of context were decoded, after it had waited for
// so many seconds. Nonsense is ignored.
func (e *estimator) learn(now time.Time, w Work, decoding, seconds, waited float64) {
	if !(w.Tokens >= 0) || !(w.Pairs >= 0) || !(decoding >= 0) || !(seconds > 0) || !(seconds <= longest) ||
		math.IsInf(w.Tokens+w.Pairs+decoding, 0) {
		return
	}
	if !e.begun {
		e.begun, e.c = true, prior
		for i, u := range uncertainty {
			e.p[i][i] = u * u
		}
	}
	e.doubt(1 - (1-drift)*e.freshness(now))
	e.last = now

	x := [terms]float64{1, w.Tokens / unit[1], w.Pairs / unit[2], decoding * Steps(w.Tokens) / unit[3]}
	predicted := 0.0
	for i := range x {
		predicted += e.c[i] * x[i]
	}
	if e.certainty() > believed {
		seconds = math.Max(predicted/surprise, math.Min(seconds, surprise*predicted))
	}
	noise := (noiseFloor + noisePart*predicted) * (1 + max(0, waited)/stale)
	var px [terms]float64 // covariance × x
	variance := noise * noise
	for i := range px {
		for j := range x {
			px[i] += e.p[i][j] * x[j]
		}
		variance += x[i] * px[i]
	}
	for i := range px {
		// No coefficient is less than that of any engine: a lower sample has another cause.
		e.c[i] = math.Max(e.c[i]+px[i]/variance*(seconds-predicted), least[i])
		for j := range px {
			e.p[i][j] -= px[i] * px[j] / variance
		}
	}
	e.claim()
}

// doubt brings a part of the first uncertainty back, most of it along the coefficients: what changes on an engine makes
// all of it faster or slower. So the parts that tokens and pairs have in it stay as they were learned from samples of
// many kinds, however alike those recently are.
func (e *estimator) doubt(part float64) {
	for i := range e.p {
		for j := range e.p {
			e.p[i][j] += part * (e.c[i]*e.c[j] - e.p[i][j])
		}
		e.p[i][i] += part * alone * e.ignorance(i)
	}
}

// ignorance is the variance of a coefficient if only its order of magnitude is known, at least that of fast GPUs.
func (e *estimator) ignorance(i int) float64 {
	u := max(uncertainty[i], e.c[i])
	return u * u
}

// freshness halves in every fade since the last sample.
func (e *estimator) freshness(now time.Time) float64 {
	age := now.Sub(e.last)
	if e.last.IsZero() || age <= 0 {
		return 1
	}
	return halved(float64(age) / float64(fade))
}

// certainty of the rate, 0 to 1: how much of the first uncertainty is gone.
func (e *estimator) certainty() float64 {
	return 1 - min(1, e.p[1][1]/e.ignorance(1))
}

// learned returns the speed, zero until known, and how reliable it is, 0 to 1.
func (e *estimator) learned(now time.Time) (Speed, float64) {
	if e.certain == 0 {
		return Speed{}, 0
	}
	return e.claimed, e.certain * e.freshness(now)
}

// claim works out what is known after a sample.
func (e *estimator) claim() {
	e.claimed, e.certain = Speed{}, e.certainty()
	if e.certain < believed {
		e.certain = 0
		return
	}
	e.claimed = Speed{e.c[0] / unit[0], e.c[1] / unit[1], e.c[2] / unit[2], e.c[3] / unit[3]}
}

// speed is what predictions go by.
func (e *estimator) speed() Speed {
	if e.certain == 0 {
		return Speed{PerToken: 1.0 / unknownRate}
	}
	return e.claimed
}

// duration in seconds as a time.Duration, at most a year.
func duration(seconds float64) time.Duration {
	return time.Duration(math.Min(seconds, 3e7) * float64(time.Second))
}
