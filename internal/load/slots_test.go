package load

import (
	"testing"
	"time"
)

func TestAnEnginesPlacesAreLearnedFromItsReports(t *testing.T) {
	at := func(i int) time.Time { return start.Add(time.Duration(i) * 200 * time.Millisecond) }
	for _, c := range []struct {
		name    string
		reports []Report
		want    int
	}{
		{"three alike while some wait", []Report{{Running: 256, Waiting: 2}, {Running: 255, Waiting: 1}, {Running: 256, Waiting: 5}}, 256},
		{"two", []Report{{Running: 256, Waiting: 2}, {Running: 256, Waiting: 1}}, 0},
		{"no request waits", []Report{{Running: 256}, {Running: 256}, {Running: 256}}, 0},
		{"they differ", []Report{{Running: 200, Waiting: 1}, {Running: 230, Waiting: 1}, {Running: 256, Waiting: 1}}, 0},
		{"short of blocks", []Report{{Running: 50, Waiting: 1, KVUsage: 0.99}, {Running: 50, Waiting: 1, KVUsage: 0.99}, {Running: 50, Waiting: 1, KVUsage: 0.99}}, 0},
		{"nearly full of blocks, but not short", []Report{{Running: 50, Waiting: 1, KVUsage: 0.9}, {Running: 50, Waiting: 1, KVUsage: 0.9}, {Running: 50, Waiting: 1, KVUsage: 0.9}}, 50},
		{"they wait for adapters", []Report{{Running: 50, Waiting: 2, MaxAdapters: 2, Adapters: "a, b"}, {Running: 50, Waiting: 1, MaxAdapters: 2, Adapters: "a, b,c"}, {Running: 50, Waiting: 5, MaxAdapters: 2, Adapters: "a,b"}}, 0},
		{"they do not wait for adapters", []Report{{Running: 50, Waiting: 2, MaxAdapters: 2, Adapters: "a"}, {Running: 50, Waiting: 1, MaxAdapters: 2, Adapters: "a"}, {Running: 50, Waiting: 5, MaxAdapters: 2}}, 50},
		{"it runs more after all", []Report{{Running: 50, Waiting: 1}, {Running: 50, Waiting: 1}, {Running: 50, Waiting: 1}, {Running: 60}}, 0},
	} {
		var tracker Tracker
		for i, r := range c.reports {
			tracker.Observe(at(i), r)
		}
		if got := tracker.View(at(len(c.reports))).Slots; got != c.want {
			t.Errorf("%s: %d places, want %d", c.name, got, c.want)
		}
		if got := tracker.View(at(100)).Slots; got != 0 {
			t.Errorf("%s: still %d places after 20 s without reports", c.name, got)
		}
	}
}

// TestAWaitForALongPrefillTellsNothingOfPlaces: requests wait for it, and as many run as before.
func TestAWaitForALongPrefillTellsNothingOfPlaces(t *testing.T) {
	for tokens, want := range map[int]int{1000: 3, 100_000: 0} {
		var tracker Tracker
		b := tracker.Book(start, WorkOf(tokens, 0), true)
		for i := range 4 {
			tracker.Observe(start.Add(time.Duration(i)*slotsProbe), Report{Running: 3, Waiting: 2})
		}
		if got := tracker.View(start.Add(time.Second)).Slots; got != want {
			t.Errorf("with %d tokens to prefill: %d places, want %d", tokens, got, want)
		}
		b.Release(start.Add(time.Second))
	}
}

// TestOnePlaceMoreIsTriedAfterAWhile, then another, until a request waits again: that one report reports that it is as before.
func TestOnePlaceMoreIsTriedAfterAWhile(t *testing.T) {
	var tracker Tracker
	now := start
	report := func(r Report) {
		now = now.Add(slotsProbe)
		tracker.Observe(now, r)
	}
	places := func() int { return tracker.View(now).Slots }
	for range sameReports {
		report(Report{Running: 64, Waiting: 3})
	}
	for known := now; now.Sub(known) < slotsLast; report(Report{Running: 64}) {
		if places() != 64 {
			t.Fatalf("%d places after %v", places(), now.Sub(known))
		}
	}
	report(Report{Running: 64})
	if got := places(); got < 65 || got > 67 {
		t.Fatalf("a while later %d places", got)
	}
	report(Report{Running: 64, Waiting: 1})
	if places() != 64 {
		t.Errorf("one waits, and there are %d places", places())
	}
	for range int((slotsLast + slotsProbe) / slotsProbe) {
		report(Report{Running: 64})
	}
	report(Report{Running: 65})
	if places() != 0 {
		t.Errorf("it runs more, and has %d places", places())
	}
}

// TestAPrefillThatTakesTooLongIsOverdue: by what it takes longer than it should, and until it ends.
func TestAPrefillThatTakesTooLongIsOverdue(t *testing.T) {
	var tracker Tracker
	now := start
	for range 200 { // 10,000 tokens/s
		b := tracker.Book(now, WorkOf(1000, 0), true)
		now = now.Add(100 * time.Millisecond)
		b.FirstToken(now)
		b.Release(now)
		now = now.Add(10 * time.Millisecond)
	}
	b := tracker.Book(now, WorkOf(1000, 0), true)
	if v := tracker.View(now.Add(90 * time.Millisecond)); v.Overdue != 0 {
		t.Errorf("overdue by %v s before its time", v.Overdue)
	}
	late := tracker.View(now.Add(600 * time.Millisecond)).Overdue
	if late < 0.4 || late > 0.55 {
		t.Errorf("after 600 of 100 ms it is overdue by %v s", late)
	}
	b.FirstToken(now.Add(700 * time.Millisecond))
	if v := tracker.View(now.Add(701 * time.Millisecond)); v.Overdue != 0 {
		t.Errorf("overdue by %v s when it has ended", v.Overdue)
	}
}
