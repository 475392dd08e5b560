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

// standing is the mean of a number over the last while.
type standing struct {
	mean, now float64
	last      time.Time
}

// set tells that the number is n from now on.
func (s *standing) set(now time.Time, n int) {
	s.mean = s.at(now)
	s.now, s.last = float64(n), now
}

// at is the mean now.
func (s *standing) at(now time.Time) float64 {
	age := now.Sub(s.last)
	if s.last.IsZero() || age <= 0 {
		return s.mean
	}
	keep := math.Exp(-age.Seconds() / lately.Seconds())
	return s.mean*keep + s.now*(1-keep)
}
