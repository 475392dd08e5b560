package scaling

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// fleet is a model of pods that work off requests one after the other, each where the least work waits. Pods take a
// while to start.
type fleet struct {
	rng     *rand.Rand
	pods    []pod
	starts  time.Duration
	arrived float64 // work since the last sample
	waits   []float64
	last    time.Time
}

type pod struct {
	serves time.Time
	queue  []float64 // work left of each request
}

// step plays a second of load pods' worth of requests that take a mean of two seconds, by a heavy-tailed law.
func (f *fleet) step(now time.Time, load float64) {
	const mean, sigma = 2.0, 1.2
	for n := poisson(f.rng, load/mean); n > 0; n-- {
		work := mean * math.Exp(sigma*f.rng.NormFloat64()-sigma*sigma/2)
		f.arrived += work
		f.last = now
		best := -1
		for i := range f.pods {
			if !f.pods[i].serves.After(now) && (best < 0 || left(f.pods[i].queue) < left(f.pods[best].queue)) {
				best = i
			}
		}
		if best < 0 {
			best = 0
		}
		f.waits = append(f.waits, left(f.pods[best].queue))
		f.pods[best].queue = append(f.pods[best].queue, work)
	}
	for i := range f.pods {
		if f.pods[i].serves.After(now) {
			continue
		}
		for can := 1.0; can > 0 && len(f.pods[i].queue) > 0; {
			done := min(can, f.pods[i].queue[0])
			can -= done
			if f.pods[i].queue[0] -= done; f.pods[i].queue[0] <= 0 {
				f.pods[i].queue = f.pods[i].queue[1:]
			}
		}
	}
}

func (f *fleet) resize(now time.Time, size int) {
	for len(f.pods) < size {
		f.pods = append(f.pods, pod{serves: now.Add(f.starts)})
	}
	for len(f.pods) > size { // the others take over what the last one had
		f.pods[0].queue = append(f.pods[0].queue, f.pods[len(f.pods)-1].queue...)
		f.pods = f.pods[:len(f.pods)-1]
	}
}

func (f *fleet) sample(now time.Time, interval time.Duration) *Sample {
	s := &Sample{Load: f.arrived / interval.Seconds(), HitRatio: -1, LastRequest: f.last}
	for i := range f.pods {
		if f.pods[i].serves.After(now) {
			continue
		}
		s.Serving++
		s.Backlog += left(f.pods[i].queue)
		s.Waiting += float64(max(0, len(f.pods[i].queue)-1))
		if len(f.pods[i].queue) == 0 {
			s.Idle++
		}
	}
	f.arrived = 0
	return s
}

func left(queue []float64) (sum float64) {
	for _, w := range queue {
		sum += w
	}
	return sum
}

func poisson(rng *rand.Rand, mean float64) (n int) {
	for p := rng.Float64(); p > math.Exp(-mean); p *= rng.Float64() {
		n++
	}
	return n
}

// play drives a pool for a time and returns its size every five seconds.
func play(seed uint64, spec Spec, size int, lasts time.Duration, load func(time.Duration) float64) (sizes []int, waits []float64) {
	f := &fleet{rng: rand.New(rand.NewPCG(seed, 1)), starts: 2 * time.Minute}
	f.resize(epoch.Add(-time.Hour), size)
	var s Scaler
	const interval = 5 * time.Second
	for passed := time.Duration(0); passed < lasts; passed += time.Second {
		now := epoch.Add(passed)
		f.step(now, load(passed))
		if passed%interval == 0 {
			size = s.Decide(now, spec, f.sample(now, interval), size).Size
			f.resize(now, size)
			sizes = append(sizes, size)
		}
	}
	return sizes, f.waits
}

// directionChanges counts how often the size changed its direction.
func directionChanges(sizes []int) (n int) {
	direction := 0
	for i := 1; i < len(sizes); i++ {
		if d := sizes[i] - sizes[i-1]; d != 0 && (d > 0) != (direction > 0) || d != 0 && direction == 0 {
			direction = d
			n++
		}
	}
	return n
}

func TestANoisyConstantLoadDoesNotFlap(t *testing.T) {
	for _, load := range []float64{0.3, 1.1, 2.5, 4.0, 7.3} {
		for seed := range uint64(4) {
			sizes, _ := play(seed, usual(), 6, 26*time.Hour, func(time.Duration) float64 { return load })
			settled := sizes[len(sizes)*2/26:]
			if n := directionChanges(settled); n > 3 {
				t.Errorf("load %.1f, seed %d: the size turned %d times in a day after the first two hours: %v", load, seed, n, slices.Compact(settled))
			}
		}
	}
}

func TestTheSizeFollowsTheDay(t *testing.T) {
	day := func(passed time.Duration) float64 {
		return 4 - 3.4*math.Cos(2*math.Pi*passed.Hours()/24)
	}
	for seed := range uint64(4) {
		sizes, waits := play(seed, usual(), 2, 48*time.Hour, day)
		for i, size := range sizes {
			if passed := time.Duration(i) * 5 * time.Second; passed > 24*time.Hour && float64(size) < day(passed) {
				t.Fatalf("seed %d: %d pods for a load of %.1f at %s", seed, size, day(passed), passed)
			}
		}
		if most, least := slices.Max(sizes), slices.Min(sizes); most < 8 || least > 4 {
			t.Errorf("seed %d: sizes from %d to %d for loads from 0.6 to 7.4", seed, least, most)
		}
		slices.Sort(waits)
		if p99 := waits[len(waits)*99/100]; p99 > 30 {
			t.Errorf("seed %d: one in a hundred waits more than %.0f s", seed, p99)
		}
	}
}

func TestAJumpIsMetAtOnce(t *testing.T) {
	jump := func(passed time.Duration) float64 {
		if passed < time.Hour {
			return 1
		}
		return 6
	}
	sizes, _ := play(1, usual(), 3, 80*time.Minute, jump)
	at := func(passed time.Duration) int { return sizes[int(passed/(5*time.Second))] }
	if got := at(62 * time.Minute); got < 7 {
		t.Errorf("%d pods are asked for two minutes after a load of 6 has come", got)
	}
}
