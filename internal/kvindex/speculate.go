package kvindex

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// guessed counts the guesses about one generation that cover the first blocks of a run, and no more of it. A request's blocks
// enter a run at its head, so that a guess covers a leading part of each run.
type guessed struct {
	blocks int
	n      int
}

// covered is how much of a run any of the guesses covers.
func covered(list []guessed) (blocks int) {
	for _, g := range list {
		blocks = max(blocks, g.blocks)
	}
	return blocks
}

// runPart is the leading part of a run that a guess covers.
type runPart struct {
	run    uint32
	blocks int
}

// guessSize is about what a guess takes by itself.
const guessSize = 128

// Speculate implements Reader. It does not keep keys. It costs by run, and by block only for keys without holders.
func (ix *Index) Speculate(h Holder, keys []kvblock.Key) *Guess {
	if i := slices.Index(keys, 0); i >= 0 {
		keys = keys[:i]
	}
	l := ix.generationOf(h)
	if l == nil || len(keys) == 0 {
		return &Guess{}
	}
	if !ix.roomFor(len(keys)) {
		return &Guess{}
	}
	return ix.speculate(l, keys)
}

// speculate assumes that a generation has blocks. The generation might have ended meanwhile.
func (ix *Index) speculate(l *generation, keys []kvblock.Key) *Guess {
	l.guessMu.Lock()
	defer l.guessMu.Unlock()
	if l.guessClosed {
		return &Guess{}
	}
	var buffer [6]stretch
	c := change{slot: l.slot, tier: tierGuess, stretches: buffer[:0]}
	ix.place(&c, noSpot, keys)
	g := &Guess{by: ix, generation: l, bytes: max(0, c.bytes) + guessSize}
	g.parts = make([]runPart, len(c.stretches))
	for i := range c.stretches {
		g.parts[i] = runPart{c.stretches[i].run, c.stretches[i].offset + c.stretches[i].blocks}
	}
	if l.guesses == nil {
		l.guesses = map[uint32][]guessed{}
	}
	for _, part := range g.parts {
		list := l.guesses[part.run]
		l.guessed.Add(int64(max(0, part.blocks-covered(list))))
		if i := slices.IndexFunc(list, func(g guessed) bool { return g.blocks == part.blocks }); i >= 0 {
			list[i].n++
		} else {
			l.guesses[part.run] = append(list, guessed{part.blocks, 1})
		}
	}
	l.guessN++
	l.guessBytes += g.bytes
	ix.guessBytes.Add(g.bytes)
	ix.bytes.Add(c.bytes + guessSize)
	return g
}

// withdraw implements guesser.
func (ix *Index) withdraw(g *Guess) {
	l := g.generation
	l.guessMu.Lock()
	defer l.guessMu.Unlock()
	if l.guessClosed {
		return
	}
	c := change{slot: l.slot, tier: tierGuess}
	for _, part := range g.parts {
		list := l.guesses[part.run]
		before := covered(list)
		i := slices.IndexFunc(list, func(g guessed) bool { return g.blocks == part.blocks })
		if list[i].n--; list[i].n == 0 {
			if list = slices.Delete(list, i, i+1); len(list) > 0 {
				l.guesses[part.run] = list
			} else {
				delete(l.guesses, part.run)
			}
		}
		if after := covered(list); after < before {
			m := stretchMask(after, before-after)
			ix.unmark(&c, part.run, &m)
			l.guessed.Add(int64(after - before))
		}
	}
	l.guessN--
	l.guessBytes -= g.bytes
	ix.guessBytes.Add(-g.bytes)
	ix.bytes.Add(c.bytes - guessSize)
}
