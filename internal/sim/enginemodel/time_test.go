package enginemodel

import (
	"math"
	"testing"
	"time"
)

func TestStepDuration(t *testing.T) {
	p, err := LookupProfile("8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		work work
		want float64 // ms
	}{
		"nothing":                       {want: 0},
		"one decode costs the weights":  {work: work{tokens: 1, context: 1000}, want: 6.5 + 2 + 0.05},
		"a full chunk at the beginning": {work: work{tokens: 8192, pairs: 8192 * 4096}, want: 8192*0.022 + 2 + 8192*4096*1.2e-6},
		"a full chunk at 80k":           {work: work{tokens: 8192, pairs: 8192 * 84096}, want: 8192*0.022 + 2 + 8192*84096*1.2e-6},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := p.Time.duration(tc.work).Seconds() * 1000
			if math.Abs(got-tc.want) > 0.001 {
				t.Errorf("%.4f ms, want %.4f ms", got, tc.want)
			}
		})
	}
}

func TestPrefillAlone(t *testing.T) {
	m := TimeModel{Linear: 1e-3, Overhead: time.Second}
	if got, want := m.Prefill(250, 50, 100), 2200*time.Millisecond; got != want {
		t.Errorf("two chunks take %v, want %v", got, want)
	}
	if got := m.Prefill(50, 50, 100); got != 0 {
		t.Errorf("nothing takes %v", got)
	}
}

// A prompt that runs alone takes what Prefill says to its first token, and one floor for each token after.
func TestEngineKeepsTime(t *testing.T) {
	p, err := LookupProfile("70b-tp4-h100")
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, Config{NumBlocks: p.KVTokens / 16, Time: p.Time})
	r := newRequest(t, e, Spec{Prompt: sequence(1, 20_000), MaxTokens: 2})
	e.Add(r, time.Second)
	run(t, e, time.Second)
	if got, want := r.FirstToken-r.Arrived, p.Time.Prefill(20_000, 0, DefaultMaxBatchedTokens); got != want {
		t.Errorf("first token after %v, want %v", got, want)
	}
	var w work
	w.decode(20_001)
	if got, want := r.Finished-r.FirstToken, p.Time.duration(w); got != want {
		t.Errorf("second token after %v, want %v", got, want)
	}
}

func TestUnknownProfile(t *testing.T) {
	if _, err := LookupProfile("tpu"); err == nil {
		t.Error("no error")
	}
	for _, name := range ProfileNames() {
		if p, err := LookupProfile(name); err != nil || p.Name != name || p.KVTokens == 0 || p.Time.Base == 0 {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}
