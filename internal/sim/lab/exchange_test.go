package lab

import (
	"math"
	"testing"
)

// TestPickersThatTellEachOtherChooseAsOneWould: with the exchange the mean time to the first token of two and four
// pickers lies within 5 % of one picker's; without it it does not.
func TestPickersThatTellEachOtherChooseAsOneWould(t *testing.T) {
	long(t)
	c := small(t, "MarginalCost")
	c.Workload, c.Pods, c.Speed = slice(t), 8, 1.5
	one := run(t, c).TTFTSeconds.Mean
	for _, n := range []int{2, 4} {
		c.Pickers, c.NoExchange = n, false
		with := run(t, c).TTFTSeconds.Mean
		c.NoExchange = true
		without := run(t, c).TTFTSeconds.Mean
		t.Logf("%d pickers: %.3f s with the exchange, %.3f s without, %.3f s alone", n, with, without, one)
		if math.Abs(with/one-1) > 0.05 {
			t.Errorf("%d pickers: %.3f s, one: %.3f s", n, with, one)
		}
		if without < 1.05*one {
			t.Errorf("%d pickers that tell each other nothing: %.3f s, one: %.3f s", n, without, one)
		}
	}
}
