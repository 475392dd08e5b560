package picker

import (
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// tail is whether an engine drops the last block of a hit. vLLM does for speculative decoding of the EAGLE kind: the
// draft model's states of a block depend on tokens after it. No metric and no event names the kind. So an engine that
// shows metrics of speculative decoding is taken to drop the block until an answer finds it, and one that finds it is
// taken not to until an answer lacks exactly that block. It is safe for concurrent use.
//
// From 0.33 on block hashes can cover the tokens that follow (lookahead_token_ids in events), and then nothing is
// dropped: the first answer shows it.
type tail struct {
	speculates atomic.Bool // the engine's metrics show speculative decoding
	finds      atomic.Bool // its answers find the last block
}

// drops reports whether the last block of a hit is not reused.
func (t *tail) drops() bool { return t.speculates.Load() && !t.finds.Load() }

// learn takes how many blocks an answer has found, of those that were predicted.
func (t *tail) learn(predicted kvindex.Match, found, grain int) {
	if !t.speculates.Load() || predicted.Speculative > 0 {
		return
	}
	switch found {
	case predicted.Blocks() + grain:
		t.finds.Store(true)
	case predicted.Blocks() - grain:
		t.finds.Store(false)
	}
}
