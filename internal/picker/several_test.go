package picker

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// span is a prompt of ids that count up.
type span struct{ first, n int }

// listOf is a completion of several prompts.
func listOf(t *testing.T, fields map[string]any, prompts ...span) []byte {
	t.Helper()
	list := make([][]int, len(prompts))
	for i, one := range prompts {
		for id := range one.n {
			list[i] = append(list[i], one.first+id)
		}
	}
	body := map[string]any{"model": "m", "prompt": list}
	for name, value := range fields {
		body[name] = value
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// modelOfList says how many tokens an engine with blocks of so many tokens finds, prompt after prompt.
func modelOfList(held []span, prompts []span, block int) (found int) {
	held = slices.Clone(held)
	for _, one := range prompts {
		best := 0
		for _, has := range held {
			if has.first == one.first {
				best = max(best, min(has.n, one.n-1)/block*block)
			}
		}
		found += best
		held = append(held, span{one.first, one.n / block * block})
	}
	return found
}

// TestListsArePredictedPromptByPrompt: the choice looks at the blocks of all prompts, and each prompt finds those of the
// prompts before it.
func TestListsArePredictedPromptByPrompt(t *testing.T) {
	for name, tc := range map[string]struct {
		held    []span // by pod-0
		prompts []span
	}{
		"nothing is held":                      {nil, []span{{0, 100}, {5000, 70}}},
		"the first is held":                    {[]span{{0, 96}}, []span{{0, 100}, {5000, 70}}},
		"the second is held":                   {[]span{{5000, 160}}, []span{{0, 20}, {5000, 170}}},
		"both are held":                        {[]span{{0, 160}, {5000, 64}}, []span{{0, 200}, {5000, 70}}},
		"the second begins like the first":     {nil, []span{{0, 100}, {0, 70}, {0, 500}}},
		"what is held is shorter than shared":  {[]span{{0, 32}}, []span{{0, 100}, {0, 120}}},
		"what is held is longer than shared":   {[]span{{0, 160}}, []span{{0, 50}, {0, 200}}},
		"whole blocks: one is computed always": {[]span{{0, 160}, {5000, 64}}, []span{{0, 160}, {5000, 64}}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 2)
			spec.Policy.AnswerHeaders, spec.Policy.Strategy = "Always", policy.Default(policy.LongestPrefix)
			p := newPicker(t, newClock(), spec)
			for _, one := range tc.held {
				hold(feed(t, p, "pod-0"), keysOf(t, "m", one.first, one.n)...)
			}
			d := pick(t, p, listOf(t, nil, tc.prompts...))
			want, total := modelOfList(tc.held, tc.prompts, 16), 0
			for _, one := range tc.prompts {
				total += one.n
			}
			if pod := d.Targets[0].Endpoint.Pod; len(tc.held) > 0 && pod != "pod-0" {
				t.Errorf("the request goes to %s", pod)
			}
			got := map[string]string{}
			d.Explain(0, func(name, value string) { got[name] = value })
			if d.Targets[0].Predicted != want || d.PromptTokens != total || got["x-kvasir-prompt-tokens"] != jsonOf(t, total) || got["x-kvasir-predicted-tokens"] != jsonOf(t, want) {
				t.Errorf("%d of %d tokens are predicted, want %d of %d; headers %v", d.Targets[0].Predicted, d.PromptTokens, want, total, got)
			}
			// While it is under way, the same list finds all of it there.
			again := pick(t, p, listOf(t, nil, tc.prompts...))
			if again.Targets[0].Endpoint.Pod == d.Targets[0].Endpoint.Pod {
				all := append(slices.Clone(tc.held), tc.prompts...)
				if want := modelOfList(all, tc.prompts, 16); again.Targets[0].Predicted != want {
					t.Errorf("%d tokens are predicted the second time, want %d", again.Targets[0].Predicted, want)
				}
			}
			d.Usage(total, 0) // an engine counts one of the prompts
			d.End(Completed)
			again.End(Completed)
			if s := p.Stats()[0]; s.Hits.Answers != 0 {
				t.Errorf("the answer to a list was compared: %+v", s.Hits)
			}
			assertIdle(t, p)
		})
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestAListOfTooManyPromptsIsCounted: of what is not matched the tokens count.
func TestAListOfTooManyPromptsIsCounted(t *testing.T) {
	spec := testSpec(t, 1)
	p := newPicker(t, newClock(), spec)
	prompts := make([]span, 2*maxPrompts)
	for i := range prompts {
		prompts[i] = span{1000 * i, 20}
	}
	d := pick(t, p, listOf(t, nil, prompts...))
	if d.PromptTokens+d.otherTokens != 20*len(prompts) || len(d.more) != maxPrompts-1 {
		t.Errorf("%d and %d tokens of %d; %d further prompts", d.PromptTokens, d.otherTokens, 20*len(prompts), len(d.more))
	}
	d.End(Completed)
	assertIdle(t, p)
}

// TestTheLastOfSeveralChoicesFindsTheWholePrompt, which the first has computed; usage names the last. The choice of the
// endpoint, and what is believed of it, go by what the first one finds.
func TestTheLastOfSeveralChoicesFindsTheWholePrompt(t *testing.T) {
	type expectation struct{ Predicted, Expected int }
	for name, tc := range map[string]struct {
		fields map[string]any
		want   expectation
	}{
		"one choice":            {map[string]any{"n": 1}, expectation{64, 64}},
		"two choices":           {map[string]any{"n": 2}, expectation{64, 192}},
		"two streamed":          {map[string]any{"n": 2, "stream": true}, expectation{64, 64}},
		"the cache is not read": {map[string]any{"n": 2, "prompt_logprobs": 1}, expectation{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPicker(t, newClock(), testSpec(t, 1))
			hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, 64)...)
			d := pick(t, p, listOf(t, tc.fields, span{0, 200}))
			d.Usage(200, tc.want.Expected)
			d.End(Completed)
			if diff := cmp.Diff(tc.want, expectation{d.Targets[0].Predicted, d.Targets[0].Expected}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			s := p.Stats()[0]
			if s.Proven != 0 || s.Hits.Deviation != 0 {
				t.Errorf("%d blocks are proven; %+v", s.Proven, s.Hits)
			}
		})
	}
}

// FuzzSharedPrefix compares what prompts have in common with the obvious count.
func FuzzSharedPrefix(f *testing.F) {
	f.Add([]byte("aabb"), []byte("aab"), []byte("aabbcc"))
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		keys := func(text []byte) (out []kvblock.Key) {
			for i := range text {
				out = append(out, kvblock.Key(len(text[:i+1]))<<8|kvblock.Key(text[i]))
			}
			return out
		}
		p := prompt{keys: keys(a)}
		p.add(keys(b), len(b), 1)
		last := keys(c)
		want := 0
		for _, other := range [][]kvblock.Key{p.keys, keys(b)} {
			for n := range min(len(other), len(last)) + 1 {
				if slices.Equal(other[:n], last[:n]) {
					want = max(want, n)
				}
			}
		}
		p.add(last, len(c), 1)
		if got := p.more[1].shared; got != want {
			t.Errorf("%d keys are shared, want %d", got, want)
		}
	})
}
