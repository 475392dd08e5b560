package enginemodel

import (
	"testing"
	"time"
)

// settle takes steps until nothing is left, and returns the tokens that were prefilled and the blocks that were stored.
func settle(t *testing.T, e *Engine) (prefilled, stored int) {
	t.Helper()
	for now := time.Duration(0); ; {
		res, ok := e.Step(now)
		if !ok {
			return prefilled, stored
		}
		now += res.Duration
		prefilled += res.PrefillTokens
		for i := range res.Events {
			if res.Events[i].Kind == Stored {
				stored += len(res.Events[i].Hashes)
			}
		}
	}
}

func request(t *testing.T, e *Engine, spec Spec) *Request {
	t.Helper()
	for i := range 100 {
		spec.Prompt = append(spec.Prompt, uint32(i))
	}
	r, err := e.NewRequest(spec)
	if err != nil {
		t.Fatal(err)
	}
	e.Add(r, 0)
	return r
}

func TestBlocksAreHeldUntilTheyAreFreed(t *testing.T) {
	e, err := New(Config{NumBlocks: 20})
	if err != nil {
		t.Fatal(err)
	}
	r := request(t, e, Spec{MaxTokens: 1, Hold: true})
	settle(t, e)
	if used := e.Stats().UsedBlocks; !r.Done() || used != 7 || len(r.Blocks()) != 7 {
		t.Errorf("done %v, %d blocks in use, want 7", r.Done(), used)
	}
	e.Free(r)
	e.Free(r)
	if s := e.Stats(); s.UsedBlocks != 0 || s.CachedBlocks != 6 {
		t.Errorf("after Free: %+v", s)
	}
}

func TestALoadedPromptIsNotComputed(t *testing.T) {
	e, err := New(Config{NumBlocks: 20})
	if err != nil {
		t.Fatal(err)
	}
	r := request(t, e, Spec{MaxTokens: 20, Loaded: true})
	prefilled, stored := settle(t, e)
	if prefilled > 1 || stored != 7 || r.CachedTokens != 100 || len(r.Output()) != 20 {
		t.Errorf("%d tokens prefilled, %d blocks stored, %d tokens cached, %d generated", prefilled, stored, r.CachedTokens, len(r.Output()))
	}
	if s := e.Stats(); s.PrefixHits != 0 || s.UsedBlocks != 0 {
		t.Errorf("stats %+v", s)
	}
}
