package monotonic

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/test/wallclock"
)

func TestNumbersAreThoseOfTheMonotonicClock(t *testing.T) {
	now := time.Now()
	later := now.Add(time.Minute)
	for _, d := range []time.Duration{time.Hour, -time.Hour, 0} {
		if n := Of(wallclock.Set(later, d)) - Of(now); n != int64(time.Minute) {
			t.Errorf("set by %v, a minute is %v", d, time.Duration(n))
		}
	}
	// The wall clock is corrected while it runs, and is not read in the same nanosecond as the other one.
	if got := Time(Of(later)); got.Sub(later) != 0 || got.Round(0).Sub(later.Round(0)).Abs() > 10*time.Second {
		t.Errorf("%v has become %v", later, got)
	}
	if a := time.Unix(1_000_000_000, 0); Of(a.Add(time.Second))-Of(a) != int64(time.Second) || !Time(Of(a)).Equal(a) {
		t.Error("times without a reading of the monotonic clock are not compared")
	}
	if Of(epoch) == 0 {
		t.Error("a time is 0")
	}
}
