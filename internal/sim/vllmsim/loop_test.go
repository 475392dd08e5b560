package vllmsim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Steps follow an absolute schedule: a thousand of a tenth of a millisecond take no less than a tenth of a second.
func TestStepsTakeTheirTime(t *testing.T) {
	e := start(t, Config{SpeedUp: 10, Time: enginemodel.TimeModel{Base: time.Millisecond, Overhead: 1}})
	begin := time.Now()
	complete(t, e, "/v1/completions", object{"prompt": ids(1, 16), "max_tokens": 1000})
	if took := time.Since(begin); took < 100*time.Millisecond {
		t.Errorf("1000 steps of 0.1 ms took %v", took)
	}
}

// The model's own clock runs SpeedUp times as fast as ours, and latencies are in its seconds.
func TestLatenciesAreInModelTime(t *testing.T) {
	e := start(t, Config{SpeedUp: 1000, Time: enginemodel.TimeModel{Base: 2 * time.Second, Overhead: 1}})
	complete(t, e, "/v1/completions", object{"prompt": ids(1, 16), "max_tokens": 2})
	_, text := get(t, e, "/metrics")
	if v := sample(t, text, `vllm:time_to_first_token_seconds_sum{engine="0",model_name="`+DefaultModel+`"}`); v < 2 {
		t.Errorf("first token after %v s of the model, a step takes 2", v)
	}
	if v := sample(t, text, `vllm:e2e_request_latency_seconds_sum{engine="0",model_name="`+DefaultModel+`"}`); v < 4 {
		t.Errorf("last token after %v s of the model, two steps take 4", v)
	}
	if v := sample(t, text, `vllmsim:steps_total{engine="0",model_name="`+DefaultModel+`"}`); v != 2 {
		t.Errorf("%v steps were timed", v)
	}
}

func TestSleepUntil(t *testing.T) {
	begin := time.Now()
	for _, at := range []time.Duration{-time.Second, 0, 300 * time.Microsecond, 5 * time.Millisecond} {
		if !sleepUntil(begin, at, nil) || time.Since(begin) < at {
			t.Errorf("woke before %v", at)
		}
	}
	quit := make(chan struct{})
	close(quit)
	if sleepUntil(begin, time.Hour, quit) {
		t.Error("slept although told to quit")
	}
}

// A request of three chunks is held after each.
func TestPausedEngineHoldsAPrefill(t *testing.T) {
	e := start(t, Config{MaxBatchedTokens: 32})
	next := follow(t, e)
	e.Pause()
	openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 80), "max_tokens": 1})
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	var got []int
	for e.Step() {
		_, events := next()
		got = append(got, len(events[0]["block_hashes"].([]any)))
		if s := e.Stats(); s.Running != one(len(got) < 3) {
			t.Errorf("%d run after %d steps", s.Running, len(got))
		}
	}
	if diff := cmp.Diff([]int{2, 2, 1}, got); diff != "" {
		t.Errorf("blocks stored per step (-want +got):\n%s", diff)
	}
}

// A prompt of whole blocks recomputes its last block, so that two requests hold it twice, and it is removed twice.
func TestConcurrentTwins(t *testing.T) {
	e := start(t, Config{MaxBatchedTokens: 32, NumBlocks: 100})
	e.Pause()
	for range 2 {
		openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 80), "max_tokens": 1})
		eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
		e.Step()
	}
	for e.Step() {
	}
	copies := 0
	for _, n := range e.Blocks() {
		copies += n
	}
	if len(e.Blocks()) != 5 || copies != 6 {
		t.Errorf("%d hashes in %d blocks, want 5 in 6", len(e.Blocks()), copies)
	}
	e.Flush()
	e.Step()
	removed := 0
	for _, b := range e.pub.since(0) {
		for _, ev := range batchEvents(t, b.payload) {
			removed += one(ev["type"] == "BlockRemoved")
		}
	}
	if removed != copies {
		t.Errorf("%d removals of %d blocks", removed, copies)
	}
}
