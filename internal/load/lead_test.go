package load

import (
	"testing"
	"time"
)

func TestReportsShowHowFarAnEngineIsAhead(t *testing.T) {
	for name, c := range map[string]struct {
		age     time.Duration // of the request at the first report
		reports []Report
		want    float64
	}{
		"idle, with a request that should be there": {time.Second, []Report{{}}, leadStep},
		"idle twice":                                  {time.Second, []Report{{}, {}}, leadStep * leadStep},
		"the request may not have arrived":            {arrival / 2, []Report{{}}, 1},
		"the request is there":                        {time.Second, []Report{{Running: 1}}, 1},
		"requests wait":                               {time.Second, []Report{{}, {Waiting: 1}}, 1},
		"so many reports that the product is bounded": {time.Second, make([]Report, 100), mostLead},
	} {
		var tracker Tracker
		tracker.Book(start, WorkOf(10_000, 0), true)
		at := start.Add(c.age)
		for _, r := range c.reports {
			tracker.Observe(at, r)
			at = at.Add(arrival / 100)
		}
		if got := tracker.View(at).Lead; got != c.want {
			t.Errorf("%s: %v times as fast, want %v", name, got, c.want)
		}
	}
}

func TestAnEngineIsIdleByItsOwnReport(t *testing.T) {
	report := start.Add(time.Minute)
	for name, c := range map[string]struct {
		booked time.Time
		report Report
		look   time.Time
		want   bool
	}{
		"nothing was sent since":        {report.Add(-2 * arrival), Report{}, report.Add(time.Second), true},
		"something was sent since":      {report.Add(time.Millisecond), Report{}, report.Add(time.Second), false},
		"it may not have arrived":       {report.Add(-arrival / 2), Report{}, report.Add(time.Second), false},
		"it runs a request":             {report.Add(-time.Second), Report{Running: 1}, report, false},
		"one waits":                     {report.Add(-time.Second), Report{Waiting: 1}, report, false},
		"the report is no longer fresh": {report.Add(-time.Second), Report{}, report.Add(metricsFresh + 1), false},
	} {
		var tracker Tracker
		tracker.Book(c.booked, WorkOf(10_000, 0), true)
		tracker.Observe(report, c.report)
		if got := tracker.View(c.look).Idle; got != c.want {
			t.Errorf("%s: idle %v", name, got)
		}
	}
}
