package picker

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

const (
	// hotTokens and hotPrefixes bound what is kept of a pool: 8 MiB of ids.
	hotTokens   = 2 << 20
	hotPrefixes = 1024
	// hotBlocks is the least length of a prefix that is worth a request of its own.
	hotBlocks = 4
	// hotLife is how long a hit counts: its weight falls to a third in this time.
	hotLife = 10 * time.Minute
	// hotSeen is how many prefixes are remembered that were hit once. Most never are again, such as those of one session.
	hotSeen = 4096
	// hotSample is how many prefixes are compared to find one that can go.
	hotSample = 8
	// hotPause is the least time between two prompts that are tokenized for their ids alone.
	hotPause = 500 * time.Millisecond
)

// hot keeps the token ids of the prefixes that recent requests have found in caches most often, so that they can be
// computed in a new pod before it serves. Prefixes with a salt are their owner's secret and are not kept, nor are
// those of adapters, which the pod might not have loaded. It is safe for concurrent use.
type hot struct {
	mu        sync.Mutex
	seen      [hotSeen]kvblock.Key // by key
	prefixes  map[kvblock.Key]*hotPrefix
	tokens    int
	tokenized time.Time
}

// hotPrefix is a prefix of whole blocks.
type hotPrefix struct {
	ids  []uint32
	hits float64 // at a time, decayed
	at   time.Time
}

// weight is how often it was hit recently.
func (p *hotPrefix) weight(now time.Time) float64 {
	return p.hits * math.Exp(-max(0, now.Sub(p.at).Seconds())/hotLife.Seconds())
}

// hit counts a hit of the prefix that ends with the block of a key. It reports whether the prefix's ids should be
// kept: from the second hit on.
func (h *hot) hit(now time.Time, key kvblock.Key) (wanted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.prefixes[key]; p != nil {
		p.hits, p.at = p.weight(now)+1, now
		return false
	}
	slot := &h.seen[uint64(key)%hotSeen]
	wanted, *slot = *slot == key, key
	return wanted
}

// tokenizes reports whether a prompt can be tokenized now for its ids.
func (h *hot) tokenizes(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.tokenized) < hotPause {
		return false
	}
	h.tokenized = now
	return true
}

// keep a prefix that was hit twice, in place of others that were hit less. It copies ids.
func (h *hot) keep(now time.Time, key kvblock.Key, ids []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.prefixes == nil {
		h.prefixes = map[kvblock.Key]*hotPrefix{}
	}
	const hits = 2
	for h.prefixes[key] == nil && (len(h.prefixes) >= hotPrefixes || h.tokens+len(ids) > hotTokens) {
		if !h.dropBelow(now, hits) {
			return
		}
	}
	if h.prefixes[key] == nil {
		h.prefixes[key] = &hotPrefix{ids: slices.Clone(ids), hits: hits, at: now}
		h.tokens += len(ids)
	}
}

// dropBelow drops the least of some prefixes if it is below a weight. h.mu is held.
func (h *hot) dropBelow(now time.Time, weight float64) bool {
	var least kvblock.Key
	n := 0
	for key, p := range h.prefixes { // in no order
		if w := p.weight(now); w < weight {
			least, weight = key, w
		}
		if n++; n == hotSample {
			break
		}
	}
	p := h.prefixes[least]
	if p == nil {
		return false
	}
	h.tokens -= len(p.ids)
	delete(h.prefixes, least)
	return true
}

// hottest are the prefixes that were hit most often, with at most so many tokens besides those that prefixes before have
// in common with them.
func (h *hot) hottest(now time.Time, maxTokens int) [][]uint32 {
	var out [][]uint32
	for _, p := range h.top(now, hotPrefixes) {
		if more := len(p.ids) - Known(out, p.ids); more > 0 && more <= maxTokens {
			out = append(out, p.ids)
			maxTokens -= more
		}
	}
	return out
}

// top are the prefixes that were hit most often, at most n of them.
func (h *hot) top(now time.Time, n int) []hotPrefix {
	h.mu.Lock()
	all := make([]hotPrefix, 0, len(h.prefixes))
	for _, p := range h.prefixes {
		all = append(all, hotPrefix{ids: p.ids, hits: p.weight(now)})
	}
	h.mu.Unlock()
	slices.SortFunc(all, func(a, b hotPrefix) int {
		return cmp.Or(cmp.Compare(b.hits, a.hits), cmp.Compare(len(b.ids), len(a.ids)), slices.Compare(a.ids, b.ids))
	})
	return all[:min(n, len(all))]
}

// Known returns how many leading ids of a prompt are also the beginning of one of others.
func Known(others [][]uint32, prompt []uint32) (n int) {
	for _, before := range others {
		n = max(n, common(before, prompt))
	}
	return n
}

// common is how many ids two prompts begin with alike.
func common(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// tokenMaker makes a prompt's ids, where a Prompter can.
type tokenMaker interface {
	AppendTokens(ctx context.Context, dst []uint32, body []byte, req *openai.Request) ([]uint32, error)
}

// remember counts a hit of a request, of so many tokens, and keeps the prefix's ids when it is hit again.
func (p *Picker) remember(v *view, s *scratch, state *pickState, hit int, now time.Time) {
	r, blocks := &s.request, min(hit/v.spec.BlockTokens, len(state.keys))
	if blocks < hotBlocks || r.CacheSalt != "" || len(r.Prompts) > 1 || v.identity(r.Model) != v.spec.Model {
		return
	}
	key := state.keys[blocks-1]
	if !v.hot.hit(now, key) {
		return
	}
	ids := state.ids
	if state.source == TokensExact && v.hot.tokenizes(now) {
		ids = p.tokenize(v, s, state.body)
	}
	if n := blocks * v.spec.BlockTokens; len(ids) >= n {
		v.hot.keep(now, key, ids[:n])
	}
}

// tokenize makes the ids of a request in process; nil where it cannot within the policy's budget.
func (p *Picker) tokenize(v *view, s *scratch, body []byte) []uint32 {
	exact := v.exact.Load()
	if exact == nil {
		return nil
	}
	prompter := exact.Texts
	if len(s.request.Prompts) == 0 {
		prompter = exact.Chats
	}
	tokenizer, ok := prompter.(tokenMaker)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), v.spec.Policy.TokenBudget)
	defer cancel()
	ids, err := tokenizer.AppendTokens(ctx, nil, body, &s.request)
	if err != nil {
		return nil
	}
	return ids
}

// Hottest are the prefixes that recent requests to a pool (namespace/name) have found in caches most often, as token
// ids, with at most so many tokens that are not in one before. They must not be changed.
func (p *Picker) Hottest(pool string, maxTokens int) [][]uint32 {
	for _, v := range p.current.Load().pools {
		if v.name == pool {
			return v.hot.hottest(p.now(), maxTokens)
		}
	}
	return nil
}

// Waiting is how many requests to a pool (namespace/name) wait for room.
func (p *Picker) Waiting(pool string) int {
	for _, v := range p.current.Load().pools {
		if v.name == pool {
			return int(v.admission.waiting.Load())
		}
	}
	return 0
}
