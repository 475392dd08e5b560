package lab

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

func slice(t testing.TB) *Workload {
	t.Helper()
	list, err := trace.Slice()
	if err != nil {
		t.Fatal(err)
	}
	return FromTrace("conversation", list)
}

func profile(t testing.TB, name string) enginemodel.Profile {
	t.Helper()
	p, err := enginemodel.LookupProfile(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func only(t testing.TB, name string) Strategy {
	t.Helper()
	list, err := Strategies(name)
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

// BenchmarkRun plays ten minutes of the conversation trace on 8 pods; a request is the unit.
func BenchmarkRun(b *testing.B) {
	w := slice(b)
	for b.Loop() {
		if _, err := Run(Config{Workload: w, Strategy: only(b, "MarginalCost"), Pods: 8, Profile: profile(b, "8b-h100"), Seed: 1}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(w.Requests)), "µs/request")
}

// small is a run of a moment.
func small(t testing.TB, strategy string) Config {
	return Config{Workload: slice(t).First(400), Strategy: only(t, strategy), Pods: 4, Profile: profile(t, "8b-h100"),
		BlockTokens: 128, Seed: 1, EventLag: 10 * time.Millisecond}
}

func run(t testing.TB, c Config) *Result {
	t.Helper()
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRunsShareAWorkload: what one run has worked out of the prompts serves the next, but not one with other blocks.
func TestRunsShareAWorkload(t *testing.T) {
	result := func(w *Workload, blockTokens int) Times {
		c := small(t, "MarginalCost")
		c.Workload, c.BlockTokens = w, blockTokens
		return run(t, c).TTFTSeconds
	}
	for _, name := range []string{"agentic", ""} {
		fresh := func() *Workload {
			if name == "" {
				return slice(t).First(100)
			}
			w, err := Generate(name, 100, 1)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		shared := fresh()
		for i, blockTokens := range []int{128, 64, 128, 256} {
			if got, want := result(shared, blockTokens), result(fresh(), blockTokens); got != want {
				t.Errorf("%q, run %d in blocks of %d tokens: %+v, of a workload of its own %+v", name, i, blockTokens, got, want)
			}
		}
	}
}

func TestASeedGivesTheSameResultAgain(t *testing.T) {
	long(t)
	for _, name := range []string{"MarginalCost", "Random", "RoundRobin", "Rendezvous"} {
		for _, think := range []bool{false, true} {
			c := small(t, name)
			c.Think, c.Pickers = think, 2
			a, b := run(t, c), run(t, c)
			for _, r := range []*Result{a, b} { // measured
				r.WallSeconds, r.DecisionSeconds = 0, Times{}
			}
			if diff := cmp.Diff(a, b, cmpopts.IgnoreUnexported(Result{})); diff != "" {
				t.Errorf("%s: the same seed gave two results:\n%s", name, diff)
			}
			c.Seed = 2
			if other := run(t, c); other.TTFTSeconds == a.TTFTSeconds {
				t.Errorf("%s: another seed gave the same times", name)
			}
		}
	}
}

// TestTheAccountAddsUp: every request is answered, on one pod, and no strategy finds more than an infinite cache.
func TestTheAccountAddsUp(t *testing.T) {
	for _, name := range Generated() {
		for _, think := range []bool{false, true} {
			w, err := Generate(name, 400, 1)
			if err != nil {
				t.Fatal(err)
			}
			c := small(t, "MarginalCost")
			c.Workload, c.Think = w, think
			r, bounds := run(t, c), BoundsOf(w, c.Pods, 400_000, c.BlockTokens)
			sum := 0
			for _, n := range r.RequestsPerPod {
				sum += n
			}
			if r.Requests != 400 || sum != 400 || r.Shed != 0 || r.Dropped.Requests != w.Dropped.Requests {
				t.Errorf("%s: %d requests answered, %d on pods, %d shed, of 400", name, r.Requests, sum, r.Shed)
			}
			if r.HitRatio > bounds.InfiniteCacheHitRatio+0.02 || bounds.PooledLRUHitRatio > bounds.InfiniteCacheHitRatio {
				t.Errorf("%s: hit ratio %.3f, bounds %+v", name, r.HitRatio, bounds)
			}
			if x := r.TTFTSeconds; !(0 < x.P50 && x.P50 <= x.P90 && x.P90 <= x.P99) || r.E2ESeconds.Mean <= x.Mean || r.Imbalance < 1 {
				t.Errorf("%s: impossible times: %+v, imbalance %v", name, x, r.Imbalance)
			}
		}
	}
}

// TestWithThinkTimesATurnWaitsForTheAnswerBeforeIt: however slow the engines are, at most one turn of a session is
// under way.
func TestWithThinkTimesATurnWaitsForTheAnswerBeforeIt(t *testing.T) {
	w, err := Generate("agentic", 200, 3)
	if err != nil {
		t.Fatal(err)
	}
	c := small(t, "RoundRobin")
	c.Workload, c.Think, c.Speed = w, true, 50
	if err := c.fill(); err != nil {
		t.Fatal(err)
	}
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	for s.open > 0 {
		s.advance()
		under := map[int]int{}
		for i, x := range s.live {
			if x != nil {
				under[w.Requests[i].Session]++
			}
		}
		for session, n := range under {
			if n > 1 {
				t.Fatalf("%d turns of session %d are under way", n, session)
			}
		}
	}
}

// TestTheEventLagIsKept: an engine's blocks reach the index when the lag is over, not before.
func TestTheEventLagIsKept(t *testing.T) {
	c := small(t, "LeastLoad")
	c.EventLag = time.Second
	if err := c.fill(); err != nil {
		t.Fatal(err)
	}
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	first, told := time.Duration(-1), time.Duration(-1)
	for s.open > 0 && told < 0 {
		s.advance()
		if first < 0 && len(s.news) > 0 {
			first = s.now
		}
		if s.pickers[0].Stats()[0].Held > 0 {
			told = s.now
		}
	}
	if told != first+c.EventLag {
		t.Errorf("the first step ended at %v and the index had its blocks at %v, want %v later", first, told, c.EventLag)
	}
}

func TestSessionsOfATraceAreDerivedFromSharedBlocks(t *testing.T) {
	list := []trace.Request{
		{Blocks: []int{0, 1}}, {Blocks: []int{0, 1, 2}}, {Blocks: []int{0, 3}}, {Blocks: []int{0, 1, 2, 4}}, {Blocks: []int{0}},
	}
	for i := range 9 { // block 0 is shared by many
		list = append(list, trace.Request{Blocks: []int{0, 10 + i}})
	}
	for i := range list {
		list[i].Input, list[i].Output = 512*len(list[i].Blocks), 1
	}
	w := FromTrace("x", list)
	var got []int
	for i := range w.Requests[:5] {
		got = append(got, w.Requests[i].Session, w.Requests[i].Turn)
	}
	if diff := cmp.Diff([]int{0, 0, 0, 1, 1, 0, 0, 2, 2, 0}, got); diff != "" {
		t.Errorf("sessions and turns (-want +got):\n%s", diff)
	}
	if capped := w.Cap(2); len(capped.Requests) != len(list)-1 || capped.Dropped.Turns != 1 {
		t.Errorf("a cap of 2 turns keeps %d of %d requests and drops %d", len(capped.Requests), len(list), capped.Dropped.Turns)
	}
}

// TestTheAgendaIsInOrder compares the heap with sorting.
func TestTheAgendaIsInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var a agenda
	var plain []event
	for range 5000 {
		if rng.IntN(3) > 0 || len(plain) == 0 {
			at, k := time.Duration(rng.IntN(50)), kind(rng.IntN(4))
			a.add(at, k, 0)
			plain = append(plain, event{at: at, kind: k, number: a.added})
			continue
		}
		first := 0
		for i := range plain {
			if plain[i].before(&plain[first]) {
				first = i
			}
		}
		if got := a.pop(); got != plain[first] {
			t.Fatalf("the agenda gives %+v, the next event is %+v", got, plain[first])
		}
		plain = append(plain[:first], plain[first+1:]...)
	}
}

// long skips a test of one goroutine that plays for long, where only races are looked for (-short).
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("plays for long, in one goroutine")
	}
}
