package picker

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/test/race"
)

// played is a pool whose engines hold all that they were sent, with sessions of very different rates that share a
// system prompt.
type played struct {
	t      *testing.T
	picker *Picker
	clock  *clock
	random *rand.Rand
	spec   Spec
	keys   map[int][]kvblock.Key // by session
	held   map[string]bool       // by pod and session
	hit    int                   // tokens
	asked  int
}

func newPlayed(t *testing.T, seed uint64) *played {
	t.Helper()
	w := &played{t: t, clock: newClock(), random: rand.New(rand.NewPCG(seed, 9)), spec: testSpec(t, 8), keys: map[int][]kvblock.Key{}, held: map[string]bool{}}
	w.spec.Policy.Strategy = policy.Default(policy.LongestPrefix)
	w.spec.Policy.Strategy.LongestPrefix.MinMatch = 0.5 // the system prompt alone attracts no request
	w.picker = newPicker(t, w.clock, w.spec)
	return w
}

// play requests: a system prompt of 320 tokens, which all share, and 960 of one of 60 sessions, some of them asking a
// hundred times as often as others.
func (w *played) play(requests int) {
	w.t.Helper()
	const system, own, sessions = 320, 960, 60
	for range requests {
		w.clock.advance(100 * time.Millisecond)
		u := w.random.Float64()
		session := int(sessions * u * u * u)
		ids := append(idsOf(0, system), idsOf(100_000+10_000*session, own)...)
		keys := w.keys[session]
		if keys == nil {
			keys = kvblock.AppendKeys(nil, testSeed(w.t).Root("m", ""), ids, 16)
			w.keys[session] = keys
		}
		d, _, err := w.picker.PickKeyed(&Keyed{Model: "m", Prompt: ids, Keys: keys, Streamed: true})
		if err != nil {
			w.t.Fatal(err)
		}
		w.asked += len(ids)
		w.hit += d.Targets[0].Predicted
		pod := d.Targets[0].Endpoint.Pod
		d.FirstToken()
		d.End(Completed)
		if at := fmt.Sprint(pod, session); !w.held[at] {
			w.held[at] = true
			hold(feed(w.t, w.picker, pod), keys...)
		}
	}
}

// remove pods, and return the hit ratio of the next requests.
func (w *played) remove(pods ...string) float64 {
	w.t.Helper()
	w.spec.Endpoints = slices.DeleteFunc(slices.Clone(w.spec.Endpoints), func(e endpoint.Endpoint) bool { return slices.Contains(pods, e.Pod) })
	if err := w.picker.Apply([]Spec{w.spec}); err != nil {
		w.t.Fatal(err)
	}
	w.hit, w.asked = 0, 0
	w.play(150)
	return float64(w.hit) / float64(w.asked)
}

// TestVictimsByValueCostTheFewestHits scales a pool from eight pods to six: after the two least valuable have gone more
// is hit than after nearly any other two.
func TestVictimsByValueCostTheFewestHits(t *testing.T) {
	seeds := uint64(3)
	if race.Enabled { // which has one goroutine to look at
		seeds = 1
	}
	for seed := range seeds {
		w := newPlayed(t, seed)
		w.play(1500)
		o, _ := w.picker.Operate("default/m")
		var pods []string
		for pod := range o.Pods {
			pods = append(pods, pod)
		}
		slices.SortFunc(pods, func(a, b string) int {
			return cmp.Or(cmp.Compare(o.Pods[a].Value, o.Pods[b].Value), cmp.Compare(a, b))
		})
		chosen := w.remove(pods[0], pods[1])
		var all []float64
		for i := range pods {
			for j := range i {
				again := newPlayed(t, seed)
				again.play(1500)
				all = append(all, again.remove(pods[i], pods[j]))
			}
		}
		slices.Sort(all)
		mean := 0.0
		for _, ratio := range all {
			mean += ratio / float64(len(all))
		}
		t.Logf("seed %d: hit ratio after the scale-down %.3f by value; of all 28 pairs mean %.3f, worst %.3f, best %.3f", seed, chosen, mean, all[0], all[len(all)-1])
		if better, _ := slices.BinarySearch(all, chosen+1e-9); better < len(all)*3/4 {
			t.Errorf("seed %d: %d of %d pairs would have been better", seed, len(all)-better, len(all))
		}
		if chosen < mean {
			t.Errorf("seed %d: %.3f is less than two at random, %.3f", seed, chosen, mean)
		}
	}
}
