package admission

import (
	"math"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// An engine's steps last longer the more context its requests decode, and a request waits for the running step before its
// own. If long prompts, whose first tokens have time, fill all endpoints, the first tokens of short prompts are late
// everywhere. So the endpoints of a pool have different roles: the first keep their steps so short that the shortest
// targets can be met, the last take requests with long targets, and those between take the rest, by the distribution of the
// targets of arriving requests.

// Spread is the distribution of the targets of recent requests. The zero value has seen none.
type Spread struct {
	counts [classes]float64 // by the target's logarithm, the later ones weighing more
	sum    float64
	weight float64 // of the next one
	fresh  int     // since parts was made
	parts  Parts
}

const (
	// Targets are counted in classes from shortest on, each up to 10 % longer than the one before: up to 15 s.
	classes  = 84
	shortest = 5 * time.Millisecond
	// growth is how much more each target weighs than the one before: one that is a thousand targets old weighs a third.
	growth = 1.001
	// often is the number of targets after which parts are made again.
	often = 100
)

var width = math.Log(1.1)

// Add counts a target; 0 is none.
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

// Parts divide the recent targets into parts of the same size: one part of them is shorter than the first value, and so on.
// They are nil where none are known, and do not change.
type Parts []time.Duration

const numParts = 64

// Parts returns the parts as of a short time ago.
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

// Share is the target that an endpoint is for, the i-th of n: the middle one of its part. 0 where no targets are known: it
// is for all.
func (p Parts) Share(i, n int) time.Duration {
	if len(p) == 0 {
		return 0
	}
	return p[min(len(p)-1, int((float64(i)+0.5)/float64(n)*float64(len(p))))]
}

const (
	// stepShare is the longest step of an endpoint as a part of the target that it is for: a first token waits for two.
	stepShare = 0.42
	// leastStep is the longest step of any endpoint, at least, in those of an idle one: some context has to be decoded.
	leastStep = 1.3
	// A target longer than others leaves reserved of the context to those that the endpoint is for: requests with long targets
	// would otherwise always find a place first.
	longer, reserved = 1.5, 0.1
)

// Brief reports whether an endpoint's steps stay as short as they have to be for those that it is for (Parts.Share), with
// one request more, of so many tokens and with a target of its own. An endpoint that serves nothing is for all.
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
