package picker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/test/race"
)

// notes is a Recorder.
type notes struct {
	all            bool
	asked          int64
	decided, ended []api.Decision
}

func (n *notes) Wants(time.Time) (int64, bool) { n.asked++; return n.asked - 1, n.all }
func (n *notes) Decided(d api.Decision) uint64 {
	n.decided = append(n.decided, d)
	return uint64(len(n.decided))
}
func (n *notes) Ended(d api.Decision) { n.ended = append(n.ended, d) }

// TestWhatIsExplainedIsWhatHappens: the next pick goes where the explanation says, to the same candidates in the same
// order, and the explanation itself leaves no trace.
func TestWhatIsExplainedIsWhatHappens(t *testing.T) {
	for _, typ := range []policy.Type{policy.MarginalCost, policy.LongestPrefix, policy.RoundRobin, policy.Random, policy.Unified, policy.Rendezvous, policy.ApproximatePrefix} {
		t.Run(string(typ), func(t *testing.T) {
			c, rng := newClock(), rand.New(rand.NewPCG(1, 2))
			spec := testSpec(t, 6)
			spec.Policy.Strategy = policy.Default(typ)
			spec.Endpoints[4].Ready = false
			p := newPicker(t, c, spec)
			for i := range 4 {
				hold(feed(t, p, fmt.Sprint("pod-", i)), keysOf(t, "m", 0, 256*(1+rng.IntN(4)))...)
			}
			for range 60 {
				c.advance(time.Duration(rng.IntN(100)) * time.Millisecond)
				body := completion("m", 1000*rng.IntN(2), 100+rng.IntN(2000), true)
				before := p.Stats()
				e, err := p.Explain(context.Background(), &Request{Route: openai.Completions, Body: body})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, p.Stats()); diff != "" {
					t.Fatalf("the explanation changed what is known:\n%s", diff)
				}
				if len(e.Candidates) != 5 || len(e.LeftOut) != 1 || e.LeftOut[0] != (api.LeftOut{Pod: "pod-4", Reason: "not-ready"}) {
					t.Fatalf("%d candidates, left out %v", len(e.Candidates), e.LeftOut)
				}
				d := pick(t, p, body)
				for i := range d.Targets {
					got, want := e.Candidates[i], &d.Targets[i]
					if got.Pod != want.Endpoint.Pod || got.Cost != want.Cost.First || got.Matched != want.Predicted || got.InFlight != want.InFlight {
						t.Fatalf("place %d: explained %+v, picked %s at %v with %d", i, got, want.Endpoint.Pod, want.Cost, want.Predicted)
					}
				}
				if rng.IntN(3) > 0 {
					d.End(Completed)
				}
			}
		})
	}
}

func TestExplanationsAreRefusedLikeRequests(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 0))
	for name, tc := range map[string]struct {
		body string
		want int
	}{
		"no endpoint":   {string(completion("m", 0, 10, true)), 503},
		"unknown model": {string(completion("x", 0, 10, true)), 404},
		"no JSON":       {"{", 400},
	} {
		_, err := p.Explain(context.Background(), &Request{Route: openai.Completions, Body: []byte(tc.body)})
		var refused *Error
		if !errors.As(err, &refused) || refused.Status != tc.want {
			t.Errorf("%s: %v, want %d", name, err, tc.want)
		}
	}
}

func TestDecisionsAreTakenDownWithAllCandidates(t *testing.T) {
	c, n := newClock(), &notes{all: true}
	spec := testSpec(t, 5)
	spec.Policy.Strategy = policy.Default(policy.MarginalCost)
	p := New(Options{Now: c.Now, Recorder: n})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	hold(feed(t, p, "pod-3"), keysOf(t, "m", 0, 1024)...)
	d := pick(t, p, completion("m", 0, 1040, true))
	c.advance(250 * time.Millisecond)
	d.FirstToken()
	d.Usage(1040, 1024)
	c.advance(time.Second)
	d.End(Completed)
	d.End(Failed) // counts no more
	if len(n.decided) != 1 || len(n.ended) != 1 {
		t.Fatalf("%d decided, %d ended", len(n.decided), len(n.ended))
	}
	at, end := n.decided[0], n.ended[0]
	if len(at.Candidates) != 5 || at.Candidates[0].Pod != "pod-3" || at.Candidates[0].Matched != 1024 || len(at.Candidates[0].Terms) == 0 || at.Outcome != "" || at.Cached != -1 {
		t.Errorf("at the pick: %+v", at)
	}
	if end.ID != 1 || end.Outcome != "completed" || end.Cached != 1024 || end.FirstToken != 250 || end.Duration != 1250 {
		t.Errorf("at the end: %+v", end)
	}
}

// TestWhatIsShownNamesNoPrompt: neither text nor keys nor sessions nor users.
func TestWhatIsShownNamesNoPrompt(t *testing.T) {
	n := &notes{all: true}
	spec := testSpec(t, 2)
	spec.Policy.SessionKeys = []SessionKey{{Type: "BodyField", Name: "user"}}
	p := New(Options{Recorder: n})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	hold(feed(t, p, "pod-1"), keysOf(t, "m", 0, 1024)...)
	body := []byte(strings.Replace(string(completion("m", 0, 1040, true)), "{", `{"user":"somebody",`, 1))
	for range 3 {
		pick(t, p, body).End(Completed)
	}
	text := []byte(`{"model":"m","user":"somebody","prompt":"a secret of mine, and more than a few words of it so that there is a chunk"}`)
	pick(t, p, text).End(Completed)
	e, err := p.Explain(context.Background(), &Request{Route: openai.Completions, Body: text})
	if err != nil {
		t.Fatal(err)
	}
	prefixes := p.Prefixes(10)
	if len(prefixes) != 1 || prefixes[0].Tokens != 1024 || len(prefixes[0].Holders) != 1 || prefixes[0].Holders[0].Pod != "pod-1" || prefixes[0].Holders[0].Tiers["GPU"] != 1024 {
		t.Errorf("prefixes %+v", prefixes)
	}
	shown, err := json.Marshal([]any{n.decided, n.ended, e, prefixes})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{
		"secret", "somebody", fmt.Sprint(endpoint.Hash("somebody")), fmt.Sprint(uint64(keysOf(t, "m", 0, 1024)[63])),
		fmt.Sprintf("%x", uint64(keysOf(t, "m", 0, 1024)[63])), "[0,1,2,3",
	} {
		if strings.Contains(string(shown), secret) {
			t.Errorf("%q is shown: %s", secret, shown)
		}
	}
}

// TestNobodyWatchingCostsNothing: a pick that is not taken down allocates as much as without a recorder.
func TestNobodyWatchingCostsNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("pools keep less under the race detector")
	}
	body := completion("m", 0, 1040, true)
	allocations := func(r Recorder) float64 {
		p := New(Options{Recorder: r})
		if err := p.Apply([]Spec{testSpec(t, 64)}); err != nil {
			t.Fatal(err)
		}
		return testing.AllocsPerRun(200, func() { pick(t, p, body).End(Completed) })
	}
	if without, with := allocations(nil), allocations(&notes{}); with > without {
		t.Errorf("%v allocations, %v without a recorder", with, without)
	}
}

// TestTheIndexKeepsToItsMemory: what the pool allows is in force from the first block on, and changes with it.
func TestTheIndexKeepsToItsMemory(t *testing.T) {
	spec := testSpec(t, 2)
	spec.IndexMemory = 1 << 20
	p := newPicker(t, newClock(), spec)
	fill := func(first, n int) int64 {
		for i := range n {
			hold(feed(t, p, fmt.Sprint("pod-", i%2)), keysOf(t, "m", first+i, 1024)...)
		}
		return p.current.Load().pools[0].index.(*kvindex.Index).Bytes()
	}
	if bytes := fill(0, 1200); bytes > spec.IndexMemory || bytes < spec.IndexMemory/2 {
		t.Errorf("the index takes %d bytes, allowed are %d", bytes, spec.IndexMemory)
	}
	more := spec
	more.IndexMemory = 4 << 20
	if err := p.Apply([]Spec{more}); err != nil {
		t.Fatal(err)
	}
	if bytes := fill(5000, 1200); bytes <= spec.IndexMemory || bytes > more.IndexMemory {
		t.Errorf("the index takes %d bytes, allowed are %d now", bytes, more.IndexMemory)
	}
}
