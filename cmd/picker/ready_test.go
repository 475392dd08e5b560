package main

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/ingest"
)

func TestReadinessWaitsForEventsButNotForEver(t *testing.T) {
	const waiting = "event streams are being synchronised"
	now, states, heard := time.Unix(1000, 0), []ingest.State{ingest.Syncing}, true
	fresh := func() *readiness {
		return &readiness{now: func() time.Time { return now }, states: func() []ingest.State { return states }, heard: func() bool { return heard }}
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
	states = []ingest.State{ingest.Disconnected}
	expect(r, "") // once ready, it stays so
	r.drain()
	expect(r, "draining")

	r = fresh()
	r.apply()
	expect(r, waiting)
	states, heard = []ingest.State{ingest.Unverified}, false
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
	list := func(n int, s ingest.State) (all []ingest.State) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	for name, tc := range map[string]struct {
		states []ingest.State
		want   bool
	}{
		"no stream":                      {nil, true},
		"one that has not begun":         {list(1, ingest.Disconnected), false},
		"one that has begun":             {list(1, ingest.Syncing), false},
		"all that can be known":          {list(1, ingest.Synced), true},
		"as far as they can":             {append(list(1, ingest.Unverified), ingest.Degraded), true},
		"nineteen of twenty":             {append(list(19, ingest.Synced), ingest.Syncing), true},
		"eighteen of nineteen":           {append(list(18, ingest.Synced), ingest.Syncing), false},
		"thirty-eight of forty, no more": {append(list(38, ingest.Synced), list(2, ingest.Disconnected)...), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settled(tc.states); got != tc.want {
				t.Errorf("settled is %v, want %v", got, tc.want)
			}
		})
	}
}
