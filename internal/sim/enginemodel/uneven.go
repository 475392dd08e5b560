package enginemodel

import (
	"math"
	"time"
)

// An uneven engine differs from the default in its time model: with it, results found with the default, whose times have
// the form that the picker's estimator learns, can be checked on an engine whose times do not. None of its figures is
// measured.
//
//   - Prefills come first: while a prompt has to be computed no request decodes (as in vLLM before it mixed them), in chunks
//     of at most 2048 tokens.
//   - Small batches fill the GPU badly: the first 512 tokens of a step take 1.6 times as long as those from 2048 on, the
//     next 1.25 times, and all come in tiles of 128.
//   - Attention is bound by memory where chunks are short, and slows down with the context: so a prompt's time is
//     neither linear nor quadratic in its length.
//   - Decoding takes as long for half of each context as for the longest of all.
//   - A step takes 0.7 to 1.5 times as long by chance, and one in a hundred a tenth of a second more.
const (
	unevenBudget = 2048
	unevenTile   = 128
	// shortChunk is the length of a chunk whose pairs take twice as long as those of a long one; longContext is the
	// context at which pairs take 1.5 times as long.
	shortChunk, longContext = 256, 64_000
)

// uneven times of a step that does w; n numbers the engine's steps.
func (m TimeModel) uneven(w *work, seed, n uint64) time.Duration {
	if w.tokens == 0 {
		return 0
	}
	tokens := unevenTile * math.Ceil(float64(w.tokens)/unevenTile)
	tokens += 0.6*min(tokens, 512) + 0.25*max(0, min(tokens, 2048)-512)
	context := w.context/2 + float64(w.longest)*float64(w.decodes)/2
	seconds := max(m.Base.Seconds(), m.Linear*tokens) + m.Attention*w.unevenPairs + m.KVRead*context + m.Overhead.Seconds()

	chance := fold(seed^mix1, n^mix2)
	u := float64(chance>>11) / (1 << 53)
	seconds *= 0.7 + 0.8*u*u // 0.97 in the mean
	if chance%100 == 0 {
		seconds += 0.1
	}
	return time.Duration(seconds * 1e9)
}

// unevenPairs is what the pairs of a chunk count behind a context.
func unevenPairs(chunk, context int) float64 {
	n, c := float64(chunk), float64(context)
	return n * (c + n/2) * (1 + shortChunk/n) * (1 + 0.5*c/longContext)
}
