package picker

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// counting counts how often a strategy is asked.
type counting struct {
	policy.Policy
	asked int
}

func (c *counting) Score(r *policy.Request, candidates []policy.Candidate, costs []policy.Cost) {
	c.asked++
	c.Policy.Score(r, candidates, costs)
}

// TestAPickIsScoredOnce: whether all, some or none of the endpoints have room, and it is the same choice.
func TestAPickIsScoredOnce(t *testing.T) {
	for busy := range 3 {
		p := started(t, waitingPool(t, 3))
		keys := keysOf(t, "m", 0, 8000)
		feeds := p.Feeds()
		hold(feeds[2], keys...)
		for i := range busy {
			busyWith(t, p, feeds[i].Endpoint.Pod, 20_000)
		}
		v := p.current.Load().pools[0]
		c := &counting{Policy: v.strategy}
		v.strategy = c
		d, w, err := p.PickKeyed(&Keyed{Model: "m", Prompt: idsOf(0, 8000), Keys: keys, Streamed: true})
		if err != nil || w != nil {
			t.Fatal(w, err)
		}
		if at := d.Targets[0]; c.asked != 1 || at.Endpoint.Pod != feeds[2].Endpoint.Pod || at.Match.Blocks() < len(keys)-1 {
			t.Errorf("%d endpoints are full: scored %d times, sent to %s with a match of %d blocks", busy, c.asked, at.Endpoint.Pod, at.Match.Blocks())
		}
		d.End(Completed)
	}
}

// TestALookIsBounded: however many prompts the waiting requests have, and whatever was reloaded.
func TestALookIsBounded(t *testing.T) {
	const endpoints, requests, prompts = 64, 20, 32
	c := newClock()
	spec := waitingPool(t, endpoints)
	spec.Policy.Admission.Limits.TTL = 1000 * time.Hour
	p := New(Options{Now: c.Now, Log: logr.Discard()})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for _, f := range p.Feeds()[1:] { // one has room, but not what they need
		busyWith(t, p, f.Endpoint.Pod, 8000)
		hold(f, keysOf(t, "m", 0, 40_000)...)
	}
	q := &p.current.Load().pools[0].admission
	var all []*waiter
	for i := range requests {
		keys := keysOf(t, "m", 0, 40_000)
		_, w, err := p.PickKeyed(&Keyed{Model: "m", Header: func(string) string { return "" }, Prompt: idsOf(0, 40_000), Keys: keys, Streamed: true})
		if w == nil {
			t.Fatal(i, err)
		}
		for j := range prompts - 1 {
			w.waiter.state.add([]kvblock.Key{kvblock.Key(j)}, 16, 16)
		}
		all = append(all, w.waiter)
	}
	placed := func() (n int) {
		for _, w := range all {
			if w.placement.at.Equal(c.Now()) {
				n++
			}
		}
		return n
	}
	c.advance(10 * placementLasts)
	lookAt(p)
	if n := placed(); n*endpoints*prompts >= maxCompared+endpoints*prompts || n == 0 {
		t.Errorf("a look places %d requests of %d prompts at %d endpoints", n, prompts, endpoints)
	}
	for range requests {
		c.advance(lookAgain)
		lookAt(p)
	}
	if want := requests * endpoints * prompts; q.compared != want {
		t.Errorf("%d comparisons place them all, want %d", q.compared, want)
	}
	// A tenth of a core, as long as they wait.
	least := 10 * (requests*placementCost + time.Duration(q.compared)*endpointCost)
	before := all[0].placement.at
	for range 100 {
		if c.advance(lookAgain); all[0].placement.at.Equal(before) {
			lookAt(p)
		}
	}
	if n := p.Stats()[0].Admission.Waiting; n != requests {
		t.Fatalf("%d requests wait, want %d", n, requests)
	}
	if lasted := all[0].placement.at.Sub(before); lasted < least || lasted > least+20*lookAgain {
		t.Errorf("a placement lasts %s, want %s", lasted, least)
	}
	m := p.current.Load().pools[0].members[5]
	m.reloads.active.Store(true)
	s := &scratch{index: []int{4, 5}}
	one := prompt{keys: make([]kvblock.Key, 800), more: []further{{keys: make([]kvblock.Key, 80)}}}
	plain := p.current.Load().pools[0].comparisons(s, &one)
	one.adapter = "a"
	if n := p.current.Load().pools[0].comparisons(s, &one); plain != 4 || n != 4+880/keysPerPrompt {
		t.Errorf("%d comparisons, and %d for a reloaded adapter", plain, n)
	}
	q.close("m")
	if q.compared != 0 {
		t.Errorf("%d comparisons are left of requests that have gone", q.compared)
	}
}

// BenchmarkLook is one look at a long queue, all of whose requests have to wait for a large pool.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{6, 64} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			c := newClock()
			spec := waitingPool(b, n)
			spec.Policy.Admission.Limits.TTL = 1000 * time.Hour
			p := New(Options{Now: c.Now, Log: logr.Discard()})
			if err := p.Apply([]Spec{spec}); err != nil {
				b.Fatal(err)
			}
			shared := idsOf(0, 8000)
			keys := kvblock.AppendKeys(nil, testSeed(b).Root("m", ""), shared, 16)
			for i, f := range p.Feeds() {
				if i < len(p.Feeds())-1 { // one has room, but not what they need
					busyWith(b, p, f.Endpoint.Pod, 5200)
					hold(f, keys...)
				}
			}
			for i := range 1000 {
				prompt := append(idsOf(0, 8000), uint32(i))
				_, w, err := p.PickKeyed(&Keyed{Model: "m", Header: func(string) string { return "" }, Prompt: prompt,
					Keys: kvblock.AppendKeys(nil, testSeed(b).Root("m", ""), prompt, 16), Streamed: true})
				if w == nil {
					b.Fatal(i, err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				c.advance(lookAgain)
				lookAt(p)
			}
			if p.Stats()[0].Admission.Waiting < 900 {
				b.Fatal("they do not wait")
			}
		})
	}
}
