package dashboard

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

var start = time.Unix(1_800_000_000, 0)

// TestTheRingKeepsTheLast: against a list of everything.
func TestTheRingKeepsTheLast(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	r := NewRing()
	var all []api.Decision
	for range 3000 {
		switch {
		case len(all) == 0 || rng.IntN(2) == 0:
			d := api.Decision{Passed: rng.Int64N(100)}
			d.ID = r.Decided(d)
			all = append(all, d)
		default:
			d := &all[len(all)-1-rng.IntN(min(len(all), 2*ringSize))]
			d.Outcome = "completed"
			r.Ended(*d)
		}
		n, ended := 1+rng.IntN(ringSize), rng.IntN(2) == 0
		var want []*api.Decision // the latest first
		for i := len(all) - 1; i >= max(0, len(all)-ringSize) && len(want) < n; i-- {
			if !ended || all[i].Outcome != "" {
				want = append(want, &all[i])
			}
		}
		got := r.Last(n, ended)
		if len(got) != len(want) {
			t.Fatalf("%d decisions, want %d", len(got), len(want))
		}
		slices.Reverse(want)
		for i := range want {
			if got[i].ID != want[i].ID || got[i].Passed != want[i].Passed || got[i].Outcome != want[i].Outcome {
				t.Fatalf("decision %d is %+v, want %+v", i, got[i], *want[i])
			}
		}
	}
}

// TestSoManyAreTakenDown: bursts at once, then at the rate; every decision is either taken down or counted as passed.
func TestSoManyAreTakenDown(t *testing.T) {
	for name, tc := range map[string]struct {
		follow bool
		want   int // in 10 s, of 1000 a second
	}{"no client follows": {false, burst + 20}, "a client follows": {true, burst + 2000}} {
		t.Run(name, func(t *testing.T) {
			r := NewRing()
			if tc.follow {
				_, f := r.Follow(1, false)
				defer f.Close()
			}
			taken, passed := 0, int64(0)
			for i := range 10_000 {
				if n, ok := r.Wants(start.Add(time.Duration(i) * time.Millisecond)); ok {
					taken++
					passed += n
				}
			}
			if taken < tc.want-2 || taken > tc.want+2 {
				t.Errorf("%d were taken down, want %d", taken, tc.want)
			}
			if sum := int64(taken) + passed + r.passed.Load(); sum != 10_000 {
				t.Errorf("%d taken and %d passed, %d waiting: %d of 10000", taken, passed, r.passed.Load(), sum)
			}
		})
	}
}

func TestWhoComesSeesDecisionsAtOnce(t *testing.T) {
	r := NewRing()
	for range 1000 { // uses up the burst
		r.Wants(start)
	}
	if _, ok := r.Wants(start); ok {
		t.Fatal("more than a burst at once")
	}
	_, f := r.Follow(1, false)
	defer f.Close()
	if _, ok := r.Wants(start); !ok {
		t.Error("somebody has come, and nothing is taken down")
	}
}

func TestAClockThatIsSetBackStopsNothing(t *testing.T) {
	r := NewRing()
	for range 100 {
		r.Wants(start)
	}
	if _, ok := r.Wants(start.Add(-time.Hour)); !ok {
		t.Error("nothing is taken down for an hour")
	}
}

func TestFollowersGetWhatComes(t *testing.T) {
	r := NewRing()
	r.Decided(api.Decision{})
	last, f := r.Follow(10, false)
	if len(last) != 1 {
		t.Fatalf("%d decisions before", len(last))
	}
	id := r.Decided(api.Decision{})
	r.Ended(api.Decision{ID: id, Outcome: "completed"})
	if a, b := <-f.C, <-f.C; a.ID != 2 || a.Outcome != "" || b.ID != 2 || b.Outcome != "completed" {
		t.Errorf("%+v, %+v", a, b)
	}
	for range 2 * behind { // must not block
		r.Decided(api.Decision{})
	}
	f.Close()
	var all []*Follower
	for range maxFollowers {
		if _, f := r.Follow(1, false); f != nil {
			all = append(all, f)
		}
	}
	if _, f := r.Follow(1, false); len(all) != maxFollowers || f != nil {
		t.Errorf("%d follow, and one more may: %v", len(all), f != nil)
	}
	for _, f := range all {
		f.Close()
	}
	if r.following.Load() != 0 {
		t.Error("somebody is still there")
	}
}
