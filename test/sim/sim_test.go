package sim

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 200, "how many seeds the simulation runs")
	simFirst = flag.Uint64("sim.first", 0, "the first of them")
	simSeed  = flag.Int64("sim.seed", -1, "run this one seed, and say what happens")
	simSoak  = flag.Duration("sim.soak", 0, "run further seeds for so long, whatever sim.seeds says")
	simLast  = flag.Int("sim.failures", 5, "give up after so many failures")
	simSteps = flag.Int("sim.steps", 200, "steps of a world between two rests; there are two of these parts")
)

// simulate runs one world, and returns what it counted and which law it broke.
func simulate(seed uint64, steps int, trace io.Writer) (counts map[string]int, sum uint64, err error) {
	w := newWorld(seed, trace)
	defer func() {
		if r := recover(); r != nil {
			counts = w.counts
			if f, ok := r.(failure); ok {
				err = errors.New(f.text)
			} else {
				err = fmt.Errorf("seed %d, step %d: %v\n%s", w.seed, w.step, r, debug.Stack())
			}
		}
	}()
	for range 2 {
		for range steps {
			w.act()
		}
		w.settle()
		w.counts["steps"] += steps
	}
	w.counts["batches"] = len(w.batches)
	w.counts["virtual seconds"] = int(w.now.Sub(start).Seconds())
	sum = w.fingerprint()
	w.close()
	return w.counts, sum, nil
}

func TestEventPlane(t *testing.T) {
	if *simSeed >= 0 {
		if _, _, err := simulate(uint64(*simSeed), *simSteps, os.Stdout); err != nil {
			t.Fatal(err)
		}
		return
	}
	var next atomic.Uint64
	var mu sync.Mutex
	total := map[string]int{}
	failed, done := 0, 0
	began := time.Now()
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for n := next.Add(1) - 1; more(n, began); n = next.Add(1) - 1 {
				counts, _, err := simulate(*simFirst+n, *simSteps, nil)
				mu.Lock()
				for what, n := range counts {
					total[what] += n
				}
				if done++; err != nil && failed < *simLast {
					failed++
					t.Errorf("%v\nreplay it: go test ./test/sim -run TestEventPlane -sim.seed=%d -sim.steps=%d", err, *simFirst+n, *simSteps)
				}
				over := failed >= *simLast
				mu.Unlock()
				if over {
					return
				}
			}
		})
	}
	workers.Wait()
	summarize(t, total, done, time.Since(began))
}

// more reports whether to run the n-th seed.
func more(n uint64, began time.Time) bool {
	if *simSoak > 0 {
		return time.Since(began) < *simSoak
	}
	return n < *simSeeds
}

// enough steps bring every kind of fault about.
const enough = 60_000

// summarize says how much happened of what. In enough steps everything must have happened.
func summarize(t *testing.T, total map[string]int, seeds int, took time.Duration) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(total)) {
		fmt.Printf("%9d %s\n", total[what], what)
	}
	n := float64(seeds)
	fmt.Printf("%d seeds in %.1f s: %.0f seeds/s; %.0f steps, %.0f batches, %.0f s of virtual time for each\n", seeds, took.Seconds(),
		n/took.Seconds(), float64(total["steps"])/n, float64(total["batches"])/n, float64(total["virtual seconds"])/n)
	if total["steps"] < enough {
		return
	}
	for _, what := range kinds {
		if total[what] == 0 {
			t.Errorf("never happened: %s", what)
		}
	}
}

// A seed that has failed must fail again, so everything in a world follows from its seed.
func TestSeedsReplay(t *testing.T) {
	for seed := range uint64(24) {
		first, sum, err := simulate(seed, 60, nil)
		if err != nil {
			t.Fatal(err)
		}
		again, sum2, err := simulate(seed, 60, nil)
		if err != nil {
			t.Fatal(err)
		}
		if sum != sum2 || !maps.Equal(first, again) {
			t.Errorf("seed %d goes differently the second time", seed)
		}
	}
}
