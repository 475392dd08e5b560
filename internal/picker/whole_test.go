package picker

import (
	"fmt"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// holdIn stores the full engine blocks of a prompt of an endpoint in the index, each of them several keys long.
func holdIn(f Feed, perBlock int, keys []kvblock.Key) {
	keys = keys[:len(keys)-len(keys)%perBlock]
	hashes := make([]kvevent.Hash, len(keys)/perBlock)
	for i := range hashes {
		hashes[i] = kvevent.Hash(keys[(i+1)*perBlock-1])
	}
	f.Writer.Store(kvblock.GPU, 0, kvindex.Parent{}, hashes, keys)
}

// delivered is what an engine finds of a prompt that it has served before: full blocks, and not the last token.
func delivered(tokens, engineBlock int) int { return (tokens - 1) / engineBlock * engineBlock }

// TestPredictionsAreWholeEngineBlocks: repeated prompts of any length, on engines with blocks of several sizes.
func TestPredictionsAreWholeEngineBlocks(t *testing.T) {
	for _, size := range []int{16, 32, 48, 64, 128, 784} {
		for _, tokens := range []int{1, 15, 16, 17, 30, 31, 32, 33, 64, 65, 100, 128, 129, 783, 784, 785, 1568, 1569, 2000} {
			t.Run(fmt.Sprintf("%d tokens in blocks of %d", tokens, size), func(t *testing.T) {
				p := newPicker(t, newClock(), testSpec(t, 1))
				f := feed(t, p, "pod-0")
				holdIn(f, size/16, keysOf(t, "m", 0, 4096)) // it has announced its block size
				d := pick(t, p, completion("m", 0, tokens, false))
				defer d.End(Completed)
				want := delivered(tokens, size)
				if got := &d.Targets[0]; got.Predicted != want || got.Confirmed != want || got.Found.Blocks()*16 != want {
					t.Errorf("predicted %d, confirmed %d, found %d blocks; the engine delivers %d", got.Predicted, got.Confirmed, got.Found.Blocks(), want)
				}
			})
		}
	}
}

// TestGuessesAreWholeEngineBlocks: requests that follow each other before any event, with the block size known from the
// engine's metrics alone, as where reporters speak.
func TestGuessesAreWholeEngineBlocks(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	p.Observe(feed(t, p, "pod-0").Endpoint.ID, c.Now(), load.Report{BlockTokens: 64})
	for _, tokens := range []int{30, 100, 200} {
		first := pick(t, p, completion("m", 0, tokens, true))
		d := pick(t, p, completion("m", 0, tokens, true))
		if want := delivered(tokens, 64); d.Targets[0].Predicted != want {
			t.Errorf("%d of %d tokens are predicted, the engine delivers %d", d.Targets[0].Predicted, tokens, want)
		}
		first.End(Completed)
		d.End(Completed)
	}
}

// TestEndpointsOfOnePoolHaveBlockSizesOfTheirOwn: each candidate is cut by its own engine's.
func TestEndpointsOfOnePoolHaveBlockSizesOfTheirOwn(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 3))
	for i, size := range []int{16, 64, 128} {
		holdIn(feed(t, p, fmt.Sprint("pod-", i)), size/16, keysOf(t, "m", 0, 1024))
	}
	d := pick(t, p, completion("m", 0, 120, false))
	defer d.End(Completed)
	want := map[string]int{"pod-0": 112, "pod-1": 64, "pod-2": 0}
	for _, target := range d.Targets {
		if target.Predicted != want[target.Endpoint.Pod] {
			t.Errorf("%s: %d tokens are predicted, not %d", target.Endpoint.Pod, target.Predicted, want[target.Endpoint.Pod])
		}
	}
}

// TestAnotherLifeHasAnotherBlockSize: a container that restarts with other flags keeps its pod.
func TestAnotherLifeHasAnotherBlockSize(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	f := feed(t, p, "pod-0")
	holdIn(f, 8, keysOf(t, "m", 0, 1024))
	f.Writer.Clear()
	holdIn(f, 2, keysOf(t, "m", 0, 1024))
	d := pick(t, p, completion("m", 0, 100, false))
	defer d.End(Completed)
	if got := d.Targets[0].Predicted; got != 96 {
		t.Errorf("%d tokens are predicted, not 96", got)
	}
}

// TestShortPromptsOnLargeBlocksDoNotCostTrust: prompts shorter than an engine's block are never found, and no prediction
// says that they are.
func TestShortPromptsOnLargeBlocksDoNotCostTrust(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	holdIn(feed(t, p, "pod-0"), 2, keysOf(t, "m", 0, 1024))
	for range 100 {
		d := pick(t, p, completion("m", 0, 30, false))
		d.Usage(30, 0)
		d.End(Completed)
	}
	s := p.Stats()[0]
	if s.Trust.Lost || s.Hits.Deviation != 0 {
		t.Errorf("trust %+v, hits %+v", s.Trust, s.Hits)
	}
}
