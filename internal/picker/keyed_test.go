package picker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// TestTheLiveWayAndTheKeyedWayChooseAlike feeds the same random requests, events, reports and ends to two pickers: one
// gets bodies with token ids, as live traffic does, the other gets keys, as simulations do. Every ordered list of
// targets, with its costs and matches, must be the same.
func TestTheLiveWayAndTheKeyedWayChooseAlike(t *testing.T) {
	configs := map[string]policy.Config{
		"MarginalCost": {Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}},
		"sticky least loaded": {Type: policy.StickyLeastLoaded,
			StickyLeastLoaded: policy.StickyLeastLoadedConfig{PrefixTokens: 64}},
		"longest prefix": {Type: policy.LongestPrefix, LongestPrefix: policy.LongestPrefixConfig{MinMatch: 0.25, MaxLoad: 1.5}},
		"LMetric":        {Type: policy.LMetric},
		"least work":     {Type: policy.LeastPendingWork},
		"least load":     {Type: policy.LeastLoad},
		"round robin":    {Type: policy.RoundRobin},
		"rendezvous":     {Type: policy.Rendezvous},
	}
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			spec := testSpec(t, 6)
			spec.Policy.Strategy = config
			spec.Policy.SessionKeys = []SessionKey{{Type: "Header", Name: "x-session-id"}}
			live, keyed := newPicker(t, clock, spec), newPicker(t, clock, spec)
			rng := rand.New(rand.NewPCG(1, 2))
			type pair struct{ live, keyed *Decision }
			var open []pair
			for range 400 {
				clock.advance(time.Duration(rng.ExpFloat64() * float64(50*time.Millisecond)))
				switch op := rng.IntN(8); {
				case op < 4 || len(open) == 0:
					first, n := 1000*(1+rng.IntN(8)), 1+rng.IntN(1500)
					session := fmt.Sprint("s", rng.IntN(10))
					header := func(string) string { return session }
					a, err := live.Pick(context.Background(), &Request{Route: openai.Completions, Body: completion("m", first, n, true), Header: header})
					if err != nil {
						t.Fatal(err)
					}
					b, err := keyed.PickKeyed(&Keyed{Model: "m", Header: header, Prompt: idsOf(first, n), Keys: keysOf(t, "m", first, n), Streamed: true})
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(told(a), told(b)); diff != "" {
						t.Fatalf("the live way and the keyed way differ:\n%s", diff)
					}
					open = append(open, pair{a, b})
				case op == 4: // a pod announces what it was sent
					x := open[rng.IntN(len(open))]
					i := slices.IndexFunc(spec.Endpoints, func(e endpoint.Endpoint) bool { return e.Pod == x.live.Target().Endpoint.Pod })
					for _, p := range []*Picker{live, keyed} {
						feed := p.Feeds()[i]
						keys := slices.Clone(x.keyed.keys)
						feed.Writer.Store(kvblock.GPU, 0, kvindex.Parent{}, asHashes(keys), keys)
						p.Confirm(&feed, keys)
					}
				case op == 5:
					r := load.Report{KVUsage: rng.Float64(), KVTokens: 100_000, Waiting: rng.IntN(3)}
					id := spec.Endpoints[rng.IntN(6)].ID
					live.Observe(id, clock.Now(), r)
					keyed.Observe(id, clock.Now(), r)
				case op == 6:
					x := open[rng.IntN(len(open))]
					x.live.FirstToken()
					x.keyed.FirstToken()
				default:
					i := rng.IntN(len(open))
					open[i].live.End(Completed)
					open[i].keyed.End(Completed)
					open = append(open[:i], open[i+1:]...)
				}
			}
		})
	}
}

// choice is what a decision says of one of its targets.
type choice struct {
	Pod                            string
	Match                          kvindex.Match
	Predicted, Confirmed, InFlight int
	Cost                           policy.Cost
}

func told(d *Decision) []choice {
	var all []choice
	for i := range d.Targets {
		t := &d.Targets[i]
		all = append(all, choice{t.Endpoint.Pod, t.Match, t.Predicted, t.Confirmed, t.InFlight, t.Cost})
	}
	return all
}

// asHashes names blocks by their keys.
func asHashes(keys []kvblock.Key) []kvevent.Hash {
	hashes := make([]kvevent.Hash, len(keys))
	for i, key := range keys {
		hashes[i] = kvevent.Hash(key)
	}
	return hashes
}

// idsOf are the ids of a completion.
func idsOf(first, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(first + i) //nolint:gosec // small
	}
	return ids
}
