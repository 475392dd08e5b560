package picker

import (
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/test/race"
)

// chooser sets up a picker of n endpoints. Each holds 512 blocks of a request, has a learned speed and has something to do.
// The function returned chooses for it as choose does up to the decision, a microsecond later each time.
func chooser(t testing.TB, n int) func() {
	t.Helper()
	const blocks = 512
	spec := testSpec(t, n)
	spec.Policy.Strategy = policy.Default(policy.MarginalCost)
	clock := &clock{now: time.Now()} // with a monotonic reading, as in production
	p := New(Options{Now: clock.Now, Log: logr.Discard()})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	keys := keysOf(t, "m", 1, blocks*16)
	for i, f := range p.Feeds() {
		hold(f, keys[:blocks-i%7]...)
	}
	v := p.current.Load().pools[0]
	for i, m := range v.members {
		for n := range 20 {
			b := m.load.Book(clock.Now(), load.WorkOf(1000+500*n, 1000), true)
			clock.advance(time.Duration(20+10*n+i%7) * time.Millisecond)
			b.FirstToken(clock.Now())
			if n < 18 {
				b.Release(clock.Now())
			}
		}
		for range 1 + i%5 {
			m.load.Book(clock.Now(), load.WorkOf(500, 1000), true)
		}
	}
	for _, f := range p.Feeds() {
		p.Observe(f.Endpoint.ID, clock.Now(), load.Report{Running: 1, KVUsage: 0.5, KVTokens: 400_000})
	}
	s := p.scratch.Get().(*scratch)
	s.request.Model = "m"
	state := &pickState{prompt: prompt{keys: keys, tokens: blocks*16 + 100, source: TokensGiven}}
	return func() {
		clock.advance(time.Microsecond)
		now := p.now()
		at := place{v: v}
		s.candidates = v.eligible(now, &at, state.allow, s)
		v.match(s, &state.prompt, true)
		s.question = v.question(s, state, now)
		v.rank(s, &s.question, now)
		if len(s.order) != min(n, spec.Policy.Attempts) || s.matches[s.order[0]].Blocks() == 0 {
			panic(fmt.Sprint("chose ", s.order))
		}
	}
}

// TestCandidatesAreFresh: their places are reused, and nothing of the former candidates is left.
func TestCandidatesAreFresh(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 3))
	v := p.current.Load().pools[0]
	at := place{v: v}
	fresh, used := new(scratch), new(scratch)
	used.candidates = make([]policy.Candidate, 8)
	for i := range used.candidates {
		c := &used.candidates[i]
		*c = policy.Candidate{Hash: 9, Delay: 9, Loads: 9, Routed: 9, Grain: 9, Load: load.View{InFlight: 9, Adapters: "9"}}
		c.Match.Speculative = 9
	}
	if got, want := v.eligible(p.now(), &at, nil, used), v.eligible(p.now(), &at, nil, fresh); !slices.Equal(got, want) {
		t.Errorf("candidates %+v, want %+v", got, want)
	}
	if n := reflect.TypeFor[policy.Candidate]().NumField(); n != 7 {
		t.Errorf("a candidate has %d fields: this test knows of 7", n)
	}
}

func TestAChoiceDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Skip("pools keep less under the race detector")
	}
	choose := chooser(t, 64)
	choose()
	if n := testing.AllocsPerRun(50, choose); n != 0 {
		t.Errorf("a choice allocates %v times", n)
	}
}

// BenchmarkChoose is the pick from the keys on, up to the decision: 512-block matches, the default strategy. cpu-ns/op is
// processor time.
func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{8, 64, 256} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			choose := chooser(b, n)
			choose()
			b.ReportAllocs()
			start := processCPU()
			for b.Loop() {
				choose()
			}
			b.ReportMetric(float64(processCPU()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processCPU is the processor time of all threads, in nanoseconds.
func processCPU() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
