package operatorfeed

import "time"

// TTFTBounds are the upper bounds of the histogram's buckets, in seconds, each √2 times the one before: a quantile is
// off by at most a sixth.
var TTFTBounds = [...]float64{
	0.010, 0.014, 0.020, 0.028, 0.040, 0.057, 0.080, 0.113, 0.160, 0.226, 0.320, 0.453, 0.640, 0.905, 1.28, 1.81, 2.56,
	3.62, 5.12, 7.24, 10.24, 14.48, 20.48, 28.96, 40.96, 57.93, 81.92, 115.9,
}

// Histogram counts times by TTFTBounds; the last bucket is what is above them all.
type Histogram [len(TTFTBounds) + 1]int64

// Add a time, in seconds.
func (h *Histogram) Add(seconds float64) { h[Bucket(seconds)]++ }

// Bucket is the index of the bucket of a time, in seconds.
func Bucket(seconds float64) int {
	for i, bound := range TTFTBounds {
		if seconds <= bound {
			return i
		}
	}
	return len(TTFTBounds)
}

// Count of all buckets.
func (h *Histogram) Count() (n int64) {
	for _, c := range h {
		n += c
	}
	return n
}

// Quantile is the time, in seconds, that a part q of the times do not exceed, interpolated inside its bucket; 0 of an
// empty histogram, and the last bound for what is above it.
func (h *Histogram) Quantile(q float64) float64 {
	rank := q * float64(h.Count())
	if rank == 0 {
		return 0
	}
	below, lower := 0.0, 0.0
	for i, bound := range TTFTBounds {
		n := float64(h[i])
		if n > 0 && below+n >= rank {
			return lower + (bound-lower)*(rank-below)/n
		}
		below, lower = below+n, bound
	}
	return lower
}

// Since is what was counted since before, of the same process or sum. Gauges are those of t.
func (t Totals) Since(before *Totals) Totals {
	t.Requests -= before.Requests
	t.PromptTokens -= before.PromptTokens
	t.HitTokens -= before.HitTokens
	t.PrefillTokens -= before.PrefillTokens
	t.WorkSeconds -= before.WorkSeconds
	t.Evictions -= before.Evictions
	t.Refused -= before.Refused
	for i := range t.TTFT {
		t.TTFT[i] -= before.TTFT[i]
	}
	return t
}

// Plus is both together: counters and what waits are added, the last request is the later one.
func (t Totals) Plus(other *Totals) Totals {
	t.Requests += other.Requests
	t.PromptTokens += other.PromptTokens
	t.HitTokens += other.HitTokens
	t.PrefillTokens += other.PrefillTokens
	t.WorkSeconds += other.WorkSeconds
	t.Evictions += other.Evictions
	t.Refused += other.Refused
	for i := range t.TTFT {
		t.TTFT[i] += other.TTFT[i]
	}
	t.Waiting += other.Waiting
	if other.LastRequest.After(t.LastRequest) {
		t.LastRequest = other.LastRequest
	}
	return t
}

// gauges are what Totals holds of the present only.
func (t *Totals) gauges() Totals { return Totals{Waiting: t.Waiting, LastRequest: t.LastRequest} }

// clearGauges leaves the counters.
func (t Totals) clearGauges() Totals {
	t.Waiting, t.LastRequest = 0, time.Time{}
	return t
}
