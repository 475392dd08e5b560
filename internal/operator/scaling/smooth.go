package scaling

import (
	"math"
	"time"
)

// mean forgets.
type mean struct{ value float64 }

// add counts what was measured over age. The weight of what was before falls to a third in a time.
func (m *mean) add(v float64, age, third time.Duration) {
	keep := math.Exp(-age.Seconds() / third.Seconds())
	m.value = m.value*keep + v*(1-keep)
}

// buckets of the window of peaks.
const buckets = 30

// peaks remembers the greatest value within a window, to a 30th of the window. Memory does not depend on the rate of
// values.
type peaks struct {
	start  time.Time // of the newest bucket
	values [buckets]float64
	newest int
}

func (p *peaks) add(now time.Time, v float64, window time.Duration) {
	width := window / buckets
	if p.start.IsZero() || now.Sub(p.start) >= window {
		*p = peaks{start: now}
	}
	for now.Sub(p.start) >= width {
		p.start = p.start.Add(width)
		p.newest = (p.newest + 1) % buckets
		p.values[p.newest] = 0
	}
	p.values[p.newest] = max(p.values[p.newest], v)
}

func (p *peaks) max() float64 {
	greatest := 0.0
	for _, v := range p.values {
		greatest = max(greatest, v)
	}
	return greatest
}
