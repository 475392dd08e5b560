package admission

import (
	"math"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// The more context its requests decode, the longer an engine's steps take, and a new request waits for the running step. If
// long prompts with generous targets fill all endpoints, short prompts miss their targets everywhere. So the endpoints of a
// pool have different roles: the first ones keep their steps short enough for the shortest targets, the last ones take
// requests with long targets. Which targets each endpoint is for follows the distribution of the targets of recent requests.

// Spread is the distribution of the targets of recent requests. The zero value has seen none.
type Spread struct {
	counts [classes]float64 // by the target's logarithm, the later ones weighing more
	sum    float64
	weight float64 // of the next one
	fresh  int     // since parts was made
	parts  Parts
}

const (
	// Targets are counted in classes: the first begins at shortest, each is 10 % longer than the one before, the last ends at
	// about 15 s.
	classes  = 84
	shortest = 5 * time.Millisecond
	// growth is the weight of each target relative to the one before: after a thousand more targets, one counts a third.
	growth = 1.001
	// often is the number of targets after which the parts are computed again.
	often = 100
)

var width = math.Log(1.1)

// Add counts the target of a request; 0 means that it has none.
func (s *Spread) Add(target time.Duration) {
	if target <= 0 {
		return
	}
	if s.weight == 0 {
		s.weight = 1
	}
	class := int(math.Log(float64(target)/float64(shortest)) / width)
	s.counts[max(0, min(class, classes-1))] += s.weight
	s.sum += s.weight
	if s.weight *= growth; s.weight > 1e100 {
		for i := range s.counts {
			s.counts[i] /= s.weight
		}
		s.sum /= s.weight
		s.weight = 1
	}
	if s.fresh++; s.fresh >= often || s.parts == nil {
		s.fresh, s.parts = 0, s.divide()
	}
}

// Parts are quantiles of the targets of recent requests, in ascending order; nil while no target is known. They are
// immutable.
type Parts []time.Duration

const numParts = 64

// Parts returns the quantiles as last computed.
func (s *Spread) Parts() Parts { return s.parts }

func (s *Spread) divide() Parts {
	p := make(Parts, 0, numParts)
	below, class := 0.0, 0
	for i := range numParts {
		want := (float64(i) + 0.5) / numParts * s.sum
		for class < classes-1 && below+s.counts[class] < want {
			below += s.counts[class]
			class++
		}
		inside := 0.0
		if n := s.counts[class]; n > 0 {
			inside = min(1, (want-below)/n)
		}
		p = append(p, time.Duration(float64(shortest)*math.Exp((float64(class)+inside)*width)))
	}
	return p
}

// Share is the target that the i-th of n endpoints is for: the median of its share of the requests. It is 0 while no target
// is known; then the endpoint is for all requests.
func (p Parts) Share(i, n int) time.Duration {
	if len(p) == 0 {
		return 0
	}
	return p[min(len(p)-1, int((float64(i)+0.5)/float64(n)*float64(len(p))))]
}

const (
	// stepShare bounds the step of an endpoint, as a part of the target that it is for: a first token takes two steps.
	stepShare = 0.42
	// leastStep is the lowest such bound, relative to the step of an idle engine: every endpoint decodes some context.
	leastStep = 1.3
	// A request whose target is longer times the endpoint's leaves the part reserved of the context to requests that the
	// endpoint is for: requests with long targets would otherwise always find a place first.
	longer, reserved = 1.5, 0.1
)

// Brief reports whether an endpoint's steps stay short enough for share, the target that it is for (Parts.Share), if it also
// serves a request of so many tokens with its own target. An idle endpoint takes every request.
func Brief(v *load.View, tokens int, target, share time.Duration) bool {
	if v.InFlight == 0 || share <= 0 {
		return true
	}
	spare := max(leastStep*v.Overhead, stepShare*share.Seconds()) - v.Overhead
	if target.Seconds() > longer*share.Seconds() {
		spare *= 1 - reserved
	}
	return v.ContextSeconds*(v.DecodingTokens+v.PendingContext+float64(tokens)) <= spare
}
