package picker

import (
	"cmp"
	"context"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestReportsAreAskedForAfterLostHistory, of engines that make them, for prompts without an announced block. keys is how many
// blocks of the prompt, which has twelve whole ones, an engine with blocks of two has announced.
func TestReportsAreAskedForAfterLostHistory(t *testing.T) {
	for name, tc := range map[string]struct {
		complete bool
		release  int
		keys     int
		tokens   int // 200 if 0
		fields   string
		off      bool // by the policy
		gateway  bool // the body cannot be changed
		want     bool
	}{
		"nothing is known":              {release: 26, want: true},
		"a part is known":               {release: 32, keys: 2},
		"all is known":                  {release: 26, keys: 12},
		"a prompt of less than a block": {release: 26, tokens: 32},
		"no event was lost":             {release: 26, complete: true},
		"the release makes none":        {release: 25},
		"the release is not known":      {},
		"the policy changes no request": {release: 26, off: true},
		"behind a gateway":              {release: 26, gateway: true},
		"the client has such arguments": {release: 26, fields: `"vllm_xargs":{"a":1}`},
		"the engine looks nothing up":   {release: 26, fields: `"prompt_logprobs":1`},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 1)
			spec.Policy.AsksUsage = !tc.off
			p := newPicker(t, newClock(), spec)
			if tc.release > 0 {
				p.SetExact(spec.Namespace, spec.Name, &Exact{Releases: &Releases{spec.Endpoints[0].Epoch(): tc.release}})
			}
			f := feed(t, p, "pod-0")
			holdIn(f, 2, keysOf(t, "m", 5000, 64)) // shows the size of its blocks
			if tc.keys > 0 {
				holdIn(f, 2, keysOf(t, "m", 0, 16*tc.keys))
			}
			f.Incomplete(!tc.complete)
			body := completion("m", 0, cmp.Or(tc.tokens, 200), true)
			if tc.fields != "" {
				body = withFields(body, tc.fields)
			}
			d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body, CutsUsage: !tc.gateway})
			if err != nil {
				t.Fatal(err)
			}
			if got := d.AsksReport(); got != tc.want {
				t.Errorf("asks: %v, with %d blocks known", got, d.Targets[0].Found.Tiers[kvblock.GPU])
			}
			d.End(Completed)
		})
	}
}
