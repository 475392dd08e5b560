package status

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// TestAPodIsKnownByItsStreams: in full if all of its ranks' streams are complete. The reason is there also if they are and what
// they bring cannot be used.
func TestAPodIsKnownByItsStreams(t *testing.T) {
	stream := func(state events.State, counted ...func(*events.Stats)) events.Status {
		s := events.Status{State: state, Stats: &events.Stats{}}
		s.Endpoint.ID.Pod = "u"
		for _, f := range counted {
			f(s.Stats)
		}
		return s
	}
	unfit := func(s *events.Stats) { s.BlockSizeUnsupported.Add(1) }
	unreadable := func(s *events.Stats) { s.Unreadable.Store(true) }
	silent := func(s *events.Stats) { s.Silent.Store(true) }
	overflow := func(s *events.Stats) { s.Overflows.Add(1) }
	for name, tc := range map[string]struct {
		streams          []events.Status
		synced, degraded bool
		want             string // reason of EventsSynced
	}{
		"none":                         {nil, false, false, ReasonStreamMissing},
		"complete":                     {[]events.Status{stream(events.Synced), stream(events.Synced)}, true, false, ""},
		"one of two":                   {[]events.Status{stream(events.Synced), stream(events.Disconnected)}, false, false, ReasonStreamMissing},
		"the other of two":             {[]events.Status{stream(events.Disconnected), stream(events.Synced)}, false, false, ReasonStreamMissing},
		"has overflowed before":        {[]events.Status{stream(events.Synced, overflow)}, true, false, ""},
		"overflows":                    {[]events.Status{stream(events.Degraded, overflow)}, false, true, ReasonLagging},
		"history is lost":              {[]events.Status{stream(events.Unverified)}, false, true, ReasonHistoryLost},
		"nothing is published":         {[]events.Status{stream(events.Disconnected, silent)}, false, false, ReasonEventsDisabled},
		"complete, of another layout":  {[]events.Status{stream(events.Synced, unreadable)}, true, false, ReasonUnknownLayout},
		"complete, blocks do not fit":  {[]events.Status{stream(events.Synced, unfit)}, true, false, ReasonBlockSizeUnsupported},
		"one rank's blocks do not fit": {[]events.Status{stream(events.Synced, unfit), stream(events.Synced)}, true, false, ReasonBlockSizeUnsupported},
	} {
		pods := map[string]operatorfeed.PodState{"u": {InFlight: 3}}
		Knowledge(pods, append(tc.streams, events.Status{State: events.Synced, Stats: &events.Stats{}})) // of a pod that is not asked for
		got := pods["u"]
		if got.Synced != tc.synced || got.Degraded != tc.degraded || got.InFlight != 3 || len(pods) != 1 {
			t.Errorf("%s: %+v", name, pods)
		}
		if reason := EventsReason(got.Reason, got.Synced); reason != tc.want {
			t.Errorf("%s: reason %q, want %q", name, reason, tc.want)
		}
	}
}
