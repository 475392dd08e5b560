package server

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/events"
)

func TestReadinessWaitsForEventsButNotForEver(t *testing.T) {
	const waiting = "event streams are being synchronised"
	now, states, heard := time.Unix(1000, 0), []events.State{events.Syncing}, true
	fresh := func() *readiness {
		return &readiness{now: func() time.Time { return now }, states: func() []events.State { return states }, peersReceived: func() bool { return heard }}
	}
	expect := func(r *readiness, want string) {
		t.Helper()
		if got := r.status(); got != want {
			t.Errorf("status %q, want %q", got, want)
		}
	}
	r := fresh()
	expect(r, "no objects applied yet")
	r.apply()
	expect(r, waiting)
	now = now.Add(readyWait - 1)
	r.apply() // a later state does not begin the wait again
	expect(r, waiting)
	now = now.Add(1)
	expect(r, "")
	states = []events.State{events.Disconnected}
	expect(r, "") // once ready, it stays so
	r.drain()
	expect(r, "draining")

	r = fresh()
	r.serve("no pool")
	r.apply()
	now = now.Add(readyWait)
	expect(r, "no pool") // however long it waits
	if !r.serve("") || r.serve("") {
		t.Error("only a change is a change")
	}
	expect(r, "")
	r.serve("no pool")
	expect(r, "no pool") // a picker whose last pool is gone

	r = fresh()
	r.apply()
	expect(r, waiting)
	states, heard = []events.State{events.Unverified}, false
	expect(r, "waiting for updates of other replicas")
	heard = true
	expect(r, "")
	heard = false
	expect(r, "") // a replica that is added later is not waited for

	r = fresh()
	r.apply()
	now = now.Add(readyWait)
	expect(r, "")
	full := true
	r.full = func() bool { return full }
	expect(r, "the memory for requests is full")
	full = false
	expect(r, "")
}

func TestNearlyAllStreamsSuffice(t *testing.T) {
	list := func(n int, s events.State) (all []events.State) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	for name, tc := range map[string]struct {
		states []events.State
		want   bool
	}{
		"no stream":                      {nil, true},
		"one that has not begun":         {list(1, events.Disconnected), false},
		"one that has begun":             {list(1, events.Syncing), false},
		"all that can be known":          {list(1, events.Synced), true},
		"as far as they can":             {append(list(1, events.Unverified), events.Degraded), true},
		"nineteen of twenty":             {append(list(19, events.Synced), events.Syncing), true},
		"eighteen of nineteen":           {append(list(18, events.Synced), events.Syncing), false},
		"thirty-eight of forty, no more": {append(list(38, events.Synced), list(2, events.Disconnected)...), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settled(tc.states); got != tc.want {
				t.Errorf("settled is %v, want %v", got, tc.want)
			}
		})
	}
}
