package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// every strategy with parameters that a user would have.
var every = []Config{
	{Type: MarginalCost, MarginalCost: MarginalCostConfig{DecodeHarm: 1}},
	{Type: StickyLeastLoaded, StickyLeastLoaded: StickyLeastLoadedConfig{PrefixTokens: 64}},
	{Type: LongestPrefix, LongestPrefix: LongestPrefixConfig{MinMatch: 0.25, MaxLoad: 1.5}},
	{Type: LongestPrefix, LongestPrefix: LongestPrefixConfig{Literal: true}},
	{Type: LMetric},
	{Type: LMetric, LMetric: LMetricConfig{Literal: true}},
	{Type: LeastPendingWork},
	{Type: Unified, Unified: UnifiedConfig{MinHit: 0.5, MaxLoad: 2}},
	{Type: Sticky},
	{Type: LeastLoad},
	{Type: RoundRobin},
	{Type: Random},
	{Type: Rendezvous},
	{Type: Rendezvous, Rendezvous: RendezvousConfig{ByPrefix: true, PrefixTokens: 1024}},
	Default(ApproximatePrefix),
}

func mustNew(t testing.TB, c Config) Policy {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// choose gives the candidates' indices, best first.
func choose(p Policy, r *Request, candidates []Candidate) []int {
	costs := make([]Cost, len(candidates))
	p.Score(r, candidates, costs)
	return Rank(r, candidates, costs, nil, len(candidates))
}

func gpuOnly() (credit [kvblock.NumTiers]float64) {
	credit[kvblock.GPU] = 1
	return credit
}

// request of so many tokens in blocks of 16, and as many chunks.
func request(tokens int) *Request {
	blocks := max(0, tokens-1) / 16
	return &Request{PromptTokens: tokens, BlockTokens: 16, Blocks: blocks, Prefix: 7, Chunks: blocks, Credit: gpuOnly()}
}

func candidate(name string, gpuBlocks uint32, view load.View) Candidate {
	c := Candidate{Hash: endpoint.ID{Pod: name}.Hash(), Load: view, Routed: int(gpuBlocks)}
	c.Match.Tiers[kvblock.GPU] = gpuBlocks
	return c
}

func randomCandidates(rng *rand.Rand, r *Request, n int) []Candidate {
	out := make([]Candidate, n)
	for i := range out {
		view := load.View{InFlight: rng.IntN(20), PendingTokens: float64(rng.IntN(30_000)), KVUsage: rng.Float64()}
		view.Decoding = rng.IntN(view.InFlight + 1)
		if rng.IntN(3) > 0 {
			view.Rate, view.Overhead, view.Trust = 5000+rng.Float64()*40_000, rng.Float64()*0.1, rng.Float64()
		}
		out[i] = candidate(fmt.Sprint("pod-", rng.IntN(1_000_000)), uint32(rng.IntN(r.Blocks+2)), view)
		out[i].Match.Speculative = uint32(rng.IntN(3))
		out[i].Routed = out[i].Match.Blocks()
	}
	return out
}

func TestEveryStrategyRanksAllCandidatesOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, config := range every {
		p := mustNew(t, config)
		for range 100 {
			r := request(rng.IntN(5000))
			candidates := randomCandidates(rng, r, 1+rng.IntN(10))
			before := slices.Clone(candidates)
			costs := make([]Cost, len(candidates))
			p.Score(r, candidates, costs)
			for i, c := range costs {
				if math.IsNaN(c.First) || math.IsNaN(c.Then) {
					t.Fatalf("%v: cost %d is %v", config, i, c)
				}
			}
			order := Rank(r, candidates, costs, nil, len(candidates))
			slices.Sort(order)
			for i := range order {
				if order[i] != i {
					t.Fatalf("%v: ranked %v", config, order)
				}
			}
			if !slices.Equal(before, candidates) {
				t.Fatalf("%v changes its candidates", config)
			}
		}
	}
}

// TestTheOrderOfCandidatesDoesNotMatter: pickers see endpoints in different orders and must choose alike.
func TestTheOrderOfCandidatesDoesNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, config := range every {
		if config.Type == RoundRobin || config.Type == Random || config.Type == Unified { // turns, by the published rules
			continue
		}
		p := mustNew(t, config)
		for range 100 {
			r := request(rng.IntN(5000))
			candidates := randomCandidates(rng, r, 6)
			if rng.IntN(2) == 0 { // a tie all over
				for i := range candidates {
					candidates[i].Load, candidates[i].Match, candidates[i].Routed = load.View{}, kvindex.Match{}, 0
				}
			}
			want := candidates[choose(p, r, candidates)[0]].Hash
			shuffled := slices.Clone(candidates)
			rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			if got := shuffled[choose(p, r, shuffled)[0]].Hash; got != want {
				t.Fatalf("%v: the choice depends on the order of the candidates", config)
			}
		}
	}
}

// TestMoreCacheNeverHurts: of two endpoints alike but for the match, cache-aware strategies never prefer the shorter.
func TestMoreCacheNeverHurts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, config := range every {
		switch config.Type {
		case RoundRobin, Random, Rendezvous, LeastLoad:
			continue
		}
		p := mustNew(t, config)
		for range 200 {
			r := request(64 + rng.IntN(5000))
			candidates := randomCandidates(rng, r, 2)
			candidates[1].Load = candidates[0].Load
			costs := make([]Cost, 2)
			p.Score(r, candidates, costs)
			a, b := candidates[0].Match.Blocks(), candidates[1].Match.Blocks()
			if a > b && costs[1].First < costs[0].First || a < b && costs[0].First < costs[1].First {
				t.Fatalf("%v: matches %d and %d of %d blocks cost %v", config, a, b, r.Blocks, costs)
			}
		}
	}
}

// TestLessLoadNeverHurts: of two endpoints with the same match, the one with less of every load is never worse.
func TestLessLoadNeverHurts(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, config := range every {
		switch config.Type {
		case RoundRobin, Random, Rendezvous:
			continue
		}
		p := mustNew(t, config)
		for range 200 {
			r := request(64 + rng.IntN(5000))
			candidates := randomCandidates(rng, r, 2)
			candidates[1].Match, candidates[1].Routed = candidates[0].Match, candidates[0].Routed
			busy, idle := &candidates[0].Load, &candidates[1].Load
			*idle = *busy
			more := 1 + rng.IntN(5)
			busy.InFlight += more
			busy.Decoding += rng.IntN(more + 1)
			busy.PendingTokens += float64(rng.IntN(10_000))
			costs := make([]Cost, 2)
			p.Score(r, candidates, costs)
			if costs[0].First < costs[1].First {
				t.Fatalf("%v: the busier endpoint is cheaper: %v", config, costs)
			}
		}
	}
}

// One overloaded endpoint does not cost the other requests their cache: a request goes on to the idle endpoint that holds
// its prefix.
func TestLoadElsewhereDoesNotCostAffinity(t *testing.T) {
	for _, config := range every {
		switch config.Type {
		case LeastLoad, RoundRobin, Random, Rendezvous, Sticky: // they do not look for caches
			continue
		case LMetric:
			if config.LMetric.Literal { // it ignores the cache of idle endpoints
				continue
			}
		}
		p := mustNew(t, config)
		for n := range 32 {
			requests := []int{0, 4, 64, 512}[n%4]
			r := request(4096)
			candidates := make([]Candidate, 8)
			for i := range candidates {
				candidates[i] = candidate(fmt.Sprint("pod-", i), 0, load.View{Rate: 20_000, Trust: 1})
			}
			holder, other := n/4, &candidates[(n/4+2)%8]
			candidates[holder].Match.Tiers[kvblock.GPU], candidates[holder].Routed = 200, 200
			other.Load.InFlight, other.Load.PendingTokens = requests, float64(requests)*4000
			if got := choose(p, r, candidates)[0]; got != holder {
				t.Errorf("%v: with %d requests at another endpoint a request leaves its cache at %d for endpoint %d", config, requests, holder, got)
			}
		}
	}
}

func TestChoices(t *testing.T) {
	marginal := Config{Type: MarginalCost, MarginalCost: MarginalCostConfig{DecodeHarm: 1}}
	sticky := Config{Type: StickyLeastLoaded, StickyLeastLoaded: StickyLeastLoadedConfig{PrefixTokens: 64}}
	guarded := Config{Type: LongestPrefix, LongestPrefix: LongestPrefixConfig{MinMatch: 0.25, MaxLoad: 1.5}}
	literal := Config{Type: LongestPrefix, LongestPrefix: LongestPrefixConfig{Literal: true}}
	busy := load.View{InFlight: 9, Decoding: 1, PendingTokens: 80_000}
	for name, tc := range map[string]struct {
		config     Config
		request    *Request
		candidates []Candidate
		want       int
	}{
		"marginal cost takes the cache when the load is alike": {
			marginal, request(4096), []Candidate{candidate("a", 0, load.View{}), candidate("b", 200, load.View{})}, 1},
		"marginal cost leaves the cache when its endpoint is swamped": {
			marginal, request(4096), []Candidate{candidate("a", 0, load.View{}), candidate("b", 200, busy)}, 0},
		"marginal cost prefers the faster GPU": {
			marginal, request(4096), []Candidate{candidate("a", 0, load.View{Rate: 5000, Trust: 1}), candidate("b", 0, load.View{Rate: 20_000, Trust: 1})}, 1},
		"marginal cost spares an endpoint short of KV blocks": {
			marginal, request(160), []Candidate{candidate("a", 9, load.View{KVUsage: 0.96}), candidate("b", 0, load.View{})}, 1},
		"sticky least loaded stays however loaded": {
			sticky, request(4096), []Candidate{candidate("a", 0, load.View{}), candidate("b", 4, busy)}, 1},
		"sticky least loaded needs the whole prefix": {
			sticky, request(4096), []Candidate{candidate("a", 0, load.View{}), candidate("b", 3, load.View{InFlight: 1})}, 0},
		"sticky least loaded takes the least loaded holder": {
			sticky, request(4096), []Candidate{candidate("a", 8, busy), candidate("b", 4, load.View{InFlight: 2})}, 1},
		"guarded longest prefix ignores a match that is not worth it": {
			guarded, request(4096), []Candidate{candidate("a", 32, load.View{InFlight: 1}), candidate("b", 0, load.View{})}, 1},
		"guarded longest prefix leaves an overloaded holder": {
			guarded, request(4096), []Candidate{candidate("a", 200, busy), candidate("b", 0, load.View{})}, 1},
		"literal longest prefix takes one block over any load": {
			literal, request(4096), []Candidate{candidate("a", 1, busy), candidate("b", 0, load.View{})}, 0},
		"literal longest prefix breaks ties by load": {
			literal, request(4096), []Candidate{candidate("a", 1, busy), candidate("b", 1, load.View{})}, 1},
		"lmetric sees the cache of idle endpoints": {
			Config{Type: LMetric}, request(4096), []Candidate{candidate("a", 0, load.View{}), candidate("b", 9, load.View{})}, 1},
		"literal lmetric does not, and takes the idle one": {
			Config{Type: LMetric, LMetric: LMetricConfig{Literal: true}}, request(4096),
			[]Candidate{candidate("holds", 250, load.View{InFlight: 1}), candidate("idle", 0, load.View{})}, 1},
		"lmetric multiplies work and batch": {
			Config{Type: LMetric}, request(1000), []Candidate{ // 1000 × 4 and 3000 × 2, then 3500 × 1
				candidate("a", 0, load.View{InFlight: 3}), candidate("b", 0, load.View{InFlight: 1, PendingTokens: 2000}),
				candidate("c", 0, load.View{PendingTokens: 2500})}, 2},
		"least pending work breaks ties by requests": {
			Config{Type: LeastPendingWork}, request(1000), []Candidate{candidate("a", 0, load.View{InFlight: 2}), candidate("b", 0, load.View{InFlight: 1})}, 1},
		"least pending work counts the request's own tokens": {
			Config{Type: LeastPendingWork}, request(4096),
			[]Candidate{candidate("a", 0, load.View{}), candidate("b", 200, load.View{PendingTokens: 500})}, 1},
		"least load knows no cache": {
			Config{Type: LeastLoad}, request(4096), []Candidate{candidate("a", 200, load.View{InFlight: 1}), candidate("b", 0, load.View{})}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := choose(mustNew(t, tc.config), tc.request, tc.candidates)[0]; got != tc.want {
				t.Errorf("chose %d, want %d", got, tc.want)
			}
		})
	}
}

func TestTheRequestsOwnPrefixLengthDecides(t *testing.T) {
	p := mustNew(t, Config{Type: StickyLeastLoaded, StickyLeastLoaded: StickyLeastLoadedConfig{PrefixTokens: 64}})
	r := request(4096)
	r.PrefixTokens = 512
	candidates := []Candidate{candidate("a", 4, load.View{InFlight: 1}), candidate("b", 0, load.View{})}
	if got := choose(p, r, candidates)[0]; got != 1 {
		t.Error("4 blocks were taken for a prefix of 512 tokens")
	}
}

// TestASessionsEndpoint: Sticky keeps to it whatever its load, Unified while it holds more than half and is not
// overloaded, and both do without it when it cannot be chosen.
func TestASessionsEndpoint(t *testing.T) {
	home := func(match uint32, inFlight int) []Candidate {
		return []Candidate{
			candidate("home", match, load.View{InFlight: inFlight, PendingTokens: 100}),
			candidate("idle", 0, load.View{}),
			candidate("busy", 0, load.View{InFlight: 4, PendingTokens: 100}),
		}
	}
	gone := home(40, 2)[1:]
	for name, tc := range map[string]struct {
		config     Config
		candidates []Candidate
		want       int
	}{
		"sticky stays":                       {Default(Sticky), home(0, 100), 0},
		"sticky takes the least loaded":      {Default(Sticky), gone, 0},
		"unified stays while it is warm":     {Default(Unified), home(40, 2), 0},
		"unified leaves what is cold":        {Default(Unified), home(30, 2), 1},
		"unified leaves what is overloaded":  {Default(Unified), home(60, 20), 1},
		"unified takes the least, home gone": {Default(Unified), gone, 0},
	} {
		r := request(1000)
		r.Home = endpoint.ID{Pod: "home"}.Hash()
		if got := choose(mustNew(t, tc.config), r, tc.candidates)[0]; got != tc.want {
			t.Errorf("%s: chose %d, want %d", name, got, tc.want)
		}
	}
}

// TestUnifiedBreaksTiesByCacheThenRequestsThenTurns.
func TestUnifiedBreaksTiesByCacheThenRequestsThenTurns(t *testing.T) {
	p := mustNew(t, Default(Unified))
	r := request(1000)
	idle := []Candidate{candidate("a", 0, load.View{}), candidate("b", 10, load.View{}), candidate("c", 5, load.View{})}
	if got := choose(p, r, idle)[0]; got != 1 {
		t.Errorf("of three idle ones, %d was chosen, want the one with the longest match", got)
	}
	equal := []Candidate{candidate("a", 0, load.View{}), candidate("b", 0, load.View{}), candidate("c", 0, load.View{})}
	seen := map[int]int{}
	for range 30 {
		seen[choose(p, r, equal)[0]]++
	}
	if seen[0] != 10 || seen[1] != 10 || seen[2] != 10 {
		t.Errorf("30 picks among equals went %v", seen)
	}
}

// TestRandomIsUniformAndRepeats: whatever the candidates are like, each gets its share, and a seed gives the same again.
func TestRandomIsUniformAndRepeats(t *testing.T) {
	config := Config{Type: Random, Random: RandomConfig{Seed: 5}}
	p, again, other := mustNew(t, config), mustNew(t, config), mustNew(t, Config{Type: Random, Random: RandomConfig{Seed: 6}})
	candidates := []Candidate{candidate("a", 200, load.View{}), candidate("b", 0, load.View{InFlight: 99}), candidate("c", 0, load.View{}), candidate("d", 9, load.View{})}
	counts, differ := make([]int, 4), 0
	for range 4000 {
		got := choose(p, request(4096), candidates)[0]
		counts[got]++
		if choose(again, request(4096), candidates)[0] != got {
			t.Fatal("the same seed chooses otherwise")
		}
		if choose(other, request(4096), candidates)[0] != got {
			differ++
		}
	}
	for i, n := range counts {
		if n < 850 || n > 1150 {
			t.Errorf("candidate %d was chosen %d times of 4000", i, n)
		}
	}
	if differ < 2500 {
		t.Errorf("another seed chooses the same %d times of 4000", 4000-differ)
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	p := mustNew(t, Config{Type: RoundRobin})
	candidates := []Candidate{candidate("a", 0, load.View{}), candidate("b", 9, load.View{}), candidate("c", 0, load.View{})}
	for i := range 9 {
		if got := choose(p, request(64), candidates)[0]; got != i%3 {
			t.Fatalf("turn %d went to %d", i, got)
		}
	}
}

// TestReplicasTakeTurnsApart: where replicas get requests by turns, an endpoint that has just had one gets the next when all others but
// one have had theirs, if each replica has as many endpoints. Every replica still takes all endpoints by turns.
func TestReplicasTakeTurnsApart(t *testing.T) {
	for _, name := range []Type{RoundRobin, Unified} {
		for _, replicas := range []int{1, 2, 4} {
			const n, rounds = 8, 5
			var candidates []Candidate
			for i := range n {
				candidates = append(candidates, candidate(string(rune('a'+i)), 0, load.View{}))
			}
			var strategies []Policy
			for range replicas {
				strategies = append(strategies, mustNew(t, Default(name)))
			}
			last, least := map[int]int{}, n
			own := make([]map[int]int, replicas)
			for turn := range n * replicas * rounds {
				at := turn % replicas
				r := request(64)
				r.Place = float64(at) / float64(replicas)
				got := choose(strategies[at], r, candidates)[0]
				if before, again := last[got]; again {
					least = min(least, turn-before)
				}
				last[got] = turn
				if own[at] == nil {
					own[at] = map[int]int{}
				}
				own[at][got]++
			}
			if least < n-1 {
				t.Errorf("%s, %d replicas: an endpoint gets two requests within %d turns", name, replicas, least)
			}
			for at, counts := range own {
				for i := range n {
					if counts[i] != rounds {
						t.Errorf("%s, %d replicas: replica %d sent endpoint %d %d requests in %d rounds", name, replicas, at, i, counts[i], rounds)
					}
				}
			}
		}
	}
}

func TestStepsKeepTheOrder(t *testing.T) {
	last := 0.0
	for seconds := 1e-4; seconds < 1000; seconds *= 1.003 {
		now := step(seconds)
		if now < last {
			t.Fatalf("step(%v) = %v is less than that of something smaller, %v", seconds, now, last)
		}
		if math.Abs(now-seconds) > math.Max(0.0006, 0.011*seconds) {
			t.Fatalf("step(%v) = %v is too far off", seconds, now)
		}
		last = now
	}
}

func TestWrongParametersAreRefused(t *testing.T) {
	for name, config := range map[string]Config{
		"no strategy":                {},
		"unknown":                    {Type: "Best"},
		"a hit ratio above 1":        {Type: Unified, Unified: UnifiedConfig{MinHit: 2, MaxLoad: 2}},
		"a prefix of no tokens":      {Type: StickyLeastLoaded},
		"a negative prior rate":      {Type: MarginalCost, MarginalCost: MarginalCostConfig{PriorRate: -1}},
		"a harm that is no number":   {Type: MarginalCost, MarginalCost: MarginalCostConfig{DecodeHarm: math.NaN()}},
		"a load limit below average": {Type: LongestPrefix, LongestPrefix: LongestPrefixConfig{MaxLoad: 0.5}},
		"chunks of no bytes":         {Type: ApproximatePrefix, ApproximatePrefix: ApproximatePrefixConfig{MaxChunks: 1, ChunksPerEndpoint: 1}},
		"prompts of no chunks":       {Type: ApproximatePrefix, ApproximatePrefix: ApproximatePrefixConfig{ChunkBytes: 64, ChunksPerEndpoint: 1}},
		"endpoints of no chunks":     {Type: ApproximatePrefix, ApproximatePrefix: ApproximatePrefixConfig{ChunkBytes: 64, MaxChunks: 1}},
		"a weight below 0":           {Type: ApproximatePrefix, ApproximatePrefix: ApproximatePrefixConfig{ChunkBytes: 64, MaxChunks: 1, ChunksPerEndpoint: 1, KVWeight: -1}},
		"a weight that is no number": {Type: ApproximatePrefix, ApproximatePrefix: ApproximatePrefixConfig{ChunkBytes: 64, MaxChunks: 1, ChunksPerEndpoint: 1, QueueWeight: math.NaN()}},
	} {
		if _, err := New(config); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestScoringDoesNotAllocate(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	r := request(4000)
	candidates := randomCandidates(rng, r, 64)
	costs := make([]Cost, len(candidates))
	order := make([]int, 0, len(candidates))
	for _, config := range every {
		p := mustNew(t, config)
		if n := testing.AllocsPerRun(50, func() {
			p.Score(r, candidates, costs)
			order = Rank(r, candidates, costs, order, 3)
		}); n != 0 {
			t.Errorf("%v allocates %v times", config.Type, n)
		}
	}
}

func BenchmarkScore(b *testing.B) {
	rng := rand.New(rand.NewPCG(6, 6))
	r := request(4000)
	candidates := randomCandidates(rng, r, 64)
	costs := make([]Cost, len(candidates))
	order := make([]int, 0, len(candidates))
	for _, t := range []Type{MarginalCost, LMetric, LeastLoad} {
		b.Run("strategy="+string(t)+"/endpoints=64", func(b *testing.B) {
			p := mustNew(b, Config{Type: t})
			b.ReportAllocs()
			for b.Loop() {
				p.Score(r, candidates, costs)
				order = Rank(r, candidates, costs, order, 3)
			}
		})
	}
}
