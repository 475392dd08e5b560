package operatorfeed

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPickersReadDrainingEngines(t *testing.T) {
	type heard struct {
		after    time.Duration
		picker   string
		draining bool
		busy     int
		age      time.Duration
	}
	at := func(d time.Duration, busy int) Reading { return Reading{start.Add(d), busy} }
	for name, tc := range map[string]struct {
		heard []heard
		want  []Reading
	}{
		"a pod that does not drain is not asked for": {[]heard{{time.Second, "a", false, 0, time.Millisecond}}, nil},
		"an engine that no picker can read":          {[]heard{{time.Second, "a", true, 0, 0}}, nil},
		"one reading is in two reports": {
			[]heard{{1000 * time.Millisecond, "a", true, 0, 100 * time.Millisecond}, {2000 * time.Millisecond, "a", true, 0, 1101 * time.Millisecond}},
			[]Reading{at(900*time.Millisecond, 0)},
		},
		"two replicas read it at the same time": {
			[]heard{{1000 * time.Millisecond, "a", true, 0, 1}, {1100 * time.Millisecond, "b", true, 0, 1}},
			[]Reading{at(1000*time.Millisecond-1, 0)},
		},
		"of two at the same time the busy one counts": {
			[]heard{{1000 * time.Millisecond, "a", true, 0, 1}, {1100 * time.Millisecond, "b", true, 2, 1}},
			[]Reading{at(1100*time.Millisecond-1, 2)},
		},
		"the newest are kept": {
			[]heard{
				{1 * time.Second, "a", true, 4, time.Millisecond}, {2 * time.Second, "b", true, 3, time.Millisecond},
				{3 * time.Second, "a", true, 2, time.Millisecond}, {4 * time.Second, "a", true, 0, time.Millisecond},
			},
			[]Reading{at(1999*time.Millisecond, 3), at(2999*time.Millisecond, 2), at(3999*time.Millisecond, 0)},
		},
		"an older one changes nothing": {
			[]heard{{4 * time.Second, "a", true, 0, time.Millisecond}, {5 * time.Second, "b", true, 7, 3 * time.Second}},
			[]Reading{at(3999*time.Millisecond, 0)},
		},
		"they are forgotten with the mark": {
			[]heard{{1 * time.Second, "a", true, 0, time.Millisecond}, {2 * time.Second, "a", false, 0, time.Millisecond}}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var p Pool
			var got []Reading
			for _, h := range tc.heard {
				s := say(h.picker, h.draining)
				s.Pods["u"] = PodState{Draining: h.draining, Busy: h.busy, ReadAge: h.age}
				p.Receive(start.Add(h.after), s)
				v := p.View(start.Add(h.after), []Expected{{"a", false}, {"b", false}})
				got = v.Readings("u")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("readings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAViewKeepsItsReadings(t *testing.T) {
	var p Pool
	hear := func(after time.Duration, busy int) View {
		s := say("a", true)
		s.Pods["u"] = PodState{Draining: true, Busy: busy, ReadAge: time.Millisecond}
		p.Receive(start.Add(after), s)
		return p.View(start.Add(after), []Expected{{"a", true}})
	}
	first := hear(time.Second, 0)
	for i := range 9 {
		hear(time.Second+time.Duration(i)*400*time.Millisecond, i)
	}
	if diff := cmp.Diff([]Reading{{start.Add(999 * time.Millisecond), 0}}, first.Readings("u")); diff != "" {
		t.Errorf("the first view has changed (-want +got):\n%s", diff)
	}
}
