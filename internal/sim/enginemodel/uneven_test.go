package enginemodel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInAnUnevenEnginePrefillsComeFirst(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 100, BlockSize: 4, MaxBatchedTokens: 8, Uneven: true})
	e.Add(newRequest(t, e, Spec{Prompt: sequence(1, 4), MaxTokens: 10}), 0)
	e.Step(0)
	e.Add(newRequest(t, e, Spec{Prompt: sequence(100, 20), MaxTokens: 10}), 0)
	var got [][2]int
	for range 4 {
		res, _ := e.Step(0)
		got = append(got, [2]int{res.DecodeTokens, res.PrefillTokens})
	}
	if diff := cmp.Diff([][2]int{{0, 8}, {0, 8}, {0, 4}, {2, 0}}, got); diff != "" {
		t.Errorf("decode and prefill tokens per step (-want +got):\n%s", diff)
	}
}

// TestUnevenTimesHaveAnotherForm: no coefficients of tokens and pairs give the times of short, middle and long prompts,
// while those of the default engine are met but for the time of the weights.
func TestUnevenTimesHaveAnotherForm(t *testing.T) {
	m := profiles[0].Time
	at := func(tokens, context int, uneven bool) float64 {
		sum := 0.0
		for step := range uint64(400) { // the mean of what is left to chance
			var w work
			w.prefill(tokens, context)
			if uneven {
				sum += m.uneven(&w, 1, step).Seconds() / 400
			} else {
				sum += m.duration(w).Seconds() / 400
			}
		}
		return sum
	}
	off := func(uneven bool) float64 {
		// Coefficients from two chunks of 2048 tokens, at the beginning and behind 16,384; what do they say of others?
		pairs := func(n, c int) float64 { return float64(n) * (float64(c) + float64(n)/2) }
		near, far := at(2048, 0, uneven), at(2048, 16_384, uneven)
		b := (far - near) / (pairs(2048, 16_384) - pairs(2048, 0))
		a := (near - b*pairs(2048, 0)) / 2048
		worst := 1.0
		for _, q := range [][2]int{{512, 30_000}, {2048, 100_000}, {1024, 0}} {
			got, want := a*float64(q[0])+b*pairs(q[0], q[1]), at(q[0], q[1], uneven)
			worst = max(worst, want/got, got/want)
		}
		return worst
	}
	if even, uneven := off(false), off(true); even > 1.15 || uneven < 1.25 {
		t.Errorf("predictions of the estimator's form are off by %.2f times in the default engine and by %.2f in the uneven one", even, uneven)
	}
}
