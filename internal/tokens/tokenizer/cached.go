package tokenizer

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// shortPart is the length from which a part is looked for in a cache, in bytes.
const shortPart = 64

// EncodeCached is EncodeContext that takes from the cache what it has seen before, and remembers the rest.
func (t *Tokenizer) EncodeCached(ctx context.Context, in Space, dst []uint32, text string, special bool) ([]uint32, error) {
	if in.cache == nil {
		return t.EncodeContext(ctx, dst, text, special)
	}
	if len(text) > MaxText {
		return dst, ErrText
	}
	e := t.encoder(ctx)
	defer t.release(e)
	e.out = dst
	if special {
		e.out = append(e.out, t.prefix...)
	}
	e.parts(in, text, nil)
	if special {
		e.out = append(e.out, t.suffix...)
	}
	if e.err != nil {
		return dst, e.err
	}
	return e.out, nil
}

// Chain is how the keys of a prompt's blocks are made: the first block's parent, and the tokens in a block.
type Chain struct {
	Root        kvblock.Key
	BlockTokens int
}

// AppendKeys appends the keys of the full blocks of a text's ids to dst, as kvblock.AppendKeys does for the ids of
// EncodeCached, and returns the number of ids. For text that was seen before in the same place after the same tokens,
// neither ids nor keys are computed again. If it returns an error, which is ErrText or the context's, nothing is appended.
func (t *Tokenizer) AppendKeys(ctx context.Context, in Space, dst []kvblock.Key, text string, special bool,
	chain Chain) (keys []kvblock.Key, tokens int, err error) {
	if chain.BlockTokens < 1 {
		return dst, 0, fmt.Errorf("making block keys: %d tokens in a block", chain.BlockTokens)
	}
	if len(text) > MaxText {
		return dst, 0, ErrText
	}
	e := t.encoder(ctx)
	defer t.release(e)
	c := &e.chain
	c.keys, c.parent, c.block, c.tail, c.tokens = dst, chain.Root, chain.BlockTokens, c.tail[:0], 0
	e.out = e.own[:0]
	if special {
		c.add(t.prefix)
	}
	e.parts(in, text, c)
	if special {
		c.add(t.suffix)
	}
	e.own = e.out[:0]
	keys, c.keys = c.keys, nil
	if e.err != nil {
		return dst, 0, e.err
	}
	return keys, c.tokens, nil
}

// parts encodes text part by part. The ids go to c, or without one to e.out.
func (e *encoder) parts(in Space, text string, c *keyChain) {
	var f found
	at := atText
	for from := 0; from < len(text) && e.err == nil; {
		end, inside := e.nextCut(text, from)
		if e.err != nil {
			break
		}
		e.part(in, text[from:end], at, c, &f)
		from = end
		if at = atPiece; inside {
			at = atInside
		}
	}
	if in.cache != nil {
		in.cache.count(&f)
	}
}

// nextCut is where the part of text that begins at from ends, and whether what follows begins inside a piece of text. It
// looks at the context as it goes, and sets ErrText if it finds no cut for too long.
func (e *encoder) nextCut(text string, from int) (end int, inside bool) {
	c := e.t.cuts
	for q := from; ; {
		limit := min(q+checkBytes, len(text))
		if end, inside = c.search(e.t, text, from, q, limit); end < limit || limit == len(text) {
			return end, inside
		}
		if q = limit; c.inside != noCuts && !c.never && q-from > maxPart {
			e.err = ErrText
		}
		if e.spend(checkBytes >> 2) {
			return len(text), false
		}
	}
}

// part encodes one part.
func (e *encoder) part(in Space, text string, at start, c *keyChain, f *found) {
	var k partKey
	cached := in.cache != nil && len(text) >= shortPart
	if cached {
		k = in.key(e.t, text, at)
		if p := in.cache.find(k, text); p != nil {
			f.hits++
			f.hitBytes += uint64(len(text))
			e.spend(len(text) >> 6) // so much cheaper
			if c != nil {
				c.addPart(in.cache, p)
			} else {
				e.out = append(e.out, p.ids...)
			}
			return
		}
		f.misses++
		f.missBytes += uint64(len(text))
	}
	if !e.valid(text) {
		return
	}
	n := len(e.out)
	e.at = at
	e.text(text)
	if e.err != nil {
		return
	}
	var p *part
	if cached {
		p = in.cache.add(k, text, e.out[n:])
	}
	if c == nil {
		return
	}
	if p != nil {
		c.addPart(in.cache, p)
	} else {
		c.add(e.out[n:])
	}
	e.out = e.out[:n]
}

// keyChain makes the keys of blocks from ids that arrive in parts.
type keyChain struct {
	keys   []kvblock.Key
	parent kvblock.Key // of the block that tail begins
	block  int         // tokens in a block
	tail   []uint32    // ids since the last full block
	tokens int         // all ids so far
}

// add takes ids.
func (c *keyChain) add(ids []uint32) {
	c.tokens += len(ids)
	if len(c.tail) > 0 {
		n := min(c.block-len(c.tail), len(ids))
		c.tail = append(c.tail, ids[:n]...)
		if ids = ids[n:]; len(c.tail) < c.block {
			return
		}
		c.parent = kvblock.Next(c.parent, c.tail, 0)
		c.keys = append(c.keys, c.parent)
		c.tail = c.tail[:0]
	}
	first := len(c.keys)
	c.keys = kvblock.AppendKeys(c.keys, c.parent, ids, c.block)
	if len(c.keys) > first {
		c.parent = c.keys[len(c.keys)-1]
	}
	c.tail = append(c.tail, ids[len(ids)/c.block*c.block:]...)
}

// link has the keys of the blocks that a part fills, which depend on what was before it.
type link struct {
	parent kvblock.Key
	block  int
	tail   []uint32
	keys   []kvblock.Key // at least one
}

func (l *link) follows(c *keyChain) bool {
	if l == nil || l.parent != c.parent || l.block != c.block || len(l.tail) != len(c.tail) {
		return false
	}
	for i, id := range l.tail {
		if c.tail[i] != id {
			return false
		}
	}
	return true
}

// addPart takes the ids of a part, and the keys made of them before if the preceding ids are the same.
func (c *keyChain) addPart(cache *Cache, p *part) {
	all := len(c.tail) + len(p.ids)
	if all < c.block {
		c.add(p.ids)
		return
	}
	place := &p.links[uint64(c.parent)>>63]
	if l := place.Load(); l.follows(c) {
		c.keys = append(c.keys, l.keys...)
		c.parent = l.keys[len(l.keys)-1]
		c.tail = append(c.tail[:0], p.ids[len(p.ids)-all%c.block:]...)
		c.tokens += len(p.ids)
		return
	}
	l := &link{parent: c.parent, block: c.block, tail: append([]uint32(nil), c.tail...)}
	first := len(c.keys)
	c.add(p.ids)
	l.keys = append([]kvblock.Key(nil), c.keys[first:]...)
	cache.link(p, place, l)
}

// link puts l into a place of p, which might have been evicted meanwhile.
func (c *Cache) link(p *part, place *atomic.Pointer[link], l *link) {
	s := c.shard(p.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone {
		return
	}
	grown := l.bytes() - place.Load().bytes()
	place.Store(l)
	p.bytes += grown
	s.bytes += grown
	c.shrink(s, p)
}

func (l *link) bytes() int64 {
	if l == nil {
		return 0
	}
	return linkOverhead + 4*int64(len(l.tail)) + 8*int64(len(l.keys))
}
