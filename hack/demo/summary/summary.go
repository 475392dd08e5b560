package summary

import (
	"math"
	"slices"
	"time"
)

// Summary is the result of a set of requests.
type Summary struct {
	// Requests were sent, Errors of them failed; all else is about the others.
	Requests, Errors int
	// FirstError is the first error's text.
	FirstError string
	// Sums of tokens. AbsDiff is the sum over requests of |predicted - delivered|.
	Prompt, Answer, Predicted, Confirmed, Delivered, Held, AbsDiff int
	// Exact is the number of requests whose prediction was exactly right, Miscounted of those whose prompt the picker and
	// the engine count differently, Blind of those routed without token ids.
	Exact, Miscounted, Blind int
	// TTFT of the requests, ascending, in model time.
	TTFT []time.Duration
	// PerPod counts requests. Pods that served none are not in it.
	PerPod map[string]int
	// MaxLate is the longest delay of a request by the load generator, in wall time.
	MaxLate time.Duration
}

// Of summarises samples.
func Of(samples []Sample) *Summary {
	s := &Summary{PerPod: map[string]int{}}
	for i := range samples {
		s.add(&samples[i])
	}
	slices.Sort(s.TTFT)
	return s
}

func (s *Summary) add(x *Sample) {
	s.Requests++
	s.MaxLate = max(s.MaxLate, x.Late)
	if x.Err != "" {
		if s.Errors == 0 {
			s.FirstError = x.Err
		}
		s.Errors++
		return
	}
	s.Prompt += x.Prompt
	s.Answer += x.Answer
	s.Predicted += x.Predicted
	s.Confirmed += x.Confirmed
	s.Delivered += x.Delivered
	s.Held += max(x.Held, x.Delivered)
	s.TTFT = append(s.TTFT, x.TTFT)
	s.PerPod[x.Pod]++
	if x.Routed != x.Prompt {
		s.Miscounted++
	}
	if x.Blind {
		s.Blind++
	}
	switch diff := x.Predicted - x.Delivered; {
	case diff == 0:
		s.Exact++
	case diff > 0:
		s.AbsDiff += diff
	default:
		s.AbsDiff -= diff
	}
}

// PredictedRatio is the part of the prompt tokens that the picker expected in the pods' caches.
func (s *Summary) PredictedRatio() float64 { return ratio(s.Predicted, s.Prompt) }

// ConfirmedRatio is the part of the prompt tokens that was expected because the pod had announced it.
func (s *Summary) ConfirmedRatio() float64 { return ratio(s.Confirmed, s.Prompt) }

// SpeculativeRatio is the part of the prompt tokens that was expected because a request had just been sent there.
func (s *Summary) SpeculativeRatio() float64 { return ratio(s.Predicted-s.Confirmed, s.Prompt) }

// DeliveredRatio is the part of the prompt tokens that the engines found in their caches.
func (s *Summary) DeliveredRatio() float64 { return ratio(s.Delivered, s.Prompt) }

// BestRatio is the part of the prompt tokens that a cache without bounds, shared by all pods, would have held.
func (s *Summary) BestRatio() float64 { return ratio(s.Held, s.Prompt) }

// TotalDeviation is the difference between predicted and delivered hits as a part of the delivered; 1 where nothing was
// delivered of something predicted.
func (s *Summary) TotalDeviation() float64 {
	if s.Delivered == 0 && s.Predicted > 0 {
		return 1
	}
	return math.Abs(ratio(s.Predicted-s.Delivered, s.Delivered))
}

// RequestDeviation is the sum of the differences of each request as a part of the prompt tokens.
func (s *Summary) RequestDeviation() float64 { return ratio(s.AbsDiff, s.Prompt) }

// Quantile of the times to the first token.
func (s *Summary) Quantile(q float64) time.Duration { return Quantile(s.TTFT, q) }

// Quantile is the smallest of ascending values that at least the part q of them do not exceed (nearest rank); 0 if
// there are none.
func Quantile(ascending []time.Duration, q float64) time.Duration {
	n := len(ascending)
	if n == 0 {
		return 0
	}
	// The product can exceed an integer by its rounding; the rank must not.
	rank := int(math.Ceil(q*float64(n) - 1e-9))
	return ascending[min(max(rank, 1), n)-1]
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
