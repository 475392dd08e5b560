package load

import (
	"math"
	"time"
)

// lately is how long arrivals count: their weight falls to a third in this time.
const lately = 20 * time.Second

// arrivals counts how often requests come, over the last while.
type arrivals struct {
	n    float64 // decayed count
	last time.Time
}

func (a *arrivals) add(now time.Time, seconds float64) {
	a.n = a.decayed(now) + seconds
	a.last = now
}

// rate in requests per second.
func (a *arrivals) rate(now time.Time) float64 { return a.decayed(now) / lately.Seconds() }

func (a *arrivals) decayed(now time.Time) float64 {
	age := now.Sub(a.last)
	if a.last.IsZero() || age <= 0 {
		return a.n
	}
	return a.n * math.Exp(-age.Seconds()/lately.Seconds())
}
