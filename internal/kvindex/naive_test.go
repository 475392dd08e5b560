package kvindex

import (
	"fmt"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// naive is what one would write first: a sharded map of holders by key. It is a baseline of benchmarks, not exact: it
// knows neither copies nor tiers.
type naive struct {
	shards [256]struct {
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

func (n *naive) Join() Holder {
	n.names = append(n.names, fmt.Sprintf("default/pod-%d:8000", len(n.names)))
	return Holder(len(n.names) - 1)
}

func (n *naive) Match(keys []kvblock.Key, holders []Holder, out []Match) {
	alive := make(map[string]*Match, len(holders))
	for i, h := range holders {
		out[i] = Match{}
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

func (n *naive) Speculate(Holder, []kvblock.Key) *Guess { return nil }

func (n *naive) Held(Holder) int { return 0 }

func (n *naive) Size() (int, int, int) { return 0, 0, 0 }

func (n *naive) Leave(Holder) {}

func (n *naive) Writer(h Holder) Writer {
	return &naiveWriter{n: n, name: n.names[h], keys: map[kvevent.Hash]kvblock.Key{}}
}

type naiveWriter struct {
	Writer // what is not implemented panics
	n      *naive
	name   string
	keys   map[kvevent.Hash]kvblock.Key
}

func (w *naiveWriter) Store(_ kvblock.Tier, _ int, _ Parent, hashes []kvevent.Hash, keys []kvblock.Key) int {
	for i, key := range keys {
		w.keys[hashes[i]] = key
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
		key, ok := w.keys[hash]
		if !ok {
			continue
		}
		delete(w.keys, hash)
		shard := &w.n.shards[key%256]
		shard.mu.Lock()
		if holders := shard.m[uint64(key)]; len(holders) == 1 {
			delete(shard.m, uint64(key))
		} else {
			delete(holders, w.name)
		}
		shard.mu.Unlock()
	}
	return 0
}

func (w *naiveWriter) Clear() {
	hashes := make([]kvevent.Hash, 0, len(w.keys))
	for hash := range w.keys {
		hashes = append(hashes, hash)
	}
	w.Drop(kvblock.GPU, 0, hashes)
}
