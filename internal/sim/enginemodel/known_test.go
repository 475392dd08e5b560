package enginemodel

import (
	"slices"
	"testing"
)

// TestAKnownPromptIsServedAsOneThatIsNot: what one engine has worked out of a prompt serves the others of its seed, any
// number of times, and changes nothing.
func TestAKnownPromptIsServedAsOneThatIsNot(t *testing.T) {
	config := Config{NumBlocks: 64, BlockSize: 4, Seed: 7}
	prompt := make([]uint32, 22)
	for i := range prompt {
		prompt[i] = uint32(3 * i)
	}
	known := newEngine(t, config).Know("adapter", "salt", prompt)
	serve := func(e *Engine, known *Known) (hashes []Hash, out []uint32, cached int) {
		r, err := e.NewRequest(Spec{Prompt: slices.Clone(prompt), MaxTokens: 9, Adapter: "adapter", Salt: "salt", Known: known})
		if err != nil {
			t.Fatal(err)
		}
		e.Add(r, 0)
		for e.Busy() {
			e.Step(0)
		}
		return r.hashes, r.Output(), r.CachedTokens
	}
	a, b := newEngine(t, config), newEngine(t, config)
	for turn := range 3 {
		hashes, out, cached := serve(a, nil)
		gotHashes, gotOut, gotCached := serve(b, known)
		if !slices.Equal(hashes, gotHashes) || !slices.Equal(out, gotOut) || cached != gotCached || turn > 0 && cached != 20 {
			t.Errorf("request %d: hashes %x, output %v, %d cached; known: %x, %v, %d", turn, hashes, out, cached, gotHashes, gotOut, gotCached)
		}
	}
	if len(known.hashes) != 5 {
		t.Errorf("%d blocks are known, want 5", len(known.hashes))
	}
}
