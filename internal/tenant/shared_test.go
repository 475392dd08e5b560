package tenant

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestReplicasShareATenantsRate: replicas that notify each other every now and then together let a tenant through as often
// as its rate says, whichever of them it asks: not more than a minute's worth, the rate, and what arrives at all of them in
// the time between two notifications; and not less than the rate.
func TestReplicasShareATenantsRate(t *testing.T) {
	const minutes, every = 10, 50 * time.Millisecond
	for _, n := range []int{1, 2, 3, 4} {
		for seed := range uint64(5) {
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			class := &Class{RequestsPerMinute: 300, TokensPerMinute: 1_000_000}
			replicas, told := make([]Meters, n), make([][]uint64, n)
			for i := range told {
				told[i] = make([]uint64, n)
			}
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			end, next := now.Add(minutes*time.Minute), now
			passed, last := 0, 0
			for now.Before(end) {
				now = now.Add(time.Duration(rng.ExpFloat64() * float64(50*time.Millisecond))) // four times the rate
				for !next.After(now) {
					for from := range replicas {
						for to := range replicas {
							if from != to {
								told[from][to], _ = replicas[from].Since(told[from][to], 10, func(name string, u Usage) {
									replicas[to].Merge(next, uint64(from), name, u, class)
								})
							}
						}
					}
					next = next.Add(every)
				}
				if pass, _, _ := replicas[rng.IntN(n)].Take(now, "acme", class); pass != nil {
					passed++
					pass.Charge(now, rng.IntN(2000))
					pass.Release()
					last = passed
				}
			}
			least, most := minutes*300+250, minutes*300+300+2*n // 20 arrive in a second: one or two in 50 ms
			if passed < least || passed > most || last != passed {
				t.Errorf("%d replicas, seed %d: %d requests in %d minutes, want %d to %d", n, seed, passed, minutes, least, most)
			}
		}
	}
}

// TestWhatOthersHaveUnderWayCounts, until they are gone.
func TestWhatOthersHaveUnderWayCounts(t *testing.T) {
	class := &Class{MaxConcurrent: 3}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var ms Meters
	ms.Merge(now, 1, "acme", Usage{Requests: 2, UnderWay: 2}, class)
	one, _, _ := ms.Take(now, "acme", class)
	if one == nil {
		t.Fatal("a third of three is refused")
	}
	if _, reason, _ := ms.Take(now, "acme", class); reason != TooManyAtOnce {
		t.Error("a fourth of three is let through")
	}
	ms.Merge(now, 1, "acme", Usage{Requests: 2, UnderWay: 1}, class)
	if two, _, _ := ms.Take(now, "acme", class); two == nil {
		t.Error("one of the other replica's has ended")
	}
	ms.Lost(1)
	ms.Lost(1)
	if three, _, _ := ms.Take(now, "acme", class); three == nil {
		t.Error("nothing of a replica that is gone is under way")
	}
}

// TestAReplicaThatStartsKnowsWhatIsLeft: it neither gives a minute's worth again nor takes the past for the present.
func TestAReplicaThatStartsKnowsWhatIsLeft(t *testing.T) {
	class := &Class{RequestsPerMinute: 60}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var fresh Meters
	fresh.Merge(now, 1, "acme", Usage{Requests: 1_000_000, RequestsLeft: 2, TokensLeft: math.Inf(1)}, class)
	got := 0
	for range 10 {
		if pass, _, _ := fresh.Take(now, "acme", class); pass != nil {
			got++
		}
	}
	if got != 2 {
		t.Errorf("%d requests are let through, 2 were left", got)
	}
}

// TestSinceTellsEachChangeOnce compares Since with a set of the tenants that have changed.
func TestSinceTellsEachChangeOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	class := &Class{TokensPerMinute: 1e9}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var ms Meters
	want, total, at := map[string]bool{}, map[string]uint64{}, uint64(0)
	for range 2000 {
		for range rng.IntN(10) {
			name := fmt.Sprint(rng.IntN(30))
			pass, _, _ := ms.Take(now, name, class)
			pass.Release()
			want[name] = true
			total[name]++
		}
		most := rng.IntN(12)
		n := 0
		upTo, more := ms.Since(at, most, func(name string, u Usage) {
			if !want[name] || u.Requests != total[name] {
				t.Fatalf("%s: %+v, has changed %v, %d requests", name, u, want[name], total[name])
			}
			delete(want, name)
			n++
		})
		if n > most || more != (len(want) > 0) {
			t.Fatalf("%d of at most %d are reported, more %v, %d are left", n, most, more, len(want))
		}
		at = upTo
	}
}

// TestWhatOthersServeIsReportedOnce: the reports of a replica add up to what it has served since the first of each level, also if reports
// are repeated or lost, and if it has forgotten the tenant. Requests wait elsewhere until no replica reports any, or it is lost.
func TestWhatOthersServeIsReportedOnce(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	class := &Class{Weight: 1}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		from, to := make([]Meters, 3), Meters{}
		want, got := [3]uint64{}, [3]uint64{}
		report := func(i int) {
			from[i].Since(0, 10, func(name string, u Usage) {
				for _, x := range to.Merge(now, uint64(i), name, u, class) {
					got[x.Level] += x.Served
				}
			})
		}
		waiting := [3][3]bool{}
		for i := range from {
			for level := range 3 {
				from[i].Queue(now, "acme", level, 500, false) // before the first report
			}
			report(i)
		}
		for step := range 300 {
			i, level, tokens := rng.IntN(3), rng.IntN(3), rng.IntN(1000)
			waiting[i][level] = rng.IntN(3) == 0
			from[i].Queue(now, "acme", level, float64(tokens), waiting[i][level])
			want[level] += uint64(tokens)
			if step == 150 { // it has forgotten the tenant: its first reports count as none
				report(i)
				from[i] = Meters{}
				for l := range 3 {
					from[i].Queue(now, "acme", l, 1, waiting[i][l])
				}
				report(i)
			}
			for range rng.IntN(3) {
				report(rng.IntN(3))
			}
		}
		for i := range from {
			report(i)
		}
		for level := range 3 {
			if got[level] != want[level] {
				t.Errorf("seed %d: level %d: %d tokens are reported, %d were served", seed, level, got[level], want[level])
			}
		}
		for gone := range 3 {
			for level := range 3 {
				some := false
				for i := gone; i < 3; i++ {
					some = some || waiting[i][level]
				}
				if to.Elsewhere("acme", level) != some {
					t.Errorf("seed %d: %d replicas are lost, level %d: requests wait elsewhere: %v", seed, gone, level, !some)
				}
			}
			to.Lost(uint64(gone))
		}
	}
}

// TestTheLevelsOfATenantAreBounded, and what has not changed is no news.
func TestTheLevelsOfATenantAreBounded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var ms Meters
	for level := range 2 * MaxQueued {
		if changed := ms.Queue(now, "acme", level, 1, true); changed != (level < MaxQueued) {
			t.Errorf("level %d: changed %v", level, changed)
		}
		if ms.Queue(now, "acme", level, 0, true) {
			t.Errorf("level %d has changed by nothing", level)
		}
	}
	ms.Since(0, 1, func(_ string, u Usage) {
		if len(u.Queued) != MaxQueued {
			t.Errorf("%d levels are reported", len(u.Queued))
		}
	})
	if ms.Elsewhere("acme", 0) || ms.Elsewhere("other", 0) {
		t.Error("what waits here waits elsewhere")
	}
}
