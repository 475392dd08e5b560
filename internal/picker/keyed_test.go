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
	for _, strategy := range policy.Types() {
		config := policy.Default(strategy)
		config.Random.Seed = 1
		t.Run(string(strategy), func(t *testing.T) {
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
					b, _, err := keyed.PickKeyed(&Keyed{Model: "m", Header: header, Prompt: idsOf(first, n), Keys: keysOf(t, "m", first, n), Streamed: true})
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(choices(a), choices(b)); diff != "" {
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

func choices(d *Decision) []choice {
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
		ids[i] = uint32(first + i)
	}
	return ids
}

// TestRendezvousAsksForSessionsInItsOwnOrder: three headers, the policy's keys, the body.
func TestRendezvousAsksForSessionsInItsOwnOrder(t *testing.T) {
	spec := testSpec(t, 16)
	spec.Policy.Strategy = policy.Default(policy.Rendezvous)
	spec.Policy.SessionKeys = []SessionKey{{Type: "BodyField", Name: "user"}}
	p := newPicker(t, newClock(), spec)
	to := func(body string, headers map[string]string) string {
		d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: []byte(body), Header: func(n string) string { return headers[n] }})
		if err != nil {
			t.Fatal(err)
		}
		defer d.End(Completed)
		return d.Targets[0].Endpoint.Pod
	}
	body := `{"model":"m","prompt":[1],"user":"u"}`
	other := `{"model":"m","prompt":[2],"user":"u"}`
	full := map[string]string{"x-semantic-cluster-id": "c", "x-session-id": "s", "x-user-id": "i"}
	for name, alike := range map[string][2]string{
		"the cluster before the session": {to(body, full), to(other, map[string]string{"x-semantic-cluster-id": "c", "x-session-id": "z"})},
		"the session before the user":    {to(body, map[string]string{"x-session-id": "c", "x-user-id": "i"}), to(body, full)},
		"the user before the body":       {to(body, map[string]string{"x-user-id": "c"}), to(other, map[string]string{"x-user-id": "c"})},
		"a field of the body":            {to(body, nil), to(other, nil)},
		"the body":                       {to(`{"model":"m","prompt":[1]}`, nil), to(`{"model":"m","prompt":[1]}`, nil)},
	} {
		if alike[0] != alike[1] {
			t.Errorf("%s: equal keys went to %s and %s", name, alike[0], alike[1])
		}
	}
	bodies := map[string]bool{}
	for i := range 64 {
		bodies[to(fmt.Sprintf(`{"model":"m","prompt":[1],"n":%d}`, i+1), nil)] = true
	}
	if len(bodies) < 10 {
		t.Errorf("64 different bodies went to %d of 16 endpoints", len(bodies))
	}
}

// TestASessionFollowsItsLastRequest: a retry moves the session's endpoint, and it is forgotten when it has been idle.
func TestASessionFollowsItsLastRequest(t *testing.T) {
	clock := newClock()
	spec := testSpec(t, 4)
	spec.Policy.Strategy, spec.Policy.SessionIdle = policy.Default(policy.Sticky), time.Minute
	spec.Policy.SessionKeys = []SessionKey{{Type: "Header", Name: "x-session-id"}}
	p := newPicker(t, clock, spec)
	turn := func() *Decision {
		d, _, err := p.PickKeyed(&Keyed{Model: "m", Header: func(string) string { return "s" }, Prompt: idsOf(1, 100), Keys: keysOf(t, "m", 1, 100)})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := turn()
	first.Begin(1) // the first endpoint has failed
	moved := first.Targets[1].Endpoint.Pod
	for range 3 { // none of them ends: load does not matter
		if d := turn(); d.Targets[0].Endpoint.Pod != moved {
			t.Fatalf("a turn went to %s, the one before to %s", d.Targets[0].Endpoint.Pod, moved)
		}
	}
	clock.advance(2 * time.Minute)
	if d := turn(); d.Targets[0].Endpoint.Pod == moved {
		t.Errorf("after two minutes the session is still at %s, which has the most requests", moved)
	}
}
