package tokenizer

import (
	"context"
	"unicode/utf8"
)

// encoder is the state of one Encode. Encoders are used again, because of their buffers and the words they know.
type encoder struct {
	t   *Tokenizer
	out []uint32

	ctx  context.Context // lives as long as one call of EncodeContext
	err  error
	left int // bytes until ctx is looked at

	at start // where the text at hand begins
	// What the normalizer makes of a text, and what Metaspace makes of parts of that.
	normalized, marked scratch

	ids   []uint32
	ranks []uint64
	syms  []symbol
	heap  []uint64
	known []knownWord

	own   []uint32 // ids that were not requested
	chain keyChain
}

// checkBytes is how much text is worked on between two looks at the context.
const checkBytes = 1 << 16

// Buffers above these sizes are not kept.
const (
	keepIDs  = 1 << 12
	keepSyms = 1 << 14
	keepText = 1 << 16
)

func newEncoder(t *Tokenizer) *encoder {
	return &encoder{t: t, left: checkBytes, known: make([]knownWord, knownWords)}
}

func (e *encoder) reset() {
	e.out, e.ctx, e.err, e.left, e.at = nil, nil, nil, checkBytes, atText
	if cap(e.ids) > keepIDs {
		e.ids, e.ranks = nil, nil
	}
	if cap(e.syms) > keepSyms {
		e.syms, e.heap = nil, nil
	}
	if cap(e.own) > keepIDs {
		e.own = nil
	}
	e.normalized.shrink()
	e.marked.shrink()
}

// spend counts n bytes of work and reports whether the context has ended.
func (e *encoder) spend(n int) bool {
	if e.left -= n; e.left < 0 {
		e.left = checkBytes
		if e.ctx != nil && e.err == nil {
			e.err = e.ctx.Err()
		}
	}
	return e.err != nil
}

// valid reports whether s is UTF-8, and sets the error otherwise. It looks at the context as it goes.
func (e *encoder) valid(s string) bool {
	for len(s) > 0 {
		n := min(len(s), checkBytes)
		for n < len(s) && n > checkBytes-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		if !utf8.ValidString(s[:n]) {
			e.err = ErrText
		}
		if e.spend(n >> 3) { // much cheaper than encoding
			return false
		}
		s = s[n:]
	}
	return e.err == nil
}

// knownWord is a word that BPE has been asked about, in a direct-mapped table.
type knownWord struct {
	key  uint64
	n    uint8 // of ids
	size uint8 // of word
	word [knownBytes]byte
	ids  [knownIDs]uint32
}

const (
	knownWords = 1 << 13
	knownBytes = 38
	knownIDs   = 10
)

// word appends the ids of the word s[beg:end].
func (e *encoder) word(s string, beg, end int) {
	k := wordKey(s, beg, end)
	v := &e.t.vocab
	h := mix(k)
	for i := h & v.mask; ; i = (i + 1) & v.mask {
		slot := &v.slots[i]
		if slot.key == 0 {
			break
		}
		if slot.key == k && (k>>63 == 0 || v.bytes(slot.id) == s[beg:end]) {
			if slot.whole {
				e.out = append(e.out, slot.id)
				return
			}
			break
		}
	}
	w := s[beg:end]
	if len(w) > knownBytes {
		e.longWord(w)
		return
	}
	known := &e.known[h%knownWords]
	if known.key == k && (k>>63 == 0 || string(known.word[:known.size]) == w) {
		e.out = append(e.out, known.ids[:known.n]...)
		return
	}
	first := len(e.out)
	e.merge(w)
	if ids := e.out[first:]; len(ids) <= knownIDs && e.err == nil {
		known.key, known.n, known.size = k, uint8(len(ids)), uint8(len(w))
		copy(known.word[:], w)
		copy(known.ids[:], ids)
	}
}

// heapFrom is the length in bytes from which a heap finds the next merge sooner than a walk does.
const heapFrom = 96

// merge appends the ids of the word w by byte-pair encoding: of all adjacent pairs the one with the lowest rank is
// merged, the leftmost first, until none is left.
func (e *encoder) merge(w string) {
	ids := e.ids[:0]
	if e.t.spm != nil {
		ids = e.t.spm.symbols(&e.t.vocab, ids, w)
	} else {
		for i := range len(w) {
			ids = append(ids, e.t.byteID[w[i]])
		}
	}
	e.ids = ids
	switch {
	case len(ids) > heapFrom:
		e.mergeLong()
	default:
		e.out = append(e.out, e.mergeShort(ids)...)
	}
}

// mergeShort merges ids in place and returns what is left of them.
func (e *encoder) mergeShort(ids []uint32) []uint32 {
	p := &e.t.pairs
	ranks := e.ranks[:0]
	for i := 0; i+1 < len(ids); i++ {
		ranks = append(ranks, p.get(ids[i], ids[i+1]))
	}
	e.ranks = ranks
	for {
		best, at := none, -1
		for i, m := range ranks {
			if m < best {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = uint32(best)
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at < len(ranks) {
			ranks[at] = p.get(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = p.get(ids[at-1], ids[at])
		}
	}
}

// mergeCost is what a step of mergeLong costs, in bytes of ordinary text.
const mergeCost = 8

// symbol is a token of a long word, in a doubly linked list.
type symbol struct {
	prev, next int32  // -1 for none
	id         uint32 // noID once it is merged into the one before
}

// mergeLong merges e.ids with a heap, O(n log n), and appends the remaining ones to e.out. The heap holds pairs that could
// be merged when they were pushed: the rank in the upper, the left symbol in the lower 32 bits, so that the lowest number
// is popped first. A pair that has changed since is recognized by its rank.
func (e *encoder) mergeLong() {
	e.syms, e.heap = e.syms[:0], e.heap[:0]
	for i, id := range e.ids {
		e.syms = append(e.syms, symbol{prev: int32(i) - 1, next: int32(i) + 1, id: id})
	}
	e.syms[len(e.syms)-1].next = -1
	for i := range len(e.syms) - 1 {
		if e.spend(mergeCost) {
			return
		}
		e.consider(int32(i))
	}
	for len(e.heap) > 0 && !e.spend(mergeCost) {
		top := e.pop()
		at := int32(uint32(top))
		left := &e.syms[at]
		if left.id == noID || left.next < 0 {
			continue
		}
		right := &e.syms[left.next]
		m := e.t.pairs.get(left.id, right.id)
		if m>>32 != top>>32 {
			continue
		}
		left.id, left.next, right.id = uint32(m), right.next, noID
		if right.next >= 0 {
			e.syms[right.next].prev = at
			e.consider(at)
		}
		if left.prev >= 0 {
			e.consider(left.prev)
		}
	}
	for i := int32(0); i >= 0; i = e.syms[i].next {
		e.out = append(e.out, e.syms[i].id)
	}
}

// consider puts the pair of symbol at and its next into the heap, if it can be merged.
func (e *encoder) consider(at int32) {
	left := &e.syms[at]
	if m := e.t.pairs.get(left.id, e.syms[left.next].id); m != none {
		e.push(m&^(1<<32-1) | uint64(at))
	}
}

// The heap has four children per node: fewer levels, and the four are in one cache line.

func (e *encoder) push(v uint64) {
	e.heap = append(e.heap, v)
	h := e.heap
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if h[parent] <= v {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = v
}

// pop takes out the lowest; the heap must not be empty.
func (e *encoder) pop() uint64 {
	h := e.heap
	top, v := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	e.heap = h
	for i := 0; i < len(h); {
		first := 4*i + 1
		if first >= len(h) {
			h[i] = v
			break
		}
		child := first
		for c := first + 1; c < min(first+4, len(h)); c++ {
			if h[c] < h[child] {
				child = c
			}
		}
		if h[child] >= v {
			h[i] = v
			break
		}
		h[i] = h[child]
		i = child
	}
	return top
}
