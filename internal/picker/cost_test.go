package picker

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// chooser is a picker of n endpoints, each of which holds 512 blocks of a request and has something to do, and a
// function that chooses for it as choose does up to the decision.
func chooser(t testing.TB, n int) func() {
	t.Helper()
	const blocks = 512
	spec := testSpec(t, n)
	spec.Policy.Strategy = policy.Default(policy.MarginalCost)
	clock := newClock()
	p := New(Options{Now: clock.Now, Log: logr.Discard()})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	keys := keysOf(t, "m", 1, blocks*16)
	for i, f := range p.Feeds() {
		hold(f, keys[:blocks-i%7]...)
		p.Observe(f.Endpoint.ID, clock.Now(), load.Report{Running: 1, KVUsage: 0.5, KVTokens: 400_000})
	}
	v := p.current.Load().pools[0]
	for i, m := range v.members {
		for range 1 + i%5 {
			m.load.Book(clock.Now(), load.WorkOf(500, 1000), true)
		}
	}
	s := p.scratch.Get().(*scratch)
	s.request.Model = "m"
	in := &asked{prompt: prompt{keys: keys, tokens: blocks*16 + 100, source: TokensGiven}}
	return func() {
		now := p.now()
		at := place{v: v}
		s.candidates = v.eligible(now, &at, in.allow, s)
		v.match(s, &in.prompt, true)
		s.question = v.question(s, in, now)
		s.costs = resize(s.costs, len(s.candidates))
		v.strategy.Score(&s.question, s.candidates, s.costs)
		s.order = policy.Rank(&s.question, s.candidates, s.costs, s.order, spec.Policy.Attempts)
		if len(s.order) != min(n, spec.Policy.Attempts) || s.matches[s.order[0]].Blocks() == 0 {
			panic(fmt.Sprint("chose ", s.order))
		}
	}
}

func TestAChoiceDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("pools keep less under the race detector")
	}
	choose := chooser(t, 64)
	choose()
	if n := testing.AllocsPerRun(50, choose); n != 0 {
		t.Errorf("a choice allocates %v times", n)
	}
}

// BenchmarkChoose is the pick from the keys on, up to the decision: 512-block matches, the default strategy.
func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{8, 64, 256} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			choose := chooser(b, n)
			choose()
			b.ReportAllocs()
			for b.Loop() {
				choose()
			}
		})
	}
}
