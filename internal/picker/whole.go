package picker

import (
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// grain is how many key blocks an engine reuses at a time: an engine reuses whole engine blocks, which can be several key
// blocks long. It is known from the blocks that the engine announces and from the block size in its metrics; the engine
// uses the least common multiple where several sizes are in use (groups of hybrid models). It is safe for concurrent use.
type grain struct {
	announced atomic.Uint32 // 0 while nothing was announced
	reported  atomic.Uint32 // 0 while nothing was reported
}

// maxGrain bounds what an endpoint can report: 65,536 tokens in blocks of 16.
const maxGrain = 4096

// announce takes the number of keys of a block that the engine has stored.
func (g *grain) announce(keys int) {
	if now := g.announced.Load(); keys > 0 && (now == 0 || int(now)%keys != 0) {
		g.announced.Store(uint32(multiple(max(1, int(now)), keys))) // at most maxGrain
	}
}

// report takes the block size in tokens of the engine's metrics. A size that is not a multiple of the key block is ignored.
func (g *grain) report(tokens, ours int) {
	keys := 0
	if ours > 0 && tokens%ours == 0 {
		keys = min(tokens/ours, maxGrain)
	}
	if g.reported.Load() != uint32(keys) { // at most maxGrain
		g.reported.Store(uint32(keys)) // at most maxGrain
	}
}

// forget begins another life of the engine, which can have another block size.
func (g *grain) forget() { g.announced.Store(0) }

// keys is the number of our blocks that are reused at a time, at least 1.
func (g *grain) keys() int {
	announced, reported := int(g.announced.Load()), int(g.reported.Load())
	if announced <= 1 || reported <= 1 || announced == reported {
		return max(1, announced, reported)
	}
	return multiple(announced, reported)
}

// commonGrain is the number of our blocks in each block that an engine of the pool announces; 0 if no engine's blocks are known, or if
// they differ, between engines or between an engine's metrics and its events (groups of hybrid models). The items of a prompt cannot
// be keyed without it (kvblock.AppendItemKeys).
func (v *view) commonGrain() (common int) {
	for _, m := range v.members {
		for _, keys := range [...]uint32{m.grain.announced.Load(), m.grain.reported.Load()} {
			if keys != 0 && common != 0 && int(keys) != common {
				return 0
			}
			common = max(common, int(keys))
		}
	}
	return common
}

// multiple is the least common multiple of two positive numbers, at most maxGrain.
func multiple(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return min(a/x*b, maxGrain)
}

// whole is the part of a match that the endpoint can reuse for a prompt of so many tokens: whole blocks of the engine,
// never all of the prompt, because an engine computes at least the last token, and not the last block of a hit where the
// engine drops it.
func (v *view) whole(m *member, match kvindex.Match, tokens int) kvindex.Match {
	grain := m.grain.keys()
	match = match.Whole(max(0, tokens-1)/v.spec.BlockTokens, grain)
	if m.tail.drops() {
		match = match.Whole(match.Blocks()-grain, grain)
	}
	return match
}

// usable is the part of a prompt's keys that engines can reuse. Groups with windows need blocks at the very end of a hit,
// so that the index must not be asked for more.
func (v *view) usable(keys []kvblock.Key, tokens int) []kvblock.Key {
	return keys[:min(len(keys), max(0, tokens-1)/v.spec.BlockTokens)]
}

// storable is the part of a prompt's keys that the endpoint can announce: those of whole blocks of the engine.
func (m *member) storable(keys []kvblock.Key) []kvblock.Key {
	return keys[:len(keys)-len(keys)%m.grain.keys()]
}
