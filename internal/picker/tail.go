package picker

import (
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// tail is whether an engine drops the last block of a hit. vLLM does for speculative decoding of the EAGLE kind: the
// draft model's states of a block depend on tokens after it. No metric names the kind. So an engine that shows metrics of
// speculative decoding is taken to drop the block until an answer finds it, and one that finds it is taken not to until an
// answer lacks exactly that block. It is safe for concurrent use.
//
// From 0.33 on block hashes can cover the tokens that follow (lookahead_token_ids in events). Such an engine finds the
// last block of a prompt that repeats, but not the last one that two prompts share before they differ. Block keys do not
// cover these tokens, so both look the same in the index: the last block is never predicted, and answers teach nothing.
type tail struct {
	speculates atomic.Bool // the engine's metrics show speculative decoding
	finds      atomic.Bool // its answers find the last block
	lookahead  atomic.Bool // its events show hashes that cover tokens that follow
}

// drops reports whether the last block of a hit is not reused, or not always.
func (t *tail) drops() bool { return t.lookahead.Load() || t.speculates.Load() && !t.finds.Load() }

// forget begins another life of the engine, which can speculate in another way.
func (t *tail) forget() {
	t.finds.Store(false)
	t.lookahead.Store(false)
}

// learn takes how many blocks an answer has found, of those that were predicted. removed reports whether a block was
// possibly removed since the prediction: then the engine lacks it for that reason.
func (t *tail) learn(predicted kvindex.Match, found, grain int, keys []kvblock.Key, removed func(kvblock.Key) bool) {
	if !t.speculates.Load() || t.lookahead.Load() || predicted.Speculative > 0 {
		return
	}
	switch {
	case found == predicted.Blocks()+grain:
		t.finds.Store(true)
	case found == predicted.Blocks()-grain && found >= 0 && found < len(keys) && !removed(keys[found]):
		t.finds.Store(false)
	}
}
