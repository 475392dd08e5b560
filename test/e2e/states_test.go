package e2e

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// TestTheFourStates walks through the benchmark of "Stateful Cache-Aware Routing for Distributed LLM Inference" over
// real sockets: cold start, stickiness, eviction, recovery.
func TestTheFourStates(t *testing.T) {
	f := newFleet(t, 3, vllmsim.Config{SpeedUp: 20, NumBlocks: 400}, "StickyLeastLoaded")
	prefix := tokens(1, 320) // 20 blocks

	// Cold start: no engine holds the prefix. The request is placed, and assumed to be held there while it is still being
	// prefilled: a second one, sent before any event, goes to the same pod.
	for _, e := range f.engines {
		e.Pause()
	}
	_, first := f.background("/v1/completions", completion(prefix, 4))
	f.until("the first request is placed", func() bool { return f.inFlight(-1) == 1 })
	_, second := f.background("/v1/completions", completion(prefix, 4))
	f.until("the second request is placed", func() bool { return f.inFlight(-1) == 2 })
	for _, e := range f.engines {
		e.Resume()
	}
	a, b := <-first, <-second
	if a.status != 200 || b.status != 200 {
		t.Fatalf("answers %d and %d: %s %s", a.status, b.status, a.body, b.body)
	}
	if a.predicted != 0 {
		t.Errorf("cold start: %d tokens predicted", a.predicted)
	}
	if b.pod != a.pod || b.predicted != 304 || b.confirmed != 0 {
		t.Errorf("cold start: the second request went to pod %d with %d predicted, %d confirmed; want pod %d by speculation, 304 and 0",
			b.pod, b.predicted, b.confirmed, a.pod)
	}
	if b.cached != b.predicted {
		t.Errorf("cold start: the engine delivered %d tokens of %d predicted", b.cached, b.predicted)
	}
	home := a.pod
	f.untilIndexed(home)

	// Stickiness: the home is the most loaded pod of all, and still gets the prefix.
	f.engines[home].Pause()
	_, busy := f.background("/v1/completions", completion(append(append([]int(nil), prefix...), tokens(2, 64)...), 4))
	f.until("the home is loaded", func() bool { return f.inFlight(home) == 1 })
	_, sticky := f.background("/v1/completions", completion(prefix, 4))
	f.until("the sticky request is placed", func() bool { return f.inFlight(-1) == 2 })
	if got := f.inFlight(home); got != 2 {
		t.Errorf("stickiness: %v requests at the home, want 2", got)
	}
	f.engines[home].Resume()
	<-busy
	if s := <-sticky; s.pod != home || s.confirmed != 304 || s.cached != 304 {
		t.Errorf("stickiness: pod %d, %d confirmed, %d delivered; want pod %d and 304", s.pod, s.confirmed, s.cached, home)
	}

	// Eviction: other work, unknown to the picker, fills the home's cache. The pod reports what it has lost.
	for family := 10; family < 14; family++ {
		f.direct(home, completion(tokens(family, 1600), 1))
	}
	f.until("the pod has evicted the prefix", func() bool {
		ids := make([]uint32, len(prefix))
		for i, id := range prefix {
			ids[i] = uint32(id)
		}
		return f.engines[home].Match("", "", ids) == 0
	})
	f.untilIndexed(home)

	// Recovery: no engine holds the prefix any more. With something running at the old home, the next request goes
	// elsewhere, and the one after it follows.
	f.engines[home].Pause()
	_, busy = f.background("/v1/completions", completion(tokens(13, 1600), 4))
	f.until("the old home is loaded", func() bool { return f.inFlight(home) == 1 })
	moved := f.do("/v1/completions", completion(prefix, 4))
	if moved.pod == home || moved.predicted != 0 || moved.cached != 0 {
		t.Errorf("recovery: pod %d with %d predicted, %d delivered; want another pod than %d and nothing",
			moved.pod, moved.predicted, moved.cached, home)
	}
	f.untilIndexed(moved.pod)
	again := f.do("/v1/completions", completion(prefix, 4))
	if again.pod != moved.pod || again.confirmed != 304 || again.cached != 304 {
		t.Errorf("recovery: then pod %d with %d confirmed, %d delivered; want pod %d and 304",
			again.pod, again.confirmed, again.cached, moved.pod)
	}
	f.engines[home].Resume()
	<-busy
	f.until("nothing is left in flight", func() bool { return f.inFlight(-1) == 0 })
}
