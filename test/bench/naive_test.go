package bench

import (
	"fmt"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// naive is what one would write first: a sharded map of holders by key. It is a baseline, not exact: it knows no tier
// but the GPU's, and no guesses.
type naive struct {
	kvindex.Book // what is not implemented panics
	shards       [256]struct {
		mu sync.RWMutex
		m  map[uint64]map[string]struct{}
	}
	names []string
}

func newNaive() *naive {
	n := &naive{}
	for i := range n.shards {
		n.shards[i].m = map[uint64]map[string]struct{}{}
	}
	return n
}

func (n *naive) Join() kvindex.Holder {
	n.names = append(n.names, fmt.Sprintf("default/pod-%d:8000", len(n.names)))
	return kvindex.Holder(len(n.names) - 1)
}

func (n *naive) Match(keys []kvblock.Key, holders []kvindex.Holder, out []kvindex.Match) {
	alive := make(map[string]*kvindex.Match, len(holders))
	for i, h := range holders {
		out[i] = kvindex.Match{}
		alive[n.names[h]] = &out[i]
	}
	for _, key := range keys {
		shard := &n.shards[key%256]
		shard.mu.RLock()
		has := shard.m[uint64(key)]
		for name, m := range alive {
			if _, ok := has[name]; ok {
				m.Tiers[kvblock.GPU]++
			} else {
				delete(alive, name)
			}
		}
		shard.mu.RUnlock()
		if len(alive) == 0 {
			return
		}
	}
}

func (n *naive) Speculate(kvindex.Holder, []kvblock.Key) *kvindex.Guess { return nil }

func (n *naive) Size() (distinct, held, speculative int) {
	for i := range n.shards {
		distinct += len(n.shards[i].m)
		for _, holders := range n.shards[i].m {
			held += len(holders)
		}
	}
	return distinct, held, 0
}

func (n *naive) Leave(kvindex.Holder) {}

func (n *naive) Writer(h kvindex.Holder) kvindex.Writer {
	return &naiveWriter{n: n, name: n.names[h], known: map[kvevent.Hash]naiveBlock{}}
}

// naiveBlock is what an engine's hash means, and how many copies of the block there are.
type naiveBlock struct {
	key    kvblock.Key
	copies int
}

type naiveWriter struct {
	kvindex.Writer // what is not implemented panics
	n              *naive
	name           string
	known          map[kvevent.Hash]naiveBlock
}

func (w *naiveWriter) Len() int { return len(w.known) }

func (w *naiveWriter) Key(_ int, hash kvevent.Hash) (kvblock.Key, bool) {
	b, ok := w.known[hash]
	return b.key, ok
}

func (w *naiveWriter) Store(_ kvblock.Tier, _ int, _ kvindex.Parent, hashes []kvevent.Hash, keys []kvblock.Key) int {
	for i, key := range keys {
		b := w.known[hashes[i]]
		w.known[hashes[i]] = naiveBlock{key, b.copies + 1}
		if b.copies > 0 {
			continue
		}
		shard := &w.n.shards[key%256]
		shard.mu.Lock()
		holders := shard.m[uint64(key)]
		if holders == nil {
			holders = make(map[string]struct{}, 1)
			shard.m[uint64(key)] = holders
		}
		holders[w.name] = struct{}{}
		shard.mu.Unlock()
	}
	return 0
}

func (w *naiveWriter) Copy(kvblock.Tier, int, []kvevent.Hash) int { return 0 }

func (w *naiveWriter) Drop(tier kvblock.Tier, _ int, hashes []kvevent.Hash) int {
	if tier != kvblock.GPU {
		return 0
	}
	for _, hash := range hashes {
		b, ok := w.known[hash]
		if ok && b.copies > 1 {
			w.known[hash] = naiveBlock{b.key, b.copies - 1}
		} else if ok {
			w.forget(hash, b.key)
		}
	}
	return 0
}

func (w *naiveWriter) forget(hash kvevent.Hash, key kvblock.Key) {
	delete(w.known, hash)
	shard := &w.n.shards[key%256]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if holders := shard.m[uint64(key)]; len(holders) == 1 {
		delete(shard.m, uint64(key))
	} else {
		delete(holders, w.name)
	}
}

func (w *naiveWriter) Clear() {
	for hash, b := range w.known {
		w.forget(hash, b.key)
	}
}
