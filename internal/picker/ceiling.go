package picker

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

const (
	// ceilingStep is the time after which one request tries an endpoint above its ceiling; each further step doubles how
	// far above. So the picker soon finds out when the limit was raised, or when requests of others have ended.
	ceilingStep = time.Second
	// ceilingSteps is after how many steps the ceiling is forgotten.
	ceilingSteps = 12
	// tokenStep is the first step above a ceiling of tokens.
	tokenStep = 512
	// mostSequences bounds the answers to a prompt and the prompts of a request: their product does not overflow.
	mostSequences = 1 << 30
)

// ceiling is the limit of an endpoint's queue, as its refusals have shown it. vLLM 0.29 and newer refuse requests beyond
// --max-num-queued-reqs (sequences that wait or run: a request has one for each answer to each prompt) and --max-num-queued-tokens
// (prompt tokens that wait for the end of their prefill). An endpoint that has refused with so much in it is full at that until it
// takes more.
type ceiling struct {
	known atomic.Bool // to be read without the lock: nearly always false

	mu sync.Mutex
	// Each limit, and when it was last confirmed; without a limit the time is zero.
	sequences struct {
		most int
		at   time.Time
	}
	tokens struct {
		most float64
		at   time.Time
	}
}

// refused learns from a refusal by a limit of a request of so many sequences. The load is that without it. The refusal of a request
// that is too large at all, as for more answers than the limit, thus shows no limit that others reach.
func (c *ceiling) refused(now time.Time, limit openai.QueueLimit, l *load.View, sequences int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Requests that were sent before the limit was known are refused at higher counts: the lowest one is the limit.
	if limit == openai.TokenLimit {
		if most := c.maxTokens(now); l.PendingContext < most {
			c.tokens.most = l.PendingContext
		} else {
			c.tokens.most = most
		}
		c.tokens.at = now
	} else {
		c.sequences.most = min(l.Sequences+sequences-1, c.maxSequences(now))
		c.sequences.at = now
	}
	c.known.Store(true)
}

// unbounded is the number of places of an endpoint without a known limit.
const unbounded = math.MaxInt

// places is how many requests of one sequence the endpoint takes more.
func (c *ceiling) places(now time.Time, l *load.View) int {
	if !c.known.Load() {
		return unbounded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sequences, tokens := c.maxSequences(now), c.maxTokens(now)
	if sequences == math.MaxInt && math.IsInf(tokens, 1) {
		c.known.Store(false)
		return unbounded
	}
	if l.PendingContext >= tokens {
		return 0
	}
	if sequences == math.MaxInt {
		return unbounded
	}
	return max(0, sequences-l.Sequences)
}

// holds reports whether so many sequences do not exceed the limit as it was last confirmed, where one is known.
func (c *ceiling) holds(now time.Time, sequences int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := stepsSince(c.sequences.at, now)
	return !known || sequences <= c.sequences.most
}

// maxSequences is the most sequences that can be in the endpoint now. c.mu is held.
func (c *ceiling) maxSequences(now time.Time) int {
	steps, ok := stepsSince(c.sequences.at, now)
	if !ok {
		return math.MaxInt
	}
	return c.sequences.most + 1<<steps - 1
}

// maxTokens is how many prompt tokens can wait for their prefill now. c.mu is held.
func (c *ceiling) maxTokens(now time.Time) float64 {
	steps, ok := stepsSince(c.tokens.at, now)
	if !ok {
		return math.Inf(1)
	}
	return c.tokens.most + tokenStep*float64(int(1)<<steps-1)
}

// needs is how many sequences an endpoint must have room for.
func (s *scratch) needs() int { return max(1, s.sequences) }

// sequencesOf is how many sequences a request has in an engine: one for each answer to each prompt. More than any engine takes are
// mostSequences.
func sequencesOf(r *openai.Request) int {
	return max(1, min(r.N, mostSequences)) * max(1, min(len(r.Prompts), mostSequences))
}

// stepsSince is how many steps a limit was confirmed ago; not ok when it is forgotten.
func stepsSince(at, now time.Time) (steps int, ok bool) {
	steps = int(max(0, now.Sub(at)) / ceilingStep)
	return steps, !at.IsZero() && steps < ceilingSteps
}
