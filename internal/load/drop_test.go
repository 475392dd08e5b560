package load

import (
	"testing"
	"time"
)

// An engine that gives requests up at once seems to do their work in no time.
func TestWorkThatAnEngineHasNotDoneTeachesNothing(t *testing.T) {
	rate := func(giveUp bool) float64 {
		var l Tracker
		now := time.Unix(1, 0)
		for range 50 {
			b := l.Book(now, WorkOf(1000, 0), true)
			if giveUp {
				for range 5 {
					l.Book(now, WorkOf(8000, 0), true).Drop(now)
				}
			}
			now = now.Add(100 * time.Millisecond)
			b.FirstToken(now)
			b.Release(now)
			now = now.Add(time.Second)
		}
		v := l.View(now)
		if v.InFlight != 0 || v.PendingTokens != 0 || v.PendingContext != 0 {
			t.Errorf("left: %+v", v)
		}
		return v.Rate
	}
	if with, without := rate(true), rate(false); with != without || with <= 0 {
		t.Errorf("learned %.0f tokens/s with requests given up, %.0f without", with, without)
	}
}
