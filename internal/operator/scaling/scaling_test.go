package scaling

import (
	"testing"
	"testing/quick"
	"time"
)

var epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// usual are the API's defaults for a pool of 1 to 12.
func usual() Spec {
	return Spec{
		Min: 1, Max: 12,
		Up:   Up{WaitingPerReplica: 4},
		Down: Down{UtilizationFloor: 0.4, Stabilization: 5 * time.Minute, MaxStep: 1, ZeroAfter: 15 * time.Minute},
	}
}

// steady feeds the same sample every five seconds and returns the decisions, the size following them.
func steady(s *Scaler, spec Spec, from time.Time, lasts time.Duration, size int, sample func(size int) *Sample) []Decision {
	var all []Decision
	for now := from; now.Before(from.Add(lasts)); now = now.Add(5 * time.Second) {
		d := s.Decide(now, spec, sample(size), size)
		all = append(all, d)
		size = d.Size
	}
	return all
}

func busy(load, waiting, backlog float64) func(int) *Sample {
	return func(size int) *Sample {
		return &Sample{Serving: size, Load: load, Waiting: waiting, Backlog: backlog, HitRatio: -1, LastRequest: epoch.Add(240 * time.Hour)}
	}
}

func TestOneDecisionClosesTheWholeGap(t *testing.T) {
	var s Scaler
	d := s.Decide(epoch, usual(), busy(4, 50, 60)(2), 2)
	// 4 pods' worth of work, 60 pod-seconds to work off within a minute, 0.8 for each pod.
	if want := (Decision{Size: 7, Wanted: 7, Reason: QueueDepth}); d != want {
		t.Errorf("decision %+v, want %+v", d, want)
	}
}

func TestAStepBoundsWhatIsAdded(t *testing.T) {
	spec := usual()
	spec.Up.MaxStep = 2
	var s Scaler
	if d := s.Decide(epoch, spec, busy(4, 50, 60)(2), 2); d.Size != 4 {
		t.Errorf("size %d, want 4", d.Size)
	}
}

func TestTheMaximumIsSaid(t *testing.T) {
	var s Scaler
	d := s.Decide(epoch, usual(), busy(20, 500, 600)(2), 2)
	if want := (Decision{Size: 12, Wanted: 38, Reason: AtMaximum}); d != want {
		t.Errorf("decision %+v, want %+v", d, want)
	}
}

func TestASignalMustLast(t *testing.T) {
	spec := usual()
	spec.Up.Stabilization = 30 * time.Second
	var s Scaler
	all := steady(&s, spec, epoch, time.Minute, 2, busy(4, 50, 60))
	for i, d := range all {
		if late := i >= 6; (d.Size > 2) != late {
			t.Fatalf("after %d s: size %d", 5*i, d.Size)
		}
	}
}

func TestWhatPodsDoNotCureAddsNone(t *testing.T) {
	for _, c := range []struct {
		name   string
		sample Sample
		spec   func(*Spec)
		want   Reason
	}{
		{"a queue beside idle pods", Sample{Serving: 4, Waiting: 40, Idle: 3, Load: 1.2, Backlog: 30, HitRatio: -1}, nil, Skew},
		{"slow answers of pods with little to do", Sample{Serving: 4, Load: 0.8, TTFTP99: 9 * time.Second, HitRatio: -1},
			func(s *Spec) { s.Up.TTFTP99 = 2 * time.Second }, SlowPrompts},
		{"misses without evictions", Sample{Serving: 4, Load: 2, HitRatio: 0.05},
			func(s *Spec) { s.Up.HitRatioFloor = 0.3 }, ColdPrompts},
		{"misses with slow evictions", Sample{Serving: 4, Load: 2, HitRatio: 0.05, Turnover: time.Hour},
			func(s *Spec) { s.Up.HitRatioFloor = 0.3 }, ColdPrompts},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := usual()
			if c.spec != nil {
				c.spec(&spec)
			}
			var s Scaler
			for _, d := range steady(&s, spec, epoch, 30*time.Minute, 4, func(int) *Sample { return &c.sample }) {
				if d.Size > 4 || d.Reason != c.want {
					t.Fatalf("decision %+v, want size 4 because of %s", d, c.want)
				}
			}
		})
	}
}

func TestMissesUnderEvictionsAddOneCacheAtATime(t *testing.T) {
	spec := usual()
	spec.Up.HitRatioFloor = 0.3
	var s Scaler
	all := steady(&s, spec, epoch, 25*time.Minute, 4, func(size int) *Sample {
		return &Sample{Serving: size, Load: 2, HitRatio: 0.1, Turnover: 2 * time.Minute}
	})
	if got := all[len(all)-1].Size; got != 6 {
		t.Errorf("size %d after 25 minutes with a pod every ten, want 6", got)
	}
}

func TestPodsThatBearLessAreFoundOut(t *testing.T) {
	var s Scaler
	limit := func(size int) *Sample { // pods choke at half of their time
		sample := &Sample{Serving: size, Load: 2.4, HitRatio: -1, LastRequest: epoch.Add(240 * time.Hour)}
		if 2.4/float64(size) > 0.5 {
			sample.Waiting, sample.Backlog = 6*float64(size), 10
		}
		return sample
	}
	all := steady(&s, usual(), epoch, 12*time.Hour, 4, limit)
	changes := 0
	for i := 1; i < len(all); i++ {
		if all[i].Size != all[i-1].Size {
			changes++
		}
	}
	if got := all[len(all)-1].Size; got < 5 || changes > 3 {
		t.Errorf("size %d after %d changes in twelve hours; 5 pods would do", got, changes)
	}
}

func TestPodsOnTheirWayAreWaitedFor(t *testing.T) {
	var s Scaler
	for now := epoch; now.Before(epoch.Add(20 * time.Minute)); now = now.Add(5 * time.Second) {
		d := s.Decide(now, usual(), &Sample{Serving: 2, Load: 2.2, Waiting: 30, Backlog: 5, HitRatio: -1}, 4)
		if d.Size != 4 {
			t.Fatalf("size %d while two pods start that suffice", d.Size)
		}
	}
}

func TestDownByAStepAfterTheWindow(t *testing.T) {
	var s Scaler
	all := steady(&s, usual(), epoch, 16*time.Minute, 6, busy(1, 0, 0))
	for i, d := range all {
		passed := time.Duration(i) * 5 * time.Second
		least := 6 - int(passed/(5*time.Minute))
		if d.Size < least {
			t.Fatalf("size %d after %s", d.Size, passed)
		}
	}
	if got := all[len(all)-1].Size; got != 3 {
		t.Errorf("size %d, want 3 after three windows", got)
	}
}

func TestOneBusyMomentKeepsThePods(t *testing.T) {
	var s Scaler
	i := 0
	for _, d := range steady(&s, usual(), epoch, time.Hour, 6, func(size int) *Sample {
		i++
		if i%50 == 0 { // a queue once in four minutes
			return busy(3, 60, 0)(size)
		}
		return busy(1, 0, 0)(size)
	}) {
		if d.Size < 6 {
			t.Fatal("pods were taken although they are needed every four minutes")
		}
	}
}

func TestWhatIsLeftBearsTheLoad(t *testing.T) {
	spec := usual()
	spec.Down.MaxStep, spec.Down.UtilizationFloor = 100, 1
	law := func(load uint8, size uint8) bool {
		n := int(size%12) + 1
		l := float64(load%100) / 10
		var s Scaler
		for _, d := range steady(&s, spec, epoch, 20*time.Minute, n, busy(l, 0, 0)) {
			if d.Size < n && l > fullLoad*float64(d.Size) {
				return false
			}
			n = d.Size
		}
		return true
	}
	if err := quick.Check(law, nil); err != nil {
		t.Error(err)
	}
}

func TestToZeroAndBack(t *testing.T) {
	spec := usual()
	spec.Min = 0
	idle := func(now time.Time) *Sample {
		return &Sample{Serving: 1, HitRatio: -1, LastRequest: epoch}
	}
	var s Scaler
	size, now := 1, epoch
	for ; now.Before(epoch.Add(time.Hour)) && size > 0; now = now.Add(5 * time.Second) {
		size = s.Decide(now, spec, idle(now), size).Size
	}
	if passed := now.Sub(epoch); size != 0 || passed < spec.Down.ZeroAfter || passed > spec.Down.ZeroAfter+10*time.Second {
		t.Fatalf("size %d after %s without a request, want 0 after %s", size, passed, spec.Down.ZeroAfter)
	}
	if d := s.Decide(now, spec, &Sample{HitRatio: -1, LastRequest: epoch}, 0); d.Size != 0 {
		t.Errorf("%+v without a request", d)
	}
	if d := s.Decide(now.Add(5*time.Second), spec, &Sample{Waiting: 1, HitRatio: -1, LastRequest: now}, 0); d.Size != 1 || d.Reason != Demand {
		t.Errorf("%+v with a request that waits, want 1 because of %s", d, Demand)
	}
}

func TestWithoutSamplesNothingChanges(t *testing.T) {
	spec := usual()
	var s Scaler
	for now := epoch; now.Before(epoch.Add(time.Hour)); now = now.Add(5 * time.Second) {
		if d := s.Decide(now, spec, nil, 5); d.Size != 5 || d.Reason != NoSamples {
			t.Fatalf("%+v", d)
		}
	}
	spec.Min = 7 // but for what people say
	if d := s.Decide(epoch.Add(2*time.Hour), spec, nil, 5); d.Size != 7 || d.Reason != AtMinimum {
		t.Errorf("%+v, want the least size", d)
	}
}

func TestSizesStayWithinLimits(t *testing.T) {
	law := func(load, waiting, backlog float32, serving, size uint8, least, span uint8, ttft uint16) bool {
		spec := usual()
		spec.Min, spec.Max = int(least), int(least)+int(span)+1
		spec.Up.TTFTP99, spec.Up.HitRatioFloor = time.Second, 0.5
		sample := &Sample{
			Serving: int(serving), Load: abs(load), Waiting: abs(waiting), Backlog: abs(backlog),
			TTFTP99: time.Duration(ttft) * time.Millisecond, HitRatio: 0.2, Turnover: time.Minute,
		}
		var s Scaler
		n := int(size)
		for _, d := range steady(&s, spec, epoch, 20*time.Minute, n, func(int) *Sample { return sample }) {
			if d.Size < spec.Min || d.Size > spec.Max {
				return false
			}
		}
		return true
	}
	if err := quick.Check(law, &quick.Config{MaxCount: 300}); err != nil {
		t.Error(err)
	}
}

func abs(v float32) float64 {
	if v < 0 {
		v = -v
	}
	if v > 1e9 {
		v = 1e9
	}
	return float64(v)
}
