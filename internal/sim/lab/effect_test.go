package lab

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// TestPlacementSparesAdapterLoads: pickers that know where adapters run load fewer, and first tokens arrive sooner.
func TestPlacementSparesAdapterLoads(t *testing.T) {
	w, err := Generate("chat", 1500, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := small(t, "MarginalCost")
	c.Workload, c.Pods, c.Speed = w.WithAdapters(16), 4, 2
	c.Adapters = Adapters{PerPod: 4, Load: 200 * time.Millisecond}
	list, err := Compare(c, Placement(), []uint64{1}, unseen)
	if err != nil {
		t.Fatal(err)
	}
	on, off := list[0], list[1]
	if on.AdapterLoads > off.AdapterLoads/2 || on.TTFTMean > off.TTFTMean {
		t.Errorf("%v loads and %.3f s with placement, %v loads and %.3f s without", on.AdapterLoads, on.TTFTMean, off.AdapterLoads, off.TTFTMean)
	}
	var b strings.Builder
	if err := WriteEffects(&b, list); err != nil || strings.Count(b.String(), "\n") != 3 {
		t.Errorf("%v: %s", err, b.String())
	}
}

// TestAPodRunsNoMoreAdaptersThanItMay plays requests with adapters that begin and end: the engine runs requests of at most
// PerPod adapters, which have been loaded, and every request has its turn.
func TestAPodRunsNoMoreAdaptersThanItMay(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 4))
		engine, err := enginemodel.New(enginemodel.Config{NumBlocks: 1000, BlockSize: 16, Time: profile(t, "8b-h100").Time, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		a := adapters{Adapters: Adapters{PerPod: 1 + rng.IntN(3), Load: time.Second}, here: map[string]*adapter{}}
		now, sentSoFar, ended := time.Duration(0), 0, 0
		var running []*sent
		waiting := map[*sent]bool{}
		for step := 0; ended < 60; step++ {
			if step > 5000 {
				t.Fatalf("seed %d: %d of 60 ended: somebody waits for ever", seed, ended)
			}
			now += time.Duration(rng.IntN(700)) * time.Millisecond
			if sentSoFar < 60 && rng.IntN(2) == 0 {
				r, err := engine.NewRequest(enginemodel.Spec{Prompt: []uint32{1, 2, 3}, MaxTokens: 1, Adapter: adapterName(rng.IntN(6))})
				if err != nil {
					t.Fatal(err)
				}
				x := &sent{request: r}
				a.waiting, waiting[x] = append(a.waiting, x), true
				sentSoFar++
			} else if len(running) > 0 {
				i := rng.IntN(len(running))
				a.left(now, running[i].request.Adapter)
				running = append(running[:i], running[i+1:]...)
				ended++
			}
			if again := a.add(now, engine); again != 0 && again <= now {
				t.Fatalf("seed %d: call again in the past", seed)
			}
			for x := range waiting {
				still := false
				for _, y := range a.waiting {
					still = still || x == y
				}
				if !still {
					delete(waiting, x)
					running = append(running, x)
					if one := a.here[x.request.Adapter]; one == nil || one.ready > now {
						t.Fatalf("seed %d: a request runs whose adapter is not there", seed)
					}
				}
			}
			users := map[string]int{}
			for _, x := range running {
				users[x.request.Adapter]++
			}
			for name, n := range users {
				if a.here[name] == nil || a.here[name].users != n {
					t.Fatalf("seed %d: %s has %d users, the pod says %+v", seed, name, n, a.here[name])
				}
			}
			if len(a.here) > a.PerPod {
				t.Fatalf("seed %d: %d adapters, %d may run", seed, len(a.here), a.PerPod)
			}
		}
	}
}

// TestAShadowIsComparedAndChangesNothing: the strategy itself in its shadow agrees always and saves nothing; a blind one
// agrees seldom and would lose; and the run is the same as without.
func TestAShadowIsComparedAndChangesNothing(t *testing.T) {
	c := small(t, "MarginalCost")
	alone := run(t, c)
	c.Shadows = []picker.ShadowSpec{
		{Name: "itself", Strategy: policy.Default(policy.MarginalCost), Percent: 100},
		{Name: "blind", Strategy: policy.Default(policy.RoundRobin), Percent: 100},
	}
	r := run(t, c)
	if r.TTFTSeconds != alone.TTFTSeconds {
		t.Errorf("shadows change the run: %+v, without them %+v", r.TTFTSeconds, alone.TTFTSeconds)
	}
	itself, blind := r.Shadows[0], r.Shadows[1]
	if itself.Compared != 400 || itself.Agreed != 400 || itself.SavedSeconds+itself.LostSeconds > 0 {
		t.Errorf("the strategy in its own shadow: %+v", itself)
	}
	if blind.Agreed > 200 || blind.LostSeconds <= blind.SavedSeconds {
		t.Errorf("round robin in its shadow: %+v", blind)
	}
}

// TestAHotPrefixIsSpread: no pod gets much more than its part of a burst on one prefix, and it is answered sooner than by
// the pod that has it alone.
func TestAHotPrefixIsSpread(t *testing.T) {
	w, err := Generate("fanout", 600, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := small(t, "MarginalCost")
	c.Workload, c.Pods, c.Speed = w, 8, 1.5
	variants, err := Spread()
	if err != nil {
		t.Fatal(err)
	}
	list, err := Compare(c, variants, []uint64{1}, unseen)
	if err != nil {
		t.Fatal(err)
	}
	if ours, literal := list[0], list[2]; ours.TTFTMean > literal.TTFTMean || ours.MostOnOnePod > 0.25 {
		t.Errorf("%.3f s with %.2f of the requests on one pod, %.3f s where the prefix stays", ours.TTFTMean, ours.MostOnOnePod, literal.TTFTMean)
	}
}

// unseen ignores the progress of finished runs.
func unseen(int, int) {}
