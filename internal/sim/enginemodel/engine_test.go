package enginemodel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newEngine(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func newRequest(t testing.TB, e *Engine, spec Spec) *Request {
	t.Helper()
	r, err := e.NewRequest(spec)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// run steps until nothing is left and returns the time and all events.
func run(t testing.TB, e *Engine, now time.Duration) (time.Duration, []Event) {
	t.Helper()
	var events []Event
	for range 100_000 {
		res, ok := e.Step(now)
		if !ok {
			return now, events
		}
		now += res.Duration
		events = append(events, clone(res.Events)...)
	}
	t.Fatal("the engine does not come to rest")
	return 0, nil
}

func clone(events []Event) []Event {
	out := slices.Clone(events)
	for i := range out {
		out[i].Hashes = slices.Clone(out[i].Hashes)
	}
	return out
}

func sequence(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

func TestRepeatedPromptHitsAllButItsLastToken(t *testing.T) {
	cases := map[string]struct {
		prompt, want int
	}{
		"shorter than a block":                  {prompt: 15, want: 0},
		"one whole block is recomputed":         {prompt: 16, want: 0},
		"one block and a token":                 {prompt: 17, want: 16},
		"whole blocks: the last is recomputed":  {prompt: 64, want: 48},
		"whole blocks and a rest":               {prompt: 70, want: 64},
		"several chunks":                        {prompt: 1000, want: 992},
		"several chunks of nothing but blocks":  {prompt: 1024, want: 1008},
		"generated tokens do not count as hits": {prompt: 31, want: 16},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, Config{NumBlocks: 1000, MaxBatchedTokens: 256})
			for i, want := range []int{0, tc.want, tc.want} {
				r := newRequest(t, e, Spec{Prompt: sequence(1, tc.prompt), MaxTokens: 5})
				e.Add(r, 0)
				run(t, e, 0)
				if r.CachedTokens != want {
					t.Errorf("request %d: %d tokens from the cache, want %d", i, r.CachedTokens, want)
				}
			}
		})
	}
}

func TestAdapterAndSaltSeparateCaches(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 1000})
	for _, s := range []Spec{{}, {Adapter: "a"}, {Salt: "a"}, {Adapter: "a", Salt: "a"}, {Adapter: "b"}} {
		for i, want := range []int{0, 32} {
			s.Prompt, s.MaxTokens = sequence(1, 40), 1
			r := newRequest(t, e, s)
			e.Add(r, 0)
			run(t, e, 0)
			if r.CachedTokens != want {
				t.Errorf("adapter %q salt %q, request %d: %d cached, want %d", s.Adapter, s.Salt, i, r.CachedTokens, want)
			}
		}
	}
}

func TestBlocksAreStoredPerChunkWhenScheduled(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 100, BlockSize: 4, MaxBatchedTokens: 10})
	r := newRequest(t, e, Spec{Prompt: sequence(1, 23), MaxTokens: 3})
	e.Add(r, 0)
	type stored struct{ From, Blocks int }
	var got [][]stored
	var parent Hash
	for {
		res, ok := e.Step(0)
		if !ok {
			break
		}
		var step []stored
		for _, ev := range res.Events {
			if ev.Kind != Stored || ev.Parent != parent || len(ev.Tokens) != 4*len(ev.Hashes) {
				t.Fatalf("event %+v, want one stored after %x", ev, parent)
			}
			parent = ev.Hashes[len(ev.Hashes)-1]
			step = append(step, stored{From: int(ev.Tokens[0]), Blocks: len(ev.Hashes)})
		}
		got = append(got, step)
	}
	// Steps of 10, 10 and 3 prompt tokens, then one for each of two generated tokens: the 24th token fills block 5.
	last := int(r.tokens[20])
	want := [][]stored{{{1, 2}}, {{9, 3}}, nil, {{last, 1}}, nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored per step (-want +got):\n%s", diff)
	}
}

func TestTwinsAreRemovedOneByOne(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 8, BlockSize: 4})
	for range 2 {
		e.Add(newRequest(t, e, Spec{Prompt: sequence(1, 8), MaxTokens: 1}), 0)
		run(t, e, 0)
	}
	hashes := e.Chain().Hashes(nil, e.Chain().Root("", ""), sequence(1, 8), 4)
	if c := e.Pool().Copies(hashes[1]); c != 2 {
		t.Fatalf("the recomputed last block has %d copies, want 2", c)
	}
	e.Evict(1)
	if e.Match("", "", sequence(1, 8)) != 2 {
		t.Error("the block is gone although one copy was left")
	}
	e.Evict(10)
	_, events := run(t, e, 0)
	var got []Hash
	for _, ev := range events {
		got = append(got, ev.Hashes...)
	}
	// The first request's tail is oldest; the second freed its own tail, then the shared root.
	if diff := cmp.Diff([]Hash{hashes[1], hashes[1], hashes[0]}, got); diff != "" {
		t.Errorf("removals (-want +got):\n%s", diff)
	}
}

func TestResetLeavesWithTheNextStep(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 8, BlockSize: 4})
	e.Add(newRequest(t, e, Spec{Prompt: sequence(1, 8), MaxTokens: 1}), 0)
	run(t, e, 0)
	if !e.ResetPrefixCache() {
		t.Fatal("reset refused")
	}
	if _, ok := e.Step(0); ok {
		t.Fatal("an idle engine stepped")
	}
	r := newRequest(t, e, Spec{Prompt: sequence(1, 8), MaxTokens: 1})
	e.Add(r, 0)
	res, _ := e.Step(0)
	var kinds []EventKind
	for _, ev := range res.Events {
		kinds = append(kinds, ev.Kind)
	}
	if diff := cmp.Diff([]EventKind{Cleared, Stored}, kinds); diff != "" || r.CachedTokens != 0 {
		t.Errorf("cached %d; events (-want +got):\n%s", r.CachedTokens, diff)
	}
}

func TestAbortFreesAndStepsOnce(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 8, BlockSize: 4, MaxSeqs: 1})
	running := newRequest(t, e, Spec{Prompt: sequence(1, 8), MaxTokens: 20})
	waiting := newRequest(t, e, Spec{Prompt: sequence(1, 8), MaxTokens: 20})
	e.Add(running, 0)
	e.Add(waiting, 0)
	e.Step(0)
	if s := e.Stats(); s.Running != 1 || s.Waiting != 1 || s.UsedBlocks != 2 {
		t.Fatalf("stats %+v", s)
	}
	for _, r := range []*Request{running, waiting} {
		if !e.Abort(r, 0) || !r.Done() || e.Abort(r, 0) {
			t.Error("an abort works once")
		}
	}
	if s := e.Stats(); s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 || s.Aborted != 2 {
		t.Errorf("stats %+v", s)
	}
	if _, ok := e.Step(0); !ok {
		t.Error("no step after the aborts")
	}
	if _, ok := e.Step(0); ok {
		t.Error("a second step without work")
	}
}

func TestInvalidRequests(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 8, BlockSize: 4, MaxModelLen: 20})
	for name, s := range map[string]Spec{
		"empty prompt":       {MaxTokens: 1},
		"nothing to do":      {Prompt: sequence(1, 3)},
		"negative maximum":   {Prompt: sequence(1, 3), MaxTokens: -1},
		"prompt fills model": {Prompt: sequence(1, 20), MaxTokens: 1},
	} {
		if _, err := e.NewRequest(s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_, err := e.NewRequest(Spec{Prompt: sequence(1, 30), MaxTokens: 2})
	var tooLong *ContextError
	if !errors.As(err, &tooLong) || *tooLong != (ContextError{Max: 20, Prompt: 30, Output: 2}) {
		t.Errorf("error %v", err)
	}
	r := newRequest(t, e, Spec{Prompt: sequence(1, 15), MaxTokens: 100})
	if r.MaxTokens != 5 {
		t.Errorf("max tokens cut to %d, want 5", r.MaxTokens)
	}
	for name, cfg := range map[string]Config{
		"no blocks":             {},
		"negative batch":        {NumBlocks: 1, MaxBatchedTokens: -1},
		"context exceeds cache": {NumBlocks: 2, BlockSize: 4, MaxModelLen: 9},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// workload drives an engine with random requests that share prefixes, checks its accounting after every step and calls
// each with what the step did.
func workload(t *testing.T, e *Engine, seed uint64, requests int, each func(StepResult)) []*Request {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	var all, live []*Request
	mirror := map[Hash]int{}
	var now time.Duration
	for len(all) < requests || e.Busy() {
		for len(all) < requests && rng.IntN(3) == 0 {
			prompt := append(sequence(1000*rng.IntN(3), rng.IntN(40)), sequence(rng.IntN(5), 1+rng.IntN(20))...)
			spec := Spec{Prompt: prompt, MaxTokens: 1 + rng.IntN(30), Slot: len(all)}
			if rng.IntN(5) == 0 {
				spec.Adapter = "lora"
			}
			r := newRequest(t, e, spec)
			e.Add(r, now)
			all, live = append(all, r), append(live, r)
		}
		switch rng.IntN(30) {
		case 0:
			if len(live) > 0 {
				e.Abort(live[rng.IntN(len(live))], now)
			}
		case 1:
			e.Evict(rng.IntN(4))
		case 2:
			e.ResetPrefixCache()
		}
		res, ok := e.Step(now)
		if !ok {
			continue
		}
		now += res.Duration
		apply(t, mirror, res.Events)
		live = slices.DeleteFunc(live, (*Request).Done)
		checkAccounting(t, e, mirror, live)
		each(res)
	}
	return all
}

// apply keeps a count of each hash from events alone.
func apply(t *testing.T, mirror map[Hash]int, events []Event) {
	t.Helper()
	for _, ev := range events {
		switch ev.Kind {
		case Stored:
			if ev.Parent != 0 && mirror[ev.Parent] == 0 {
				t.Fatalf("blocks stored after %x, which is not cached", ev.Parent)
			}
			for _, h := range ev.Hashes {
				mirror[h]++
			}
		case Removed:
			h := ev.Hashes[0]
			if mirror[h]--; mirror[h] < 0 {
				t.Fatalf("block %x removed more often than stored", h)
			} else if mirror[h] == 0 {
				delete(mirror, h)
			}
		case Cleared:
			clear(mirror)
		}
	}
}

func checkAccounting(t *testing.T, e *Engine, mirror map[Hash]int, live []*Request) {
	t.Helper()
	refs := map[Block]int{}
	for _, r := range live {
		if len(r.blocks)*e.cfg.BlockSize < r.computed {
			t.Fatalf("%d blocks hold %d tokens", len(r.blocks), r.computed)
		}
		for _, b := range r.blocks {
			refs[b]++
		}
	}
	for b := range e.pool.blocks {
		if e.pool.Refs(Block(b)) != refs[Block(b)] {
			t.Fatalf("block %d has %d references, requests hold %d", b, e.pool.Refs(Block(b)), refs[Block(b)])
		}
	}
	if len(refs)+e.pool.Free() != e.pool.Len() || len(e.pool.freeQueue()) != e.pool.Free() {
		t.Fatalf("%d used and %d free of %d blocks", len(refs), e.pool.Free(), e.pool.Len())
	}
	if got := copiesOf(e.pool); !maps.Equal(mirror, got) {
		t.Fatalf("cache as told by events, and as it is:\n%s", cmp.Diff(mirror, got))
	}
}

func TestBlocksNeverLeakAndEventsTellTheCache(t *testing.T) {
	preempted := 0
	for seed := range uint64(15) {
		e := newEngine(t, Config{NumBlocks: 24, BlockSize: 4, MaxModelLen: 96, MaxBatchedTokens: 32, MaxSeqs: 6, Seed: seed, Uneven: seed%3 == 2})
		all := workload(t, e, seed, 60, func(r StepResult) { preempted += r.Preempted })
		for i, r := range all {
			if !r.Done() {
				t.Fatalf("seed %d: request %d never ended", seed, i)
			}
		}
		if s := e.Stats(); s.UsedBlocks != 0 || s.Finished+s.Aborted != 60 {
			t.Fatalf("seed %d: at rest %+v", seed, s)
		}
	}
	if preempted == 0 {
		t.Error("no request was ever preempted: the test lacks its hardest case")
	}
}

func TestHitsNeverExceedAnInfiniteCache(t *testing.T) {
	hits := 0
	for seed := range uint64(10) {
		e := newEngine(t, Config{NumBlocks: 24, BlockSize: 4, MaxModelLen: 96, MaxBatchedTokens: 32, MaxSeqs: 6})
		seen := map[string]bool{} // everything that was ever in a request, by content
		content := func(r *Request, n int) string {
			b := []byte(r.Adapter)
			for _, id := range r.tokens[:n] {
				b = binary.BigEndian.AppendUint32(b, id)
			}
			return string(b)
		}
		started := map[*Request]bool{}
		workload(t, e, seed, 40, func(res StepResult) {
			fresh := slices.Clone(e.running)
			for _, o := range res.Outputs {
				fresh = append(fresh, o.Request)
			}
			fresh = slices.DeleteFunc(fresh, func(r *Request) bool { return started[r] })
			// First admissions are in the order of arrival.
			slices.SortFunc(fresh, func(a, b *Request) int { return a.Slot - b.Slot })
			for _, r := range slices.Compact(fresh) {
				started[r] = true
				for n := 4; n <= r.CachedTokens; n += 4 {
					if !seen[content(r, n)] {
						t.Fatalf("%d tokens came from the cache, but the first %d were never computed", r.CachedTokens, n)
					}
				}
				hits += r.CachedTokens
				for n := 4; n <= r.prompt; n += 4 {
					seen[content(r, n)] = true
				}
			}
			for _, o := range res.Outputs {
				seen[content(o.Request, len(o.Request.tokens))] = true
			}
		})
	}
	if hits == 0 {
		t.Error("no hits at all")
	}
}

func TestSameInputSameRun(t *testing.T) {
	trace := func(engineSeed uint64) (log []string, hashes map[Hash]int) {
		e := newEngine(t, Config{
			NumBlocks: 24, BlockSize: 4, MaxModelLen: 96, MaxBatchedTokens: 32, MaxSeqs: 6, Seed: engineSeed,
			Time: profiles[0].Time,
		})
		workload(t, e, 5, 60, func(r StepResult) {
			line := fmt.Sprint(r.Duration, r.PrefillTokens, r.DecodeTokens, r.Preempted, len(r.Events))
			for _, o := range r.Outputs {
				line += fmt.Sprint(" ", o.Request.Slot, o.Token, o.First, o.Last)
			}
			log = append(log, line)
		})
		return log, copiesOf(e.pool)
	}
	log1, hashes1 := trace(1)
	log2, hashes2 := trace(1)
	log3, hashes3 := trace(2)
	if diff := cmp.Diff(log1, log2); diff != "" {
		t.Errorf("two runs differ:\n%s", diff)
	}
	if diff := cmp.Diff(hashes1, hashes2); diff != "" {
		t.Errorf("two runs cache differently:\n%s", diff)
	}
	if diff := cmp.Diff(log1, log3); diff != "" {
		t.Errorf("the hash seed changed more than hashes:\n%s", diff)
	}
	for h := range hashes3 {
		if hashes1[h] != 0 {
			t.Fatalf("engines with different seeds share hash %x", h)
		}
	}
}
