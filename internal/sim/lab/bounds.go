package lab

import (
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Bounds are hit ratios that no choice of pods can beat, or nearly none: of the workload in the order of its arrivals, each
// request cached on arrival, with its answer.
type Bounds struct {
	// InfiniteCacheHitRatio is that of one cache without limit.
	InfiniteCacheHitRatio float64 `json:"infiniteCacheHitRatio"`
	// PooledLRUHitRatio is that of one cache with the memory of all pods and their eviction, least recently used first.
	PooledLRUHitRatio float64 `json:"pooledLRUHitRatio"`
}

// BoundsOf a workload in a fleet whose pods have kvTokens each, in blocks of blockTokens.
func BoundsOf(w *Workload, pods, kvTokens, blockTokens int) Bounds {
	chain := enginemodel.NewChain(1)
	root := chain.Root("", "")
	pool := enginemodel.NewPool(pods * (kvTokens / blockTokens))
	seen := map[enginemodel.Hash]struct{}{}
	var hashes []enginemodel.Hash
	var blocks []enginemodel.Block
	prompt, infinite, pooled := 0, 0, 0
	for i := range w.Requests {
		r := &w.Requests[i]
		tokens := r.Prompt()
		hashes = chain.Hashes(hashes[:0], root, tokens, blockTokens)
		whole := hashes[:min(len(hashes), (r.Input-1)/blockTokens)]
		prompt += r.Input
		for _, h := range whole {
			if _, ok := seen[h]; !ok {
				break
			}
			infinite += blockTokens
		}
		blocks = blocks[:0]
		for _, h := range whole {
			b, ok := pool.Lookup(h)
			if !ok {
				break
			}
			pool.Touch(b)
			blocks = append(blocks, b)
		}
		pooled += len(blocks) * blockTokens

		tokens = enginemodel.AppendAnswer(tokens, tokens, r.Output)
		hashes = chain.Hashes(hashes, root, tokens[:len(tokens)-1], blockTokens) // the last token is never computed
		for _, h := range hashes {
			seen[h] = struct{}{}
		}
		for _, h := range hashes[len(blocks):] {
			b, _, ok := pool.Allocate()
			if !ok {
				break
			}
			pool.Commit(b, h)
			blocks = append(blocks, b)
		}
		pool.Release(blocks)
	}
	if prompt == 0 {
		return Bounds{}
	}
	return Bounds{float64(infinite) / float64(prompt), float64(pooled) / float64(prompt)}
}

// MeanBounds is the mean of the bounds of several draws of a workload.
func MeanBounds(list []Bounds) (mean Bounds) {
	n := float64(len(list))
	for _, b := range list {
		mean.InfiniteCacheHitRatio += b.InfiniteCacheHitRatio / n
		mean.PooledLRUHitRatio += b.PooledLRUHitRatio / n
	}
	return mean
}
