package picker

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// watched is a strategy that sees which endpoints are being chosen among, and lets others run meanwhile.
type watched struct {
	policy.Policy
	see func(hash uint64)
}

func (w watched) Score(r *policy.Request, candidates []policy.Candidate, out []policy.Cost) {
	runtime.Gosched()
	for i := range candidates {
		w.see(candidates[i].Hash)
	}
	w.Policy.Score(r, candidates, out)
}

// lazy answers questions for tokens when others have had their turn.
type lazy struct{}

func (lazy) Tokens(context.Context, *endpoint.Endpoint, *openai.Request, []byte, string) (Rendered, error) {
	time.Sleep(200 * time.Microsecond)
	return Rendered{IDs: make([]uint32, 100)}, nil
}

// TestNoChoiceIsMadeAmongMarkedEndpoints marks and unmarks endpoints while many choose: once Apply has returned no
// choice under way has a marked one among its candidates, however long ago it began.
func TestNoChoiceIsMadeAmongMarkedEndpoints(t *testing.T) {
	const endpoints, rounds, askers = 4, 300, 8
	var marked [endpoints]atomic.Bool
	var wrong, seen atomic.Int64
	hashes := map[uint64]int{}
	spec := testSpec(t, endpoints)
	for i := range spec.Endpoints {
		hashes[spec.Endpoints[i].ID.Hash()] = i
	}
	p := New(Options{
		Log: logr.Discard(), Renderer: lazy{},
		NewStrategy: func(c policy.Config) (policy.Policy, error) {
			strategy, err := policy.New(c)
			return watched{strategy, func(hash uint64) {
				seen.Add(1)
				if marked[hashes[hash]].Load() {
					wrong.Add(1)
				}
			}}, err
		},
	})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var askings sync.WaitGroup
	for i := range askers {
		askings.Go(func() {
			body := completion("m", i, 64, true)
			if i%2 == 0 { // its tokens take a while
				body = []byte(`{"model":"m","prompt":"a text","stream":true}`)
			}
			for !done.Load() {
				d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: body})
				if err != nil {
					t.Error(err)
					return
				}
				d.End(Completed)
			}
		})
	}
	for round := range rounds {
		i := round % endpoints
		next := testSpec(t, endpoints)
		next.Endpoints[i].Terminating = true
		for j := range marked {
			marked[j].Store(marked[j].Load() && j == i) // a formerly marked endpoint can be chosen again
		}
		if err := p.Apply([]Spec{next}); err != nil {
			t.Error(err)
		}
		marked[i].Store(true)
		for seen, from := seen.Load, seen.Load(); seen() < from+3; {
			runtime.Gosched()
		}
	}
	done.Store(true)
	askings.Wait()
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d times a marked endpoint was a candidate, of %d", n, seen.Load())
	}
	assertIdle(t, p)
}

// TestRequestsGoOnWhereAMarkIsSet: the mark stops choices, and fallbacks to the endpoint, but not what is under way.
func TestRequestsGoOnWhereAMarkIsSet(t *testing.T) {
	c := newClock()
	spec := testSpec(t, 3)
	p := newPicker(t, c, spec)
	d := pick(t, p, completion("m", 0, 64, true))
	if len(d.Targets) != 3 {
		t.Fatalf("%d targets, want 3", len(d.Targets))
	}
	mark := func(marked ...int) {
		t.Helper()
		next := testSpec(t, 3)
		for i := range next.Endpoints {
			for _, m := range marked {
				if next.Endpoints[i].ID == d.Targets[m].Endpoint.ID {
					next.Endpoints[i].Terminating = true
				}
			}
		}
		if err := p.Apply([]Spec{next}); err != nil {
			t.Fatal(err)
		}
	}
	mark(0, 1)
	if !d.Begin(0) || d.Index() != 0 {
		t.Error("the request is with its endpoint already")
	}
	if d.Begin(1) || d.Index() != 0 {
		t.Error("a fallback to a marked endpoint")
	}
	if !d.Begin(2) || d.Index() != 2 {
		t.Error("a fallback to another one")
	}
	mark()
	if !d.Begin(1) || d.Index() != 1 {
		t.Error("the mark is lifted")
	}
	mark(1)
	d.FirstToken()
	d.End(Completed)
	assertIdle(t, p)
}
