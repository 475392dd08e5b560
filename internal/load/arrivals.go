package load

import "time"

// recently is how long arrivals count: their weight falls to a third in this time.
const lately = 20 * time.Second

// arrivals counts how often requests arrived recently.
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
	if a.n == 0 {
		return 0
	}
	return a.n * decayed(now.Sub(a.last), lately)
}

// standing is the mean of a number over the last while.
type standing struct {
	mean, now float64
	last      time.Time
}

// set reports that the number is n from now on.
func (s *standing) set(now time.Time, n int) {
	s.mean = s.at(now)
	s.now, s.last = float64(n), now
}

// at is the mean now.
func (s *standing) at(now time.Time) float64 {
	if s.last.IsZero() {
		return 0
	}
	return s.now + (s.mean-s.now)*decayed(now.Sub(s.last), lately)
}
